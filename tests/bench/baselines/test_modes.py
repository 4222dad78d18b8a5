"""What is compared, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.bench.baselines.modes import DEFAULT_MODES, fill, load_modes
from outrider.bench.baselines.peers import PEERS
from outrider.errors import ConfigError

GOOD = """
[processes.one]
peer = "llama.cpp"
memory_gb = 1
[modes."A plain"]
process = "one"
[modes."A fast"]
process = "one"
plain = "A plain"
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "modes.toml"
    file.write_text(text)
    return file


def test_the_default_modes_ask_every_peer_plainly_and_speculatively() -> None:
    comparison = load_modes(DEFAULT_MODES)
    assert set(comparison.peers) == set(PEERS)
    for peer in PEERS:
        speculates = {
            mode.plain is not None
            for mode in comparison.modes.values()
            if comparison.processes[mode.process].peer == peer
        }
        assert speculates == {False, True}, peer


def test_the_default_modes_name_nothing_that_a_run_does_not_have() -> None:
    names = ("target", "draft", "draft_name", "target_folder", "draft_folder")
    names += ("threads", "context", "folder", "port", "workers", "stop")
    values = {name: "x" for name in names}
    comparison = load_modes(DEFAULT_MODES)
    for process in comparison.processes.values():
        peer = PEERS[process.peer]
        filled = fill([*peer.command, *process.arguments, dict(peer.environment)], values)
        assert "$" not in str(filled)
    for mode in comparison.modes.values():
        assert "$" not in str(fill(mode.request, values))


def test_modes_are_chosen_by_part_of_their_name(tmp_path: Path) -> None:
    assert list(load_modes(write(tmp_path, GOOD), ["FAST"]).modes) == ["A fast"]
    with pytest.raises(ConfigError, match=r"no mode of .* has slow in its name; there are A plain"):
        load_modes(write(tmp_path, GOOD), ["slow"])


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"llama.cpp"', '"abacus"', "peer 'abacus'; known are outrider"),
        ('process = "one"', 'process = "two"', "process 'two'"),
        ('plain = "A plain"', 'plain = "B"', "repeats 'B'"),
        ("memory_gb = 1", "memory_gb = 1\ncolour = 2", "unknown field `colour`"),
        ("memory_gb = 1", 'memory_gb = "much"', "no meaning"),
        ("[modes", "[[modes", "no meaning"),
    ],
)
def test_a_file_without_meaning_is_refused(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_modes(write(tmp_path, GOOD.replace(old, new)))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the modes file .*: No such file"):
        load_modes(tmp_path / "none.toml")


def test_names_are_filled_in_at_any_depth_and_braces_left_alone() -> None:
    value = ["-m", '{"model": "$draft"}', {"a": {"b": ["$draft", 3, True]}}]
    assert fill(value, {"draft": "d.gguf"}) == [
        "-m",
        '{"model": "d.gguf"}',
        {"a": {"b": ["d.gguf", 3, True]}},
    ]


def test_a_name_that_the_run_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'\$drafft' names something .* known are \$draft"):
        fill("$drafft", {"draft": "d"})
