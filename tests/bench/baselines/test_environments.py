"""Building peers' environments, without building any."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from outrider.bench.baselines import environments
from outrider.bench.baselines.environments import RECIPES, Build, Recipe, build, python_requirements
from outrider.bench.baselines.peers import PEERS
from outrider.errors import ConfigError, FetchFailed

METADATA = """Metadata-Version: 2.1
Name: engine
Requires-Dist: numpy>=2
Requires-Dist: torch==2.13.0+cpu; python_version > "3"
Requires-Dist: winsound; sys_platform == "win32"
Requires-Dist: pytest; extra == "dev"
Requires-Dist: fastapi[standard]<1,>=0.1; python_version > "3"
"""


@pytest.fixture
def pip(tmp_path: Path) -> Path:
    """A stand-in for a virtual environment's Python, which notes how it is called."""
    python = tmp_path / "engine" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "called $*"\n')
    python.chmod(0o755)
    return python


def follow(monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> None:
    monkeypatch.setattr(environments, "PEERS", {"engine": PEERS["llama.cpp"]})
    monkeypatch.setattr(environments, "RECIPES", {"engine": recipe})


def test_requirements_are_those_of_this_machine_without_what_is_there_already() -> None:
    found = python_requirements(METADATA, without=frozenset({"torch"}))
    assert found == ["numpy>=2", "fastapi[standard]<1,>=0.1"]


def test_a_recipe_is_followed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: Path
) -> None:
    finished: list[str] = []
    recipe = Recipe(("engine==1",), lambda work: finished.append(work.name))
    follow(monkeypatch, recipe)
    assert build("engine", tmp_path) == tmp_path / "engine"
    log = (tmp_path / "engine" / "build.log").read_text()
    assert "called -m pip --disable-pip-version-check --no-input install engine==1" in log
    build("engine", tmp_path)
    assert finished == ["engine"]
    follow(monkeypatch, Recipe(recipe.requirements, recipe.finish, version=2))
    build("engine", tmp_path)
    assert finished == ["engine", "engine"]


def test_a_build_that_fails_says_why_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: Path
) -> None:
    pip.write_text('#!/bin/sh\necho "no such\n  package"; exit 3\n')
    follow(monkeypatch, Recipe(("engine==1",)))
    with pytest.raises(FetchFailed, match=r"ended with 3: .*no such package\); see .*build.log"):
        build("engine", tmp_path)
    assert not (tmp_path / "engine" / "built").exists()


def test_a_tool_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="needs no-such-compiler, which cannot be run"):
        Build("engine", tmp_path).run("no-such-compiler")


@pytest.mark.parametrize("right", [True, False])
def test_only_the_pinned_file_of_a_package_is_taken(tmp_path: Path, pip: Path, right: bool) -> None:
    # pip's arguments end with `-d FOLDER REQUIREMENT`
    pip.write_text('#!/bin/sh\nshift $(($# - 2)); mkdir "$1"; printf data > "$1/engine.whl"\n')
    work = Build("engine", pip.parents[2])
    hashed = sha256(b"data" if right else b"other").hexdigest()
    if right:
        assert work.download("engine==1", "--only-binary=:all:", hashed).read_text() == "data"
    else:
        with pytest.raises(FetchFailed, match="engine==1 is not the pinned file"):
            work.download("engine==1", "--only-binary=:all:", hashed)
        assert not (work.folder / "download").exists()


def test_outrider_itself_needs_no_building(tmp_path: Path) -> None:
    build("outrider", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no peer 'abacus'; known are outrider, llama"):
        build("abacus", tmp_path)


def test_every_peer_but_outrider_has_a_recipe_of_the_versions_it_shows() -> None:
    assert set(RECIPES) == set(PEERS) - {"outrider"}
    for name in ("openvino", "transformers"):
        assert RECIPES[name].requirements == PEERS[name].versions
