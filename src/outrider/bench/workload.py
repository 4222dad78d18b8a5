"""What is asked: prompts from JSONL files, and the conversations that they open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from outrider.errors import ConfigError

__all__ = ["Prompt", "Question", "read_prompts"]

_MAX_FILE_BYTES: Final = 256 * 1024 * 1024
_NAME_CHARS: Final = 40
_WARM_UP: Final = "(Warm-up.) "


@dataclass(frozen=True, slots=True)
class Question:
    """What one request asks.

    Attributes:
        messages: of a chat, in its API's form; None for a plain completion.
        text: that a plain completion goes on with.
    """

    messages: tuple[dict[str, str], ...] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a JSONL file.

    Attributes:
        source: the file's name without its ending.
        index: the line's place among those that hold something, from 0.
        category: as the line says, else `source`.
        turns: what the user says, one after the other, each behind the answer to the one before.
        chat: False for a text that is to be continued, which is the only turn.
    """

    source: str
    index: int
    category: str
    turns: tuple[str, ...]
    chat: bool = True

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]

    def question(self, answers: Sequence[str] = ()) -> Question:
        """What is asked behind these answers to the first turns."""
        if not self.chat:
            return Question(text=self.text)
        messages = []
        for said, answer in zip(self.turns, answers, strict=False):
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": self.turns[len(answers)]})
        return Question(messages=tuple(messages))

    def warm_up(self) -> Question:
        """The first question, begun otherwise, so that no cache knows the real one afterwards."""
        if not self.chat:
            return self.question()
        return Question(messages=({"role": "user", "content": _WARM_UP + self.text},))


class _Row(msgspec.Struct):
    turns: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    prompt: str | None = None
    category: str | None = None


def read_prompts(
    files: Sequence[Path], limit: int | None = None, turns: int | None = None
) -> list[Prompt]:
    """The prompts of all files.

    Each line is an object with `turns`, a list of texts, or `prompt`, a text to continue, and
    perhaps a `category`. Other fields are ignored.

    Args:
        files: JSONL.
        limit: so many of each file, evenly spread; None takes all.
        turns: only the first so many of each prompt; None takes all.

    Raises:
        ConfigError: a file cannot be read, or a line is no prompt.
    """
    prompts = []
    for file in dict.fromkeys(files):
        lines = [(n, line) for n, line in enumerate(_read(file).splitlines(), 1) if line.strip()]
        if not lines:
            raise ConfigError(f'{file} has no prompts; write one a line: {{"turns": ["a text"]}}')
        step = max(1, len(lines) // limit) if limit else 1
        for index, (number, line) in list(enumerate(lines))[::step][:limit]:
            prompts.append(_prompt(file, index, number, line, turns))
    return prompts


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read prompts {file}: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"prompts {file} has over {_MAX_FILE_BYTES} bytes; use a shorter one")
    return content


def _prompt(file: Path, index: int, number: int, line: bytes, turns: int | None) -> Prompt:
    where = f"line {number} of {file}"
    try:
        row = msgspec.json.decode(line, type=_Row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} is no prompt: {error}") from None
    if (row.turns is None) == (row.prompt is None):
        raise ConfigError(f"{where} needs either turns (a list of texts) or prompt (a text)")
    said = tuple(row.turns[:turns]) if row.turns is not None else (row.prompt or "",)
    source, category = _name(file.stem), _name(row.category or file.stem)
    return Prompt(source, index, category, said, chat=row.turns is not None)


def _name(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_NAME_CHARS]
