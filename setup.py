"""The one part of the build that pyproject.toml cannot say: the C decoder's extension module."""

from setuptools import setup

setup(cffi_modules=["src/outrider/engine/native/build.py:ffi"])
