"""Outrider beside other engines: the same weights, prompts and machine, one engine at a time.

`python -m outrider.bench.baselines` builds the engines' environments, runs the comparison and
writes its report; docs/peers.md says how. Linux only: processes are stopped and measured through
signals and /proc.

A line per module: `peers` the engines and how they are spoken to, `environments` how they are
built, `modes` (and modes.toml) what is compared; `processes`, `watchdog` engines as processes;
`dialects` servers over HTTP, `worker_link` and the package `workers` libraries that have none;
`engine` the two together; `prompts` as token ids, `groups` what is up at the same time, `run` the
comparison; `answer`, `records` what is kept; `report`, `plot` how it is shown.
"""

from outrider.bench.baselines.answer import Answer, Chunk
from outrider.bench.baselines.engine import Machine
from outrider.bench.baselines.environments import build
from outrider.bench.baselines.groups import Group, make_groups
from outrider.bench.baselines.modes import DEFAULT_MODES, Comparison, load_modes
from outrider.bench.baselines.plot import draw
from outrider.bench.baselines.prompts import EncodedPrompt, encode
from outrider.bench.baselines.records import Records, SettingRecord, read_records
from outrider.bench.baselines.report import make_report
from outrider.bench.baselines.run import compare

__all__ = [
    "DEFAULT_MODES",
    "Answer",
    "Chunk",
    "Comparison",
    "EncodedPrompt",
    "Group",
    "Machine",
    "Records",
    "SettingRecord",
    "build",
    "compare",
    "draw",
    "encode",
    "load_modes",
    "make_groups",
    "make_report",
    "read_records",
]
