"""Bringing a model of the Hugging Face hub here, with the hub's own client and cache.

Only weights in safetensors form and text files are fetched, and none of them is run: no pickles, no
code of the repository.
"""

from __future__ import annotations

import errno
import importlib
import json
import re
import threading
from pathlib import Path
from typing import Any, Final

from outrider.errors import FetchFailed, UnknownModel

__all__ = ["fetch_hub", "is_hub_id"]

_WANTED: Final = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
# Folders hold other formats; `consolidated` is a second copy of the weights under other names.
_UNWANTED: Final = ["*/*", "consolidated*"]

_REACH_S: Final = 2.0

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_hub_id(spec: str) -> bool:
    """Whether a text has the form of a hub id, `org/name`."""
    return _HUB_ID.fullmatch(spec) is not None and ".." not in spec and "--" not in spec


def fetch_hub(repo_id: str, *, endpoint: str | None = None, reach_s: float = _REACH_S) -> Path:
    """The snapshot folder of a hub repository.

    A complete snapshot in the hub's cache is used without asking the hub, so a model does not
    change under a running service and works offline; delete it from the cache to fetch it anew. The
    client's own progress bars go to stderr.

    Args:
        repo_id: `org/name`.
        endpoint: the hub's address; by default the client's, which reads HF_ENDPOINT.
        reach_s: seconds after which a hub that has not answered is given up.

    Raises:
        FetchFailed: the client is not installed, the hub cannot be reached, the repository wants a
            login, or the disk is full.
        UnknownModel: the hub has no such repository.
    """
    try:
        client = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise FetchFailed(
            f"fetching {repo_id} needs huggingface-hub; run `pip install 'outrider[engine]'`"
        ) from error
    cached = _cached(client, repo_id)
    if cached is not None:
        return cached
    address = endpoint or client.constants.ENDPOINT
    if client.constants.HF_HUB_OFFLINE:
        raise FetchFailed(
            f"{repo_id} is not in the hub's cache and HF_HUB_OFFLINE is set; unset it, or name a "
            "model on disk"
        )
    reason = _unreachable(client, address, reach_s)
    if reason is not None:
        raise FetchFailed(
            f"{repo_id} is not in the hub's cache and the hub at {address} cannot be reached "
            f"({reason}); check the network, set HF_ENDPOINT to a mirror, or name a model on disk"
        )
    return _download(client, repo_id, address)


def _cached(client: Any, repo_id: str) -> Path | None:
    try:
        folder = Path(client.snapshot_download(repo_id, local_files_only=True))
    except (client.errors.LocalEntryNotFoundError, client.errors.HFValidationError, OSError):
        return None
    return folder if _complete(folder) else None


def _complete(folder: Path) -> bool:
    """Whether a snapshot, which may have been cut short, has all that we need."""
    has_tokenizer = (folder / "tokenizer.json").exists() or (folder / "tokenizer.model").exists()
    if not (folder / "config.json").exists() or not has_tokenizer:
        return False
    if (folder / "model.safetensors").exists():
        return True
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return False
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((folder / shard).exists() for shard in shards)


def _unreachable(client: Any, address: str, reach_s: float) -> str | None:
    """Why the hub does not answer within `reach_s` seconds, or None if it does, whatever it says.

    The client's own session is asked, so that its proxies and certificates count. In a thread,
    since looking up a name can take longer than any timeout.
    """
    answer: list[str | None] = []

    def ask() -> None:
        try:
            client.utils.get_session().head(address, timeout=reach_s)
        except (
            Exception
        ) as error:  # the client changed its HTTP library, and errors, between versions
            answer.append(" ".join(str(error).split())[:200] or type(error).__name__)
        else:
            answer.append(None)

    thread = threading.Thread(target=ask, name="outrider-hub-reach", daemon=True)
    thread.start()
    thread.join(reach_s)
    return answer[0] if answer else f"no answer within {reach_s:g} s"


def _download(client: Any, repo_id: str, address: str) -> Path:
    errors = client.errors
    try:
        return Path(
            client.snapshot_download(
                repo_id,
                endpoint=address,
                allow_patterns=_WANTED,
                ignore_patterns=_UNWANTED,
            )
        )
    except errors.GatedRepoError as error:
        raise FetchFailed(
            f"{repo_id} is gated; accept its terms on its page and log in with `hf auth login`"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UnknownModel(
            f"the hub has no model {repo_id!r} that you may see; check the spelling, or log in "
            "with `hf auth login` if it is private"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise FetchFailed(
            f"fetching {repo_id} failed: {_words(error)}; try again, what has arrived is kept"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchFailed(
                f"fetching {repo_id} failed: the disk of {client.constants.HF_HUB_CACHE} is full; "
                "make room, or set HF_HUB_CACHE to a folder on a larger disk"
            ) from error
        raise FetchFailed(f"fetching {repo_id} failed: {_words(error)}; try again") from error


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
