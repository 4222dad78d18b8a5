"""The comparison itself, over peers that compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from outrider.bench.baselines.engine import Machine
from outrider.bench.baselines.groups import Group, make_groups
from outrider.bench.baselines.modes import Comparison, Mode, Process
from outrider.bench.baselines.processes import PeerProcess
from outrider.bench.baselines.prompts import EncodedPrompt
from outrider.bench.baselines.records import AnswerRecord, FailureRecord, Records, read_records
from outrider.bench.baselines.run import compare
from tests.bench.baselines.fakes import FAKE_PEERS
from tests.bench.baselines.making import SETTING

EVEN = EncodedPrompt("set", 0, (2, 3, 4, 5, 6))
ODD = EncodedPrompt("set", 1, (7, 8, 9))


class Run:
    """A comparison over fakes, and what it left."""

    def __init__(self, folder: Path, processes: dict[str, Process], modes: dict[str, Mode]) -> None:
        self.file = folder / "results.jsonl"
        self.comparison = Comparison(processes, modes)
        self.machine = Machine(
            folder / "peers", {"threads": "1"}, 4, start_s=20.0, answer_s=1.0, peers=FAKE_PEERS
        )
        self.said: list[str] = []

    def go(
        self,
        prompts: Sequence[EncodedPrompt] = (EVEN, ODD),
        say: Callable[[str], None] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        self.said = []
        compare(
            self.comparison,
            groups or make_groups(self.comparison, 9),
            prompts,
            self.machine,
            Records(self.file, SETTING),
            say or self.said.append,
        )

    @property
    def answers(self) -> list[AnswerRecord]:
        return [record for record in read_records(self.file) if isinstance(record, AnswerRecord)]

    @property
    def failures(self) -> list[FailureRecord]:
        return [record for record in read_records(self.file) if isinstance(record, FailureRecord)]


def three(folder: Path) -> Run:
    """One mode of each kind of peer."""
    names = {"L": "llama", "O": "openai", "W": "worker"}
    return Run(
        folder,
        {name: Process(peer, 1) for name, peer in names.items()},
        {name: Mode(name) for name in names},
    )


def test_every_mode_answers_every_prompt_in_an_order_that_rotates(tmp_path: Path) -> None:
    run = three(tmp_path)
    run.go()
    assert [(r.prompt, r.mode) for r in run.answers] == [
        *((0, "L"), (0, "O"), (0, "W")),
        *((1, "O"), (1, "W"), (1, "L")),
    ]
    assert {r.token_ids for r in run.answers if r.prompt == 0} == {(6, 5, 4, 3)}
    assert all(r.tokens == 4 - r.prompt for r in run.answers)
    assert all(r.memory_bytes > 1_000_000 and r.speed for r in run.answers)
    assert run.failures == []


def test_between_answers_every_peer_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[PeerProcess] = []
    begin = PeerProcess.__init__

    def noted(self: PeerProcess, *arguments: object, **options: object) -> None:
        begin(self, *arguments, **options)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(PeerProcess, "__init__", noted)
    states: list[str] = []

    def look(line: str) -> None:
        if "tokens/s" in line:
            for process in started:
                stat = Path(f"/proc/{process.group}/stat").read_text()
                states.append(stat.rpartition(")")[2].split()[0])

    three(tmp_path).go(say=look)
    assert states == ["T"] * 18  # 3 peers after 6 answers
    assert not any(process.alive for process in started)


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    run = three(tmp_path)
    run.go([EVEN])
    run.go([EVEN])
    assert run.said == []
    run.go([EVEN, ODD])
    assert [r.prompt for r in run.answers] == [0, 0, 0, 1, 1, 1]


def test_after_an_interruption_nothing_is_lost_and_no_peer_left(tmp_path: Path) -> None:
    run = three(tmp_path)

    def interrupt(line: str) -> None:
        if "set 0: O" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.go(say=interrupt)
    assert [r.mode for r in run.answers] == ["L", "O"]
    run.go()
    assert sorted((r.prompt, r.mode) for r in run.answers) == [
        (prompt, mode) for prompt in (0, 1) for mode in "LOW"
    ]


def test_a_peer_that_does_not_start_leaves_its_reason_and_the_others_run(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        {"bad": Process("openai", 1, ("no-start",)), "good": Process("llama", 1)},
        {"A": Mode("bad"), "B": Mode("bad"), "C": Mode("good")},
    )
    run.go([EVEN])
    assert [r.mode for r in run.answers] == ["C"]
    assert [(f.mode, f.source) for f in run.failures] == [("A", None), ("B", None)]
    assert "ended while starting; it printed: this processor will not do" in run.failures[0].reason


def test_a_mode_that_is_refused_leaves_the_others_of_its_process(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        {"p": Process("openai", 1)},
        {"A": Mode("p"), "B": Mode("p", {"unknown": 1}), "C": Mode("p", {"x": "$lacking"})},
    )
    run.go()
    assert [r.mode for r in run.answers] == ["A", "A"]
    assert [f.mode for f in run.failures] == ["B", "C"]
    assert "a field unknown" in run.failures[0].reason
    assert "'$lacking' names something" in run.failures[1].reason


def test_one_refused_prompt_does_not_cost_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path, {"p": Process("llama", 1, ("refuse-odd",))}, {"A": Mode("p")})
    run.go([ODD, EVEN])
    assert [r.prompt for r in run.answers] == [0]
    assert [(f.source, f.prompt) for f in run.failures] == [("set", 1)]


@pytest.mark.parametrize("do", ["die", "hang"])
def test_a_peer_that_dies_or_hangs_is_not_asked_again(
    tmp_path: Path, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.bench.baselines.run._Work._warm_up", lambda *_: None)
    run = Run(
        tmp_path,
        {"p": Process("worker", 1), "q": Process("llama", 1)},
        {"A": Mode("p", {"do": do}), "B": Mode("q")},
    )
    run.go()
    assert [r.mode for r in run.answers] == ["B", "B"]
    (failure,) = run.failures
    assert (failure.mode, failure.prompt) == ("A", 0)
    assert "it printed: a library's banner" in failure.reason


def test_anchors_run_in_every_group(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        {"p": Process("llama", 4), "q": Process("llama", 4), "r": Process("llama", 1)},
        {"A": Mode("p"), "B": Mode("q"), "R": Mode("r", anchor=True)},
    )
    groups = make_groups(run.comparison, 6)
    run.go([EVEN], groups=groups)
    asked = {(r.group, r.mode) for r in run.answers}
    first, second = (group.key for group in groups)
    assert asked == {(first, "A"), (first, "R"), (second, "B"), (second, "R")}
