"""What a comparison leaves: a JSONL file, one line an event, so that nothing done is lost.

`setting` begins a run and says on what and with what; `answer` is one measured answer; `failure` is
a mode that did not start, or did not answer, and why.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from outrider.errors import ConfigError

__all__ = ["AnswerRecord", "FailureRecord", "Record", "Records", "SettingRecord", "read_records"]


class SettingRecord(msgspec.Struct, frozen=True, tag="setting", tag_field="kind"):
    """How a run was made.

    Attributes:
        target, draft: names of the models' files.
        cpu: the processor's name and the instruction sets that matter here.
        peers: versions by peer.
    """

    target: str
    draft: str | None
    threads: int
    max_tokens: int
    cpu: str
    peers: dict[str, list[str]]


class AnswerRecord(msgspec.Struct, frozen=True, tag="answer", tag_field="kind"):
    """One answer.

    Attributes:
        group: key of the group that was up.
        mode: its name.
        plain: the mode whose output it should repeat.
        source, prompt: file and number of the prompt.
        tokens, decoded, decode_s, ttft_s, wall_s: see `Answer`.
        prompt_tokens: as the peer counts them.
        memory_bytes: of the peer's processes, after the answer.
        load: runnable processes of the machine over the last minute, before the answer.
        token_ids: of the output, if the peer tells.
    """

    group: str
    mode: str
    plain: str | None
    source: str
    prompt: int
    tokens: int
    decoded: int
    decode_s: float
    ttft_s: float | None
    wall_s: float
    prompt_tokens: int | None
    memory_bytes: int
    load: float
    token_ids: tuple[int, ...] | None

    @property
    def speed(self) -> float | None:
        """Decode speed in tokens per second; None if all came at once."""
        return self.decoded / self.decode_s if self.decoded and self.decode_s > 0 else None


class FailureRecord(msgspec.Struct, frozen=True, tag="failure", tag_field="kind"):
    """Why a mode could not be measured; `source` and `prompt` are None if it did not start."""

    group: str
    mode: str
    reason: str
    source: str | None = None
    prompt: int | None = None


Record = SettingRecord | AnswerRecord | FailureRecord


class Records:
    """The file of a comparison, appended to as it goes on.

    Args:
        file: made if it does not exist; else this run goes on with it.
        setting: of this run.

    Raises:
        ConfigError: the file cannot be read, or was made under another setting.
    """

    def __init__(self, file: Path, setting: SettingRecord) -> None:
        self._file = file
        self.done: set[tuple[str, str, int, str]] = set()
        """Group, source, prompt and mode of every answer."""
        known = read_records(file) if file.exists() else []
        for record in known:
            if isinstance(record, SettingRecord) and record != setting:
                raise ConfigError(
                    f"{file} was begun with {_differences(record, setting)}; name "
                    "another file with --results, or set this as it was"
                )
            self._note(record)
        if not known:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
            self.add(setting)
        else:
            # What a crash left of its last line goes.
            os.truncate(file, file.read_bytes().rfind(b"\n") + 1)

    def add(self, record: Record) -> None:
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
        self._note(record)

    def _note(self, record: Record) -> None:
        if isinstance(record, AnswerRecord):
            self.done.add((record.group, record.source, record.prompt, record.mode))


def _differences(first: SettingRecord, second: SettingRecord) -> str:
    return ", ".join(
        f"{name} {getattr(first, name)} (not {getattr(second, name)})"
        for name in SettingRecord.__struct_fields__
        if getattr(first, name) != getattr(second, name)
    )


def read_records(file: Path) -> list[Record]:
    """All records of a file; a last line that was broken off is left out.

    Raises:
        ConfigError: the file cannot be read, or a line has no meaning.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    records: list[Record] = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line or number == len(lines):
            continue
        try:
            records.append(msgspec.json.decode(line, type=Record))
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"line {number} of {file} is no record of a comparison ({error})"
            ) from error
    return records
