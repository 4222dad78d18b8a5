"""The command line: parse, build settings, call."""

from outrider.cli.main import main

__all__ = ["main"]
