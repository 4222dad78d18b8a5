"""The comparison itself: every prompt through every mode, one engine at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from outrider.bench.baselines.engine import Engine, Machine, open_engine
from outrider.bench.baselines.groups import Group, rotated
from outrider.bench.baselines.modes import Comparison, fill
from outrider.bench.baselines.processes import Watchdog
from outrider.bench.baselines.prompts import EncodedPrompt
from outrider.bench.baselines.records import AnswerRecord, FailureRecord, Records
from outrider.errors import ConfigError, TargetFailed

__all__ = ["compare"]

# Any text will do that no prompt holds, so that nothing is learnt about them in advance.
_WARM_UP_IDS: Final = tuple(range(100, 164))
_WARM_UP_TOKENS: Final = 24
_DYING_S: Final = 0.5


def compare(
    comparison: Comparison,
    groups: Sequence[Group],
    prompts: Sequence[EncodedPrompt],
    machine: Machine,
    records: Records,
    say: Callable[[str], None],
) -> None:
    """Measure what `records` does not hold yet, group by group.

    All peers are ended however this ends. A mode that cannot run leaves its reason in the records.

    Args:
        comparison: the modes.
        groups: which of them run together.
        prompts: at least one.
        machine: where and how.
        records: takes what is measured.
        say: is told what is going on, a line at a time.
    """
    with Watchdog() as watchdog:
        for number, group in enumerate(groups, 1):
            work = _Work(comparison, group, machine, records, say)
            if any(work.missing(prompt) for prompt in prompts):
                say(f"group {number} of {len(groups)}: {', '.join(group.modes)}")
                work.run(prompts, watchdog)


class _Work:
    """One group's work."""

    def __init__(
        self,
        comparison: Comparison,
        group: Group,
        machine: Machine,
        records: Records,
        say: Callable[[str], None],
    ) -> None:
        self._comparison = comparison
        self._group = group
        self._machine = machine
        self._records = records
        self._say = say
        self._engines: dict[str, Engine] = {}
        self._refused: set[str] = set()

    def missing(self, prompt: EncodedPrompt) -> list[str]:
        """Modes that have not answered a prompt yet, and may."""
        key, done = self._group.key, self._records.done
        return [
            mode
            for mode in self._group.modes
            if mode not in self._refused and (key, prompt.source, prompt.index, mode) not in done
        ]

    def run(self, prompts: Sequence[EncodedPrompt], watchdog: Watchdog) -> None:
        needed = {mode for prompt in prompts for mode in self.missing(prompt)}
        with ExitStack() as ends:
            for name in dict.fromkeys(
                self._comparison.modes[mode].process for mode in self._group.modes if mode in needed
            ):
                modes = [mode for mode in needed if self._comparison.modes[mode].process == name]
                self._start(name, sorted(modes), watchdog, ends)
            for turn, prompt in enumerate(prompts):
                missing = self.missing(prompt)
                for mode in rotated(self._group.modes, turn):
                    engine = self._engines.get(self._comparison.modes[mode].process)
                    if mode in missing and engine is not None:
                        self._measure(mode, engine, prompt)

    def _start(self, name: str, modes: Sequence[str], watchdog: Watchdog, ends: ExitStack) -> None:
        """Bring a process up, warm it with each of its modes, and stop it for the time being."""
        began = time.monotonic()
        engine: Engine | None = None
        try:
            kind = self._comparison.processes[name]
            engine = open_engine(name, kind, self._machine, watchdog)
            ends.callback(engine.process.end)
            engine.link.wait_until_ready(self._machine.start_s)
            for mode in modes:
                self._warm_up(mode, engine)
            engine.process.freeze()
        except (TargetFailed, ConfigError) as error:
            reason = str(error)
            if engine is not None:
                reason += f"; it printed: {engine.process.last_words()}"
                engine.process.end()
            self._fail(modes, reason)
        else:
            self._engines[name] = engine
            self._say(f"  {name} is up after {time.monotonic() - began:.0f} s")

    def _warm_up(self, mode: str, engine: Engine) -> None:
        """One short answer, so that memory is in place. Raises if it cost the peer its life."""
        try:
            engine.link.ask(_WARM_UP_IDS, _WARM_UP_TOKENS, self._request(mode))
        except (TargetFailed, ConfigError) as error:
            if engine.process.ends_within(_DYING_S):
                raise
            self._refused.add(mode)
            self._fail([mode], str(error))

    def _request(self, mode: str) -> dict[str, Any]:
        request: dict[str, Any] = fill(self._comparison.modes[mode].request, self._machine.values)
        return request

    def _measure(self, mode: str, engine: Engine, prompt: EncodedPrompt) -> None:
        load = os.getloadavg()[0]
        engine.process.thaw()
        try:
            answer = engine.link.ask(
                prompt.token_ids, self._machine.max_tokens, self._request(mode)
            )
            memory = engine.process.resident_bytes()
            engine.process.freeze()
        except TargetFailed as error:
            self._lose(mode, engine, error, prompt)
            return
        record = AnswerRecord(
            group=self._group.key,
            mode=mode,
            plain=self._comparison.modes[mode].plain,
            source=prompt.source,
            prompt=prompt.index,
            tokens=answer.tokens,
            decoded=answer.decoded,
            decode_s=answer.decode_s,
            ttft_s=answer.ttft_s,
            wall_s=answer.wall_s,
            prompt_tokens=answer.prompt_tokens,
            memory_bytes=memory,
            load=load,
            token_ids=answer.token_ids,
        )
        self._records.add(record)
        speed = "-" if record.speed is None else f"{record.speed:.1f}"
        self._say(f"  {prompt.source} {prompt.index}: {mode}: {speed} tokens/s")

    def _lose(self, mode: str, engine: Engine, error: TargetFailed, prompt: EncodedPrompt) -> None:
        """Note a failed answer. A peer that died or hangs is not asked again in this group."""
        name = self._comparison.modes[mode].process
        reason = str(error)
        hangs = isinstance(error.__cause__, TimeoutError)
        usable = not hangs and not engine.process.ends_within(_DYING_S)
        if usable:
            try:
                engine.process.freeze()
            except TargetFailed:
                usable = False
        if not usable:
            reason += f"; it printed: {engine.process.last_words()}"
            engine.process.end()
            del self._engines[name]
        self._fail([mode], reason, prompt)

    def _fail(self, modes: Sequence[str], reason: str, prompt: EncodedPrompt | None = None) -> None:
        source, index = (None, None) if prompt is None else (prompt.source, prompt.index)
        for mode in modes:
            self._records.add(FailureRecord(self._group.key, mode, reason, source, index))
            self._say(f"  {mode} FAILED: {reason}")
