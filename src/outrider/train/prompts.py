"""What the target is asked for training data: chats and texts, from files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from outrider.errors import TrainingError

__all__ = ["Prompt", "digest", "read_prompts"]

_MAX_FILE_BYTES: Final = 1024 * 1024 * 1024
_PARAGRAPHS: Final = re.compile(r"\n[ \t\r]*\n\s*")
_ROLES: Final = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Prompt:
    """One conversation to be held with the target, or one text that it is to continue.

    Attributes:
        category: what kind of prompt it is.
        opening: role and text of messages in front of the first turn, such as a system prompt.
        turns: what the user says, one after the other, each behind the answer to the one before.
        text: to be continued as it is, if there are no turns.
    """

    category: str
    opening: tuple[tuple[str, str], ...] = ()
    turns: tuple[str, ...] = ()
    text: str = ""

    @property
    def chat(self) -> bool:
        return bool(self.turns)

    @cached_property
    def id(self) -> str:
        """16 hex digits, of what is asked alone."""
        asked = json.dumps([self.opening, self.turns, self.text])
        return hashlib.sha256(asked.encode(errors="surrogatepass")).hexdigest()[:16]

    @property
    def texts(self) -> frozenset[str]:
        """What the user says, turn by turn, as it is compared: without regard to white space."""
        return frozenset(map(_plain, self.turns or (self.text,)))

    def held_out(self, share: float) -> bool:
        """Whether it is of the `share` of prompts that no draft is trained on.

        It hangs on the first turn alone, so two prompts that begin alike are never divided.
        """
        first = _plain(self.turns[0] if self.turns else self.text)
        hashed = hashlib.sha256(b"held out " + first.encode(errors="surrogatepass")).digest()
        return int.from_bytes(hashed[:8]) < share * 2**64


def read_prompts(
    files: Sequence[Path], *, limit: int | None = None, exclude: Sequence[Path] = ()
) -> list[Prompt]:
    """The prompts of all files, each once, in an order that only their contents decide.

    The order mixes files and categories, so whatever part of it is answered stands for all.

    Args:
        files: JSONL, or plain text (`.txt`) of paragraphs to be continued.
        limit: so many of each file, evenly spread; None takes all.
        exclude: files likewise; a prompt that has a turn in common with any of theirs is dropped.

    Raises:
        TrainingError: a file cannot be read or has no prompts, a line is no prompt, or nothing is
            left.
    """
    unwanted = frozenset[str]().union(*(each.texts for file in exclude for each in _prompts(file)))
    found: dict[str, Prompt] = {}
    for file in dict.fromkeys(files):
        prompts = [each for each in _prompts(file) if not each.texts & unwanted]
        step = max(1, len(prompts) // limit) if limit else 1
        for prompt in prompts[::step][:limit]:
            found.setdefault(prompt.id, prompt)
    if not found:
        raise TrainingError("every prompt is excluded; leave one of the --exclude files out")
    return [found[key] for key in sorted(found, key=_place)]


def digest(prompts: Iterable[Prompt]) -> str:
    """sha256 over the prompts in their order, categories included, in hex."""
    hashed = hashlib.sha256()
    for prompt in prompts:
        hashed.update(f"{prompt.id} {prompt.category}\n".encode())
    return hashed.hexdigest()


def _place(key: str) -> bytes:
    return hashlib.sha256(b"order " + key.encode()).digest()


def _plain(text: str) -> str:
    return " ".join(text.split())


def _prompts(file: Path) -> list[Prompt]:
    content = _read(file)
    made = _paragraphs if file.suffix == ".txt" else _lines
    if not (prompts := list(made(file, content))):
        raise TrainingError(
            f'{file} has no prompts; write one a line: {{"turns": ["a question"]}}, or paragraphs '
            "into a .txt file"
        )
    return prompts


def _read(file: Path) -> str:
    try:
        if (size := file.stat().st_size) > _MAX_FILE_BYTES:
            raise TrainingError(f"{file} has {size} bytes, over {_MAX_FILE_BYTES}; split it")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"cannot read prompts {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TrainingError(f"{file} is no UTF-8 text: {error}; convert it first") from None


def _paragraphs(file: Path, content: str) -> Iterator[Prompt]:
    for paragraph in _PARAGRAPHS.split(content.strip()):
        if text := paragraph.strip():
            yield Prompt(file.stem, text=text)


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Row(msgspec.Struct):
    turns: list[str] | None = None
    messages: list[_Message] | None = None
    prompt: str | None = None
    text: str | None = None
    category: str | None = None


def _lines(file: Path, content: str) -> Iterator[Prompt]:
    # Not `splitlines`: it also splits at characters that JSON leaves as they are.
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of {file}"
        try:
            row = msgspec.json.decode(line, type=_Row)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise TrainingError(f"{where} is no prompt: {error}") from None
        yield _prompt(row, row.category or file.stem, where)


def _prompt(row: _Row, category: str, where: str) -> Prompt:
    asked = [each for each in (row.turns, row.messages, row.prompt, row.text) if each is not None]
    if len(asked) != 1:
        raise TrainingError(
            f"{where} needs one of turns (a list of texts), messages, prompt or text, and has "
            f"{len(asked)} of them"
        )
    if row.messages is not None:
        return _recorded(row.messages, category, where)
    prompt = Prompt(category, turns=tuple(row.turns or ()), text=row.prompt or row.text or "")
    if not all(prompt.texts):
        raise TrainingError(f"{where} asks an empty text; write something, or remove the line")
    return prompt


def _recorded(messages: Sequence[_Message], category: str, where: str) -> Prompt:
    """A chat up to its last user message; what was answered to that, the target answers anew."""
    said = [(message.role, _content(message, where)) for message in messages]
    while said and said[-1][0] == "assistant":
        said.pop()
    if not said or said[-1][0] != "user" or not said[-1][1].strip():
        raise TrainingError(f"{where} has no user message to answer at the end of its messages")
    return Prompt(category, opening=tuple(said[:-1]), turns=(said[-1][1],))


def _content(message: _Message, where: str) -> str:
    if message.role not in _ROLES:
        raise TrainingError(
            f"{where} has a message of role {message.role[:40]!r}; use one of {', '.join(_ROLES)}, "
            "or remove the line"
        )
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    if not all(part.type == "text" and part.text is not None for part in parts):
        raise TrainingError(f"{where} has a message that is not all text; remove the line")
    return "\n".join(part.text or "" for part in parts)
