import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from outrider.errors import FetchFailed, UnknownModel
from outrider.models import hub
from outrider.models.hub import fetch_hub, is_hub_id


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed_endpoint() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*arguments: object) -> None:
        return None

    monkeypatch.setattr(hub, "_unreachable", answer)


Downloads = Callable[[BaseException], list[dict[str, Any]]]


@pytest.fixture
def download_fails(monkeypatch: pytest.MonkeyPatch, reachable: None) -> Downloads:
    """Have the client fail with an error; gives the options of every download asked for."""

    def arrange(error: BaseException) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def snapshot_download(repo_id: str, **options: Any) -> str:
            if options.get("local_files_only"):
                raise errors.LocalEntryNotFoundError("not here")
            asked.append(options)
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return asked

    return arrange


def http_error(kind: type[Exception], message: str) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    return error


def write_snapshot(cache: Path, files: dict[str, str], repo_id: str = "org/name") -> Path:
    commit = "0" * 40
    repository = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for name, content in files.items():
        (snapshot / name).write_text(content)
    return snapshot


@pytest.mark.parametrize("kind", ["silent_endpoint", "closed_endpoint"])
def test_a_hub_that_cannot_be_reached_is_given_up_within_three_seconds(
    kind: str, request: pytest.FixtureRequest
) -> None:
    endpoint = request.getfixturevalue(kind)
    start = time.monotonic()
    with pytest.raises(FetchFailed, match="cannot be reached") as caught:
        fetch_hub("org/name", endpoint=endpoint)
    assert time.monotonic() - start < 3
    assert endpoint in str(caught.value)
    assert "HF_ENDPOINT" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["silent_endpoint", "closed_endpoint"])
def test_the_endpoint_is_the_clients_and_a_fresh_process_gives_up_in_time(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    program = (
        "import time; import huggingface_hub.utils; start = time.monotonic()\n"
        "from outrider.models import fetch_hub\n"
        "from outrider.errors import FetchFailed\n"
        "try: fetch_hub('org/name')\n"
        "except FetchFailed as error: print(time.monotonic() - start, error)\n"
    )
    endpoint = request.getfixturevalue(kind)
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    seconds, _, message = done.stdout.partition(" ")
    assert float(seconds) < 8  # 3 s, and as much for a busy machine
    assert endpoint in message


def test_a_hub_that_answers_anything_counts_as_reached() -> None:
    def head(address: str, timeout: float) -> None:
        assert timeout == 1.0

    client = SimpleNamespace(utils=SimpleNamespace(get_session=lambda: SimpleNamespace(head=head)))
    assert hub._unreachable(client, "http://hub", 1.0) is None


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch, silent_endpoint: str) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    start = time.monotonic()
    with pytest.raises(FetchFailed, match="HF_HUB_OFFLINE"):
        fetch_hub("org/name", endpoint=silent_endpoint)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "tokenizer.model"])
def test_a_complete_snapshot_is_used_without_asking_the_hub(
    empty_cache: Path, silent_endpoint: str, tokenizer: str
) -> None:
    files = {"config.json": "{}", tokenizer: "{}", "model.safetensors": ""}
    snapshot = write_snapshot(empty_cache, files)
    start = time.monotonic()
    assert fetch_hub("org/name", endpoint=silent_endpoint).samefile(snapshot)
    assert time.monotonic() - start < 1


INDEX = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
SHARDED = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors.index.json": INDEX}


def test_a_snapshot_in_shards_is_complete_with_all_of_them(
    empty_cache: Path, closed_endpoint: str
) -> None:
    files = SHARDED | {"one.safetensors": "", "two.safetensors": ""}
    snapshot = write_snapshot(empty_cache, files)
    assert fetch_hub("org/name", endpoint=closed_endpoint).samefile(snapshot)


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "{}"},
        {"config.json": "{}", "tokenizer.json": "{}"},
        {"tokenizer.json": "{}", "model.safetensors": ""},
        SHARDED | {"one.safetensors": ""},
        SHARDED | {"model.safetensors.index.json": "not json"},
        SHARDED | {"model.safetensors.index.json": "[]"},
    ],
)
def test_a_snapshot_cut_short_is_not_used(
    empty_cache: Path, closed_endpoint: str, files: dict[str, str]
) -> None:
    write_snapshot(empty_cache, files)
    with pytest.raises(FetchFailed, match="cannot be reached"):
        fetch_hub("org/name", endpoint=closed_endpoint)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (http_error(errors.GatedRepoError, "403"), FetchFailed, "gated"),
        (http_error(errors.RepositoryNotFoundError, "404"), UnknownModel, "no model 'org/name'"),
        (http_error(errors.HfHubHTTPError, "503 busy"), FetchFailed, "503 busy"),
        (errors.LocalEntryNotFoundError("lost\nconnection"), FetchFailed, "lost connection"),
        (OSError(errno.ENOSPC, "No space left"), FetchFailed, "is full"),
        (OSError(errno.EIO, "bad disk"), FetchFailed, "bad disk"),
    ],
)
def test_what_the_hub_answers_is_told_in_one_line(
    download_fails: Downloads, error: Exception, kind: type[Exception], words: str
) -> None:
    download_fails(error)
    with pytest.raises(kind, match=words) as caught:
        fetch_hub("org/name")
    assert "org/name" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_safetensors_and_text_files_are_asked_for(download_fails: Downloads) -> None:
    asked = download_fails(OSError("stop"))
    with pytest.raises(FetchFailed):
        fetch_hub("org/name")
    (options,) = asked
    files = ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"]
    others = [
        "pytorch_model.bin",
        "modeling_custom.py",
        "model.gguf",
        "onnx/model.json",
        "consolidated.safetensors",
        "training_args.pt",
    ]
    kept = huggingface_hub.utils.filter_repo_objects(
        files + others,
        allow_patterns=options["allow_patterns"],
        ignore_patterns=options["ignore_patterns"],
    )
    assert list(kept) == files


def test_without_the_hubs_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FetchFailed, match=r"outrider\[engine\]"):
        fetch_hub("org/name")


@pytest.mark.parametrize("spec", ["org/name", "HuggingFaceTB/SmolLM2-360M-Instruct", "a/b_c.d"])
def test_hub_ids_are_recognised(spec: str) -> None:
    assert is_hub_id(spec)


@pytest.mark.parametrize(
    "spec", ["name", "a/b/c", "/a/b", "./a", "../b", "~/a", "a/../b", "a b/c", "a/", "a/b\n"]
)
def test_paths_and_names_are_no_hub_ids(spec: str) -> None:
    assert not is_hub_id(spec)
