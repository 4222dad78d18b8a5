"""HTTP servers of our own: sockets, limits of connections and bodies, errors, the way down."""

from outrider.serving.access import Bearer, check_exposure
from outrider.serving.body import decode, read_body
from outrider.serving.envelope import Envelope
from outrider.serving.failures import ClientGone, Failure, failure_of
from outrider.serving.lifecycle import Lifecycle, shutting_down, while_connected
from outrider.serving.run import Drains, serve
from outrider.serving.sockets import bind, event_loop_factory

__all__ = [
    "Bearer",
    "ClientGone",
    "Drains",
    "Envelope",
    "Failure",
    "Lifecycle",
    "bind",
    "check_exposure",
    "decode",
    "event_loop_factory",
    "failure_of",
    "read_body",
    "serve",
    "shutting_down",
    "while_connected",
]
