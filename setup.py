"""The one part of the build that pyproject.toml cannot say: the extension modules in C."""

from setuptools import setup

setup(
    cffi_modules=[
        "src/outrider/drafters/native/build.py:ffi",
        "src/outrider/engine/native/build.py:ffi",
    ]
)
