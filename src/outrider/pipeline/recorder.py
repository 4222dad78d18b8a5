"""Acceptance traces of live traffic, in the format that `outrider simulate` reads."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from outrider.config import SpeculationSettings
from outrider.drafters import PREDICTION
from outrider.errors import ConfigError
from outrider.pipeline.session import Session

__all__ = ["AcceptanceRecorder", "create_recorder"]

_WAITING: Final = 1024
"""Outputs that may wait to be written; where the disk is slower than that, some are left out."""

_LOOK_S: Final = 0.2
"""So often the thread looks whether it is to end, while nothing waits."""

_PATIENCE_S: Final = 10.0
"""So long the end waits for what is still to be written."""

_log = structlog.get_logger("outrider.recorder")

_Output = list[dict[str, object]]


class AcceptanceRecorder:
    """Appends what is known of the acceptance of outputs to a file, in a thread of its own.

    What it writes are counts, and ids of its own: nothing of what was said. Serving never waits for
    it. It stops, and says so once, where the file is full or cannot be written; a line that was
    begun is taken back.

    Args:
        file: appended to; made if it is not there.
        max_bytes: size that the file is not grown beyond.
        most: tokens that a drafter is asked for at most.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, file: Path, *, max_bytes: int, most: int) -> None:
        try:
            self._stream: BinaryIO = file.open("ab", buffering=0)
            self._size = self._stream.seek(0, os.SEEK_END)
        except OSError as error:
            raise ConfigError(
                f"cannot record acceptance in {file}: {error.strerror}; name a file that can be "
                "written with --record-acceptance"
            ) from None
        self._file = file
        self._max_bytes = max_bytes
        self._most = most
        self._outputs: queue.Queue[_Output] = queue.Queue(_WAITING)
        self._closing = threading.Event()
        self._ended = False
        self._left_out = 0
        self._count = 0
        self._prefix = os.urandom(4).hex()
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._thread.start()

    def record(self, session: Session) -> None:
        """Enter what is known of a session that ended. Never blocks, never fails."""
        log = session.log
        if log is None or session.stats.drafter is None or self._ended:
            return
        stretches = log.stretches(session.output_length, self._most)
        if not stretches:
            return
        prompt_tokens = len(session.opening.prompt_ids)
        drafter = PREDICTION if session.prediction else session.stats.drafter
        self._count += 1
        output: _Output = [
            {
                "id": f"{self._prefix}-{self._count}-{number}",
                "drafter": drafter,
                "prompt_tokens": prompt_tokens,
                "accepted": accepted,
                "drafted": drafted,
            }
            for number, (accepted, drafted) in enumerate(stretches)
        ]
        try:
            self._outputs.put_nowait(output)
        except queue.Full:
            self._left_out += 1

    async def close(self) -> None:
        """Write what waits, and close the file."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._closing.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():  # a disk that hangs must not keep the server
            _log.warning("acceptance_lost", file=str(self._file), reason="the disk hangs")
            return
        self._stream.close()
        if self._left_out:
            _log.warning("acceptance_left_out", outputs=self._left_out, reason="slow disk")
            self._left_out = 0

    def _write_all(self) -> None:
        while not (self._closing.is_set() and self._outputs.empty()):
            try:
                output = self._outputs.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if not self._ended:
                lines = [json.dumps(trace, separators=(",", ":")) for trace in output]
                self._write("".join(f"{line}\n" for line in lines).encode())

    def _write(self, text: bytes) -> None:
        if self._size + len(text) > self._max_bytes:
            self._end(f"it has reached its limit of {self._max_bytes} bytes")
            return
        try:
            written = self._stream.write(text)
            if written != len(text):
                raise OSError(0, "it was written in part")
            self._size += len(text)
        except OSError as error:
            self._take_back()
            self._end(error.strerror or str(error))

    def _take_back(self) -> None:
        """Cut off a line that was begun, since no reader could make sense of it."""
        try:
            self._stream.truncate(self._size)
        except OSError as error:  # a device, or a disk that is gone
            _log.warning("acceptance_cut", file=str(self._file), reason=error.strerror)

    def _end(self, reason: str) -> None:
        self._ended = True
        _log.warning("acceptance_recording_ended", file=str(self._file), reason=reason)


def create_recorder(settings: SpeculationSettings) -> AcceptanceRecorder | None:
    """The recorder that the settings ask for. Raises `ConfigError` if its file cannot be opened."""
    if settings.record_acceptance is None:
        return None
    return AcceptanceRecorder(
        settings.record_acceptance,
        max_bytes=settings.record_limit,
        most=settings.max_lookahead,
    )
