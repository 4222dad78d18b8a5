"""Outrider: lossless speculative decoding in front of any LLM, served over the OpenAI API."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("outrider")
