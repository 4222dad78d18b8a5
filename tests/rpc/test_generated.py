from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import outrider.rpc

PACKAGE = Path(outrider.rpc.__file__).parent
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate_rpc.py"


def test_the_generated_code_is_what_the_contract_gives(tmp_path) -> None:
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True, timeout=60)
    made = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    assert len(made) == 3
    for file in made:
        assert file.read_bytes() == (PACKAGE / file.name).read_bytes(), (
            f"{file.name} has drifted from proto/target_inference.proto; run `make proto`"
        )
