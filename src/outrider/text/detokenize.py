"""Token ids to text, one token at a time.

Almost every language model's tokenizer decodes in one of two ways, byte-level BPE or pieces with
byte fallback, and in both a token stands for a fixed string of bytes. `TokenBytes` reads that table
out of a `tokenizer.json`; `ByteDetokenizer` then only has to decode UTF-8 incrementally, which
costs the same for the millionth token as for the first and holds back at most the three bytes of an
unfinished character. `WindowDetokenizer` serves every other decoder through the tokenizer itself.

`tokenizers.DecodeStream` is not used: it cannot be flushed, and it holds back, at growing cost, for
as long as a run of invalid bytes lasts.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

__all__ = ["ByteDetokenizer", "Detokenizer", "TokenBytes", "WindowDetokenizer"]

# A UTF-8 character is at most 4 bytes, and a token of a broken one holds at least one of them.
_PROMPT_TAIL: Final = 8
_LONGEST_HOLD: Final = 8

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """Text of one output, token by token. Not safe for use from two threads at once."""

    def push(self, token_id: int) -> str:
        """The text that this token made certain; often one word, "" within a character."""
        ...

    def flush(self) -> str:
        """The text still held at the end of the output: an unfinished character becomes U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What each token of a vocabulary decodes to.

    Attributes:
        by_id: bytes by token id; empty for special tokens and for ids without a token.
        special: token strings, as bytes, of the special tokens alone, by id.
        leading_spaces: spaces that the decoder takes off the front of a text.
    """

    by_id: Sequence[bytes]
    special: dict[int, bytes]
    leading_spaces: int = 0

    @staticmethod
    def read(
        tokenizer_json: str, token_strings: Sequence[str | None], special_ids: frozenset[int]
    ) -> TokenBytes | None:
        """The table of a `tokenizer.json`, or None where tokens do not decode to fixed bytes."""
        plan = _plan(json.loads(tokenizer_json).get("decoder"))
        if plan is None:
            return None
        to_bytes, leading_spaces = plan
        table = [b"" if string is None else to_bytes(string) for string in token_strings]
        special = {index: table[index] for index in special_ids}
        for index in special_ids:
            table[index] = b""
        return TokenBytes(table, special, leading_spaces)


class ByteDetokenizer:
    """Decodes tokens by their bytes.

    Invalid UTF-8 becomes U+FFFD, once per maximal invalid part, as the Unicode standard advises.

    Args:
        tokens: the vocabulary's table.
        prompt_ids: what the output continues. The output's first space is then kept, and a
            character begun by the prompt is completed. Leave it empty where the output is a text of
            its own, as a chat message is.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(
        self,
        tokens: TokenBytes,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._by_id = tokens.by_id
        self._special: dict[int, bytes] = {} if skip_special_tokens else tokens.special
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._strip = tokens.leading_spaces
        if any(self._bytes_of(token_id) for token_id in prompt_ids):
            self._strip = 0
        for token_id in prompt_ids[-_PROMPT_TAIL:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        return self._stripped(self._decode(self._bytes_of(token_id)))

    def flush(self) -> str:
        return self._stripped(self._decode(b"", True))

    def _bytes_of(self, token_id: int) -> bytes:
        # Logit rows may be longer than the vocabulary; ids in their padding have no text.
        if not 0 <= token_id < len(self._by_id):
            return b""
        return self._by_id[token_id] or self._special.get(token_id, b"")

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class WindowDetokenizer:
    """Decodes tokens through any decoder, looking at the last few only.

    Each step decodes the tokens last shown together with those not yet shown, and gives what the
    latter add. Text that ends in U+FFFD may be an unfinished character and is held for at most
    eight tokens.

    Args:
        decode: the tokenizer's own decoding of a list of ids.
        prompt_ids: what the output continues; see `ByteDetokenizer`.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_ids: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._window = [
            token_id for token_id in prompt_ids[-_PROMPT_TAIL:] if decode([token_id])
        ]  # tokens shown last, then those held
        self._shown = len(self._window)
        self._text = decode(self._window) if self._window else ""

    def push(self, token_id: int) -> str:
        if not self._decode([token_id]):
            return ""  # invisible tokens would push the context out of the window
        self._window.append(token_id)
        text = self._decode(self._window)
        held = len(self._window) - self._shown
        if len(text) <= len(self._text) or (text.endswith("\ufffd") and held < _LONGEST_HOLD):
            return ""
        return self._take(text)

    def flush(self) -> str:
        return self._take(self._decode(self._window)) if self._window else ""

    def _take(self, text: str) -> str:
        new = text[len(self._text) :]
        self._window = self._window[self._shown :] or self._window
        self._shown = len(self._window)
        self._text = self._decode(self._window)
        return new


def _plan(decoder: dict[str, Any] | None) -> tuple[Callable[[str], bytes], int] | None:
    """How a decoder turns one token into bytes, and how many leading spaces it takes off."""
    match decoder:
        case {"type": "ByteLevel"} | {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}:
            return _byte_level(), 0
        case {"type": "Sequence", "decoders": [*steps]}:
            return _pieces(steps)
        case _:
            return None


def _pieces(steps: list[dict[str, Any]]) -> tuple[Callable[[str], bytes], int] | None:
    """The plan of the chain for SentencePiece vocabularies: replace, byte fallback, fuse, strip."""
    replacements: list[tuple[str, str]] = []
    order = [step.get("type") for step in steps]
    strip = 0
    if order[-1:] == ["Strip"]:
        last = steps.pop()
        strip = last.get("start", 0)
        order.pop()
        if last.get("content") != " " or last.get("stop") or order[-1:] != ["Fuse"]:
            return None
    while steps and steps[0].get("type") == "Replace":
        pattern = steps.pop(0)
        old = pattern.get("pattern", {}).get("String", "")
        # A longer pattern could match across two tokens, after they are fused.
        if len(old) != 1:
            return None
        replacements.append((old, pattern.get("content", "")))
    fallback = bool(steps) and steps[0].get("type") == "ByteFallback"
    if [step.get("type") for step in steps[fallback:]] not in ([], ["Fuse"]):
        return None

    def to_bytes(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        if fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.encode()

    return to_bytes, strip


def _byte_level() -> Callable[[str], bytes]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(code): code for code in printable}
    others = (code for code in range(0x100) if chr(code) not in byte_of)
    byte_of |= {chr(0x100 + index): code for index, code in enumerate(list(others))}

    def to_bytes(token: str) -> bytes:
        # A token with a character outside of the alphabet was added as plain text.
        if all(char in byte_of for char in token):
            return bytes(byte_of[char] for char in token)
        return token.encode()

    return to_bytes
