"""What could be had: the best that a clairvoyant would do."""

from __future__ import annotations

from outrider.replay.trace import Trace
from outrider.replay.world import World

__all__ = ["clairvoyant_ms"]


def clairvoyant_ms(trace: Trace, world: World, *, batch: int, maximum: int) -> float:
    """Least time for `trace` if every draft's fate were known, by dynamic programming.

    From the end backwards, the time from a position is the least over all lookaheads; in a run
    alone a further token takes no trip, so there are two values per position: with the target
    running, and with a question to ask. Without noise and drafts made ahead.

    Args:
        trace: what drafts would hold.
        world: what everything costs.
        batch: sessions that share a step, at all times.
        maximum: longest draft.
    """
    end = len(trace)
    plain = world.step_ms(batch, 0)
    costs = [
        world.rtt_ms + world.draft_ms * drafted + world.step_ms(batch, drafted)
        for drafted in range(maximum + 1)
    ]
    running, asking = [0.0] * (end + 1), [0.0] * (end + 1)
    for position in reversed(range(end)):
        room = min(maximum, end - position - 1)
        _, most = trace.draft(position, room)
        # A longer draft than what holds only costs more.
        ask = min(costs[drafted] + asking[position + drafted + 1] for drafted in range(most + 1))
        asking[position] = min(ask, costs[0] + running[position + 1])
        running[position] = min(plain + running[position + 1], asking[position])
    return asking[0]
