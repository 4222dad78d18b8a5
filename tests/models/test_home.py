import os
import threading
import time
from pathlib import Path

import pytest

from outrider.errors import FetchFailed
from outrider.models.home import (
    move_into_place,
    one_at_a_time,
    require_space,
    staging,
)


def test_a_staging_folder_goes_however_its_block_ends(tmp_path: Path) -> None:
    folders: list[Path] = []

    def fail_within() -> None:
        with staging(tmp_path) as folder:
            folders.append(folder)
            (folder / "file").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_within()
    assert not folders[0].exists()


def test_what_was_abandoned_a_day_ago_is_swept_and_newer_work_is_kept(tmp_path: Path) -> None:
    old, new = tmp_path / "staging" / "old", tmp_path / "staging" / "new"
    old.mkdir(parents=True)
    new.mkdir()
    long_ago = time.time() - 25 * 3600
    os.utime(old, (long_ago, long_ago))
    with staging(tmp_path):
        assert not old.exists()
        assert new.exists()


def test_a_block_waits_for_another_of_the_same_name_only(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with one_at_a_time(tmp_path, "a"):
            order.append("second")

    thread = threading.Thread(target=second)
    with one_at_a_time(tmp_path, "a"):
        thread.start()
        with one_at_a_time(tmp_path, "b"):
            time.sleep(0.3)
            order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_folder_that_another_process_put_there_first_stays(tmp_path: Path) -> None:
    place, made = tmp_path / "place", tmp_path / "made"
    for folder in (place, made):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    move_into_place(made, place)
    assert (place / "name").read_text() == "place"


def test_space_is_measured_where_a_home_will_be(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "yet", 1, "this")
    with pytest.raises(FetchFailed, match="this needs"):
        require_space(tmp_path / "not" / "yet", 10**18, "this")
