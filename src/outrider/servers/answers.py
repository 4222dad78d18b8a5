"""What a target server answers over a `Decode` stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.errors import OutriderError
from outrider.rpc import target_inference_pb2 as pb
from outrider.servers.outbox import Outbox
from outrider.targets.wire import encode_error

if TYPE_CHECKING:
    from outrider.servers.held_session import HeldSession

__all__ = ["Stream", "failure"]


@dataclass(slots=True, eq=False)
class Stream:
    """One `Decode` stream: where its events go, and the sessions that it carries."""

    outbox: Outbox
    sessions: set[HeldSession] = field(default_factory=set)

    def answer(
        self,
        number: int,
        *,
        opened: pb.Opened | None = None,
        ended: pb.Ended | None = None,
        released: pb.Released | None = None,
        failed: pb.Failed | None = None,
    ) -> None:
        """Tell what became of something that was asked of session `number`."""
        self.outbox.push(
            pb.Event(session=number, opened=opened, ended=ended, released=released, failed=failed)
        )


def failure(action: pb.Action, error: OutriderError | None) -> pb.Failed:
    """What is answered to an action that fails; None: since the server shuts down."""
    kind = action.WhichOneof("kind")
    round_id = action.advance.round_id if kind == "advance" else None
    epoch = action.open.epoch if kind == "open" else 0
    if error is not None:
        return encode_error(error, round_id=round_id, epoch=epoch)
    return pb.Failed(
        reason=pb.DRAINING,
        message="the target server is shutting down; open the session elsewhere",
        round_id=round_id,
        epoch=epoch,
    )
