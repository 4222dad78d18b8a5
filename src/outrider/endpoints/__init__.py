"""An OpenAI-compatible server, seen from outside: public HTTP and nothing else."""

from outrider.endpoints.client import Endpoint, Refused, base_url, connect
from outrider.endpoints.events import Event, Events
from outrider.endpoints.wire import (
    Choice,
    Chunk,
    Completion,
    Speculation,
    Usage,
    complaint,
    decode,
)

__all__ = [
    "Choice",
    "Chunk",
    "Completion",
    "Endpoint",
    "Event",
    "Events",
    "Refused",
    "Speculation",
    "Usage",
    "base_url",
    "complaint",
    "connect",
    "decode",
]
