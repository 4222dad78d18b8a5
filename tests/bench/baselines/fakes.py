"""Peers that compute nothing: a server and a worker as small scripts, started as real processes."""

from __future__ import annotations

import sys
from pathlib import Path

from outrider.bench.baselines.dialects import DIALECTS
from outrider.bench.baselines.peers import WORKER, Peer

__all__ = ["FAKE_PEERS", "SERVER", "WORKER_SCRIPT"]

HERE = Path(__file__).parent
SERVER = HERE / "fake_server.py"
WORKER_SCRIPT = HERE / "fake_worker.py"

FAKE_PEERS = {
    **{
        dialect: Peer(dialect, (), (sys.executable, str(SERVER), "$port"), dialect)
        for dialect in DIALECTS
    },
    WORKER: Peer(
        WORKER,
        (),
        (sys.executable, str(WORKER_SCRIPT)),
        WORKER,
        {"PYTHONPATH": "$workers", "PYTHONDONTWRITEBYTECODE": "1"},
    ),
}
