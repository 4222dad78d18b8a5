"""The command line: parse, build settings, call."""

import sys

__all__ = ["main"]


def main() -> None:
    """The `outrider` command. Ctrl-C is obeyed while modules are still being imported, too."""
    try:
        from outrider.cli.main import run_app  # noqa: PLC0415 # takes most of a second

        run_app()
    except KeyboardInterrupt:
        sys.exit(130)
