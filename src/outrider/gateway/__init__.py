"""The OpenAI-compatible HTTP API over a pipeline."""

from outrider.gateway.app import create_app
from outrider.gateway.serve import bind, event_loop_factory, serve

__all__ = ["bind", "create_app", "event_loop_factory", "serve"]
