"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer as _Backend

from outrider.errors import CorruptModel, RequestError
from outrider.text.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    TokenBytes,
    WindowDetokenizer,
)
from outrider.types import TargetInfo

__all__ = ["HFTokenizer", "IdTokenizer", "Tokenizer", "create_tokenizer"]

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ID: Final = re.compile(r"[0-9]{1,10}")


class Tokenizer(Protocol):
    """One model's way between text and token ids. Safe to share between threads."""

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows; rows of logits may be longer."""
        ...

    @property
    def token_strings(self) -> Sequence[str | None]:
        """The raw vocabulary strings by id, added tokens included; None where an id has none."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text.

        The strings of special tokens (`<|im_end|>`) become those tokens wherever they stand: chat
        templates write them so. Text of a caller that contains them is read the same way, as in
        every server that renders templates to text.

        Args:
            text: any text, also long: other threads run meanwhile.
            add_special_tokens: put around it what the model wants around a plain prompt, such as a
                beginning-of-sequence token. False for a rendered chat template, which has them
                already.

        Raises:
            RequestError: the text cannot be encoded.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; equal to what a detokenizer gives for them in all."""
        ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes that a token stands for, wherever it stands; special tokens stand for their
        names. None for an id without a token, and where bytes depend on the neighbours."""
        ...

    def detokenizer(
        self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """A new incremental detokenizer for one output.

        Args:
            prompt_ids: give them where the output continues a text (its leading space then counts),
                leave them out where it is a text of its own.
            skip_special_tokens: leave special tokens out of the text.
        """
        ...


class HFTokenizer:
    """A tokenizer given as the contents of a Hugging Face `tokenizer.json`.

    Raises:
        CorruptModel: `tokenizer_json` is not one.
    """

    def __init__(self, tokenizer_json: str) -> None:
        try:
            self._backend: _Backend = _Backend.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception for every parse error
            raise CorruptModel(
                f"the model's tokenizer.json cannot be read ({_one_line(error)}); get the file anew"
            ) from error
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        vocabulary = self._backend.get_vocab(with_added_tokens=False)
        size = max([-1, *vocabulary.values(), *added]) + 1
        strings: list[str | None] = [None] * size
        for string, token_id in vocabulary.items():
            strings[token_id] = string
        for token_id, token in added.items():
            strings[token_id] = token.content
        self._token_strings: Sequence[str | None] = tuple(strings)
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._token_bytes = TokenBytes.read(tokenizer_json, strings, self._special)

    @property
    def vocab_size(self) -> int:
        return len(self._token_strings)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of tokens that mark the structure of a text and are no part of it."""
        return self._special

    @property
    def token_strings(self) -> Sequence[str | None]:
        return self._token_strings

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if found := _SURROGATE.search(text):
            raise RequestError(
                f"the text holds half of a surrogate pair (U+{ord(found[0]):04X}) at character "
                f"{found.start()}, which is no Unicode text; send the whole character"
            )
        # Only the batch calls release the interpreter's lock while they run.
        encodings = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        text = [detokenizer.push(token_id) for token_id in token_ids]
        text.append(detokenizer.flush())
        return "".join(text)

    def token_bytes(self, token_id: int) -> bytes | None:
        tokens = self._token_bytes
        if tokens is None or not 0 <= token_id < len(tokens.by_id):
            return None
        return tokens.by_id[token_id] or tokens.special.get(token_id) or None

    def detokenizer(
        self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        if self._token_bytes is not None:
            return ByteDetokenizer(
                self._token_bytes, prompt_ids, skip_special_tokens=skip_special_tokens
            )

        def decode(ids: Sequence[int]) -> str:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))

        return WindowDetokenizer(decode, prompt_ids)


class IdTokenizer:
    """The tokenizer of models without words (`table`): the text is the ids, separated by spaces.

    >>> IdTokenizer(4).encode("3 1 2", add_special_tokens=False)
    [3, 1, 2]
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def token_strings(self) -> Sequence[str | None]:
        return tuple(str(token_id) for token_id in range(self._vocab_size))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [self._id(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return " ".join(map(str, token_ids))

    def token_bytes(self, token_id: int) -> bytes | None:
        return None  # a space comes before all but the first

    def detokenizer(
        self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        return _IdDetokenizer(continues=bool(prompt_ids))

    def _id(self, word: str) -> int:
        if _ID.fullmatch(word) is None or int(word) >= self._vocab_size:
            raise RequestError(
                f"{word[:40]!r} is not a token id; this model's text is ids from 0 to "
                f"{self._vocab_size - 1}, separated by spaces"
            )
        return int(word)


class _IdDetokenizer:
    def __init__(self, *, continues: bool) -> None:
        self._separator = " " if continues else ""

    def push(self, token_id: int) -> str:
        text = f"{self._separator}{token_id}"
        self._separator = " "
        return text

    def flush(self) -> str:
        return ""


def create_tokenizer(info: TargetInfo) -> Tokenizer:
    """The tokenizer of a target: its `tokenizer.json` if it has one, else ids as text.

    Raises:
        CorruptModel: the target's `tokenizer.json` cannot be read.
    """
    if info.tokenizer_json is None:
        return IdTokenizer(info.vocab_size)
    return HFTokenizer(info.tokenizer_json)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
