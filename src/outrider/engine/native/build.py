"""Builds the extension module `outrider._native`; run by setup.py, never at run time."""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

_HERE = Path(__file__).parent
_ROOT = Path(__file__).parents[4]  # setuptools wants its sources relative to setup.py


def _declarations() -> str:
    text = (_HERE / "native.h").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _sources() -> list[str]:
    return sorted(str(path.relative_to(_ROOT)) for path in _HERE.glob("*.c"))


ffi = FFI()
ffi.cdef(_declarations())
ffi.set_source(
    "outrider._native",
    '#include "native.h"',
    sources=_sources(),
    depends=sorted(str(path.relative_to(_ROOT)) for path in _HERE.glob("*.h")),
    include_dirs=[str(_HERE.relative_to(_ROOT))],
    # The results of a row must not depend on how many rows a loop was unrolled for: see vector.h.
    extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off", "-pthread"],
    extra_link_args=["-pthread"],
    libraries=["m"],
    # Without a C compiler everything else still works; the engine says what is missing.
    optional=True,
)
