"""Builds the extension module `outrider._suffix`; run by setup.py, never at run time."""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

_HERE = Path(__file__).parent
_ROOT = Path(__file__).parents[4]  # setuptools wants its sources relative to setup.py


def _declarations() -> str:
    text = (_HERE / "suffix.h").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


ffi = FFI()
ffi.cdef(_declarations())
ffi.set_source(
    "outrider._suffix",
    '#include "suffix.h"',
    sources=[str((_HERE / "suffix.c").relative_to(_ROOT))],
    depends=[str((_HERE / "suffix.h").relative_to(_ROOT))],
    include_dirs=[str(_HERE.relative_to(_ROOT))],
    # Scores must equal those of the Python version, to the last bit.
    extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off"],
    # Without a C compiler the Python version does the same, slower.
    optional=True,
)
