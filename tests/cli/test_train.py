from __future__ import annotations

import subprocess
import sys
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from outrider.cli.train import app, needs_extra
from outrider.errors import ConfigError


@pytest.mark.parametrize("command", ["data", "distill", "evaluate", "export"])
def test_help_teaches_every_command(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"{command} [OPTIONS]" in result.stdout


def test_help_loads_none_of_the_libraries_of_training() -> None:
    code = (
        "import sys, outrider.cli; "
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'accelerate') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["pyarrow", "torch", "transformers.models"])
def test_a_missing_library_names_the_extra(missing: str) -> None:
    def command() -> NoReturn:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    with pytest.raises(ConfigError, match=r"pip install 'outrider\[train\]'"):
        needs_extra(command)()


def test_a_module_of_our_own_that_is_missing_is_a_defect() -> None:
    def command() -> NoReturn:
        raise ModuleNotFoundError("No module named 'outrider.nowhere'", name="outrider.nowhere")

    with pytest.raises(ModuleNotFoundError, match=r"outrider\.nowhere"):
        needs_extra(command)()
