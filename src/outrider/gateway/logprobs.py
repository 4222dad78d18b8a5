"""Log probabilities as OpenAI writes them: one form in chats, another in plain completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from outrider.text import Tokenizer
from outrider.types import TokenLogprobs

__all__ = ["ChatLogprobs", "LogprobsWriter", "TextLogprobs"]

_LEAST: Final = -9999.0
"""What OpenAI writes for a token that is next to impossible; JSON has no infinity."""


class _TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: Sequence[int] | None


class _TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: Sequence[int] | None
    top_logprobs: Sequence[_TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """`logprobs` of a choice, or of a chunk of one, in a chat."""

    content: Sequence[_TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct, frozen=True):
    """`logprobs` of a choice, or of a chunk of one, in a plain completion.

    Attributes:
        tokens: one string per token.
        token_logprobs: one per token.
        top_logprobs: per token the likeliest by their strings, and the token itself. Of tokens
            with the same string the likeliest counts.
        text_offset: where the text of each token begins, in characters of the completion's text.
    """

    tokens: Sequence[str]
    token_logprobs: Sequence[float]
    top_logprobs: Sequence[dict[str, float]]
    text_offset: Sequence[int]


class LogprobsWriter:
    """Writes log probabilities for one request.

    Args:
        tokenizer: spells the tokens.
        chat: in a chat's form.
    """

    def __init__(self, tokenizer: Tokenizer, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._spelled: dict[int, tuple[str, Sequence[int] | None]] = {}

    def write(
        self, entries: Sequence[TokenLogprobs], offsets: Sequence[int]
    ) -> ChatLogprobs | TextLogprobs:
        """The JSON object of some tokens that follow each other.

        Args:
            entries: one per token.
            offsets: one per token; characters of the output's text in front of it.
        """
        if self._chat:
            return ChatLogprobs([self._entry(entry) for entry in entries])
        return TextLogprobs(
            tokens=[self._spell(entry.token_id)[0] for entry in entries],
            token_logprobs=[_number(entry.logprob) for entry in entries],
            top_logprobs=[self._by_string(entry) for entry in entries],
            text_offset=offsets,
        )

    def _entry(self, entry: TokenLogprobs) -> _TokenLogprob:
        text, raw = self._spell(entry.token_id)
        top = []
        for token_id, logprob in entry.top:
            top_text, top_raw = self._spell(token_id)
            top.append(_TopLogprob(top_text, _number(logprob), top_raw))
        return _TokenLogprob(text, _number(entry.logprob), raw, top)

    def _by_string(self, entry: TokenLogprobs) -> dict[str, float]:
        found: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            found.setdefault(self._spell(token_id)[0], _number(logprob))
        return found

    def _spell(self, token_id: int) -> tuple[str, Sequence[int] | None]:
        """A token's own text, broken characters replaced, and its exact bytes, if it has any."""
        found = self._spelled.get(token_id)
        if found is None:
            raw = self._tokenizer.token_bytes(token_id)
            if raw is None:
                found = (self._tokenizer.decode([token_id], skip_special_tokens=False), None)
            else:
                found = (raw.decode("utf-8", "replace"), list(raw))
            self._spelled[token_id] = found
        return found


def _number(logprob: float) -> float:
    return max(_LEAST, logprob)
