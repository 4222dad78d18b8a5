"""The OpenAI-compatible HTTP API over a pipeline."""

from outrider.gateway.app import create_app

__all__ = ["create_app"]
