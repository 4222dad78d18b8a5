"""Controllers side by side, world by world: how much of what could be had each one gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider.control import (
    FixedController,
    Fleet,
    GoodputController,
    LookaheadController,
    WindowController,
)
from outrider.replay.optimum import clairvoyant_ms
from outrider.replay.play import play
from outrider.replay.trace import Trace
from outrider.replay.world import Clock, World

__all__ = ["Comparison", "compare"]

Controllers = Callable[[], LookaheadController]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens per second in one world.

    Attributes:
        world: what everything cost.
        fixed: by lookahead; 0 is plain decoding.
        window: the window controller's.
        goodput: the goodput controller's.
        clairvoyant: of who knows how every draft fares; None where times are noisy, loads swing or
            drafts are made ahead, for which it is not defined.
    """

    world: World
    fixed: dict[int, float]
    window: float
    goodput: float
    clairvoyant: float | None

    @property
    def plain(self) -> float:
        """Of plain decoding."""
        return self.fixed[0]

    @property
    def best(self) -> int:
        """The best fixed lookahead, 0 included."""
        return max(self.fixed, key=lambda lookahead: self.fixed[lookahead])

    @property
    def of_best(self) -> float:
        """The goodput controller over the best fixed lookahead."""
        return self.goodput / self.fixed[self.best]

    @property
    def of_window(self) -> float:
        """The goodput controller over the window controller."""
        return self.goodput / self.window

    @property
    def of_clairvoyant(self) -> float | None:
        """The goodput controller over the clairvoyant."""
        return None if self.clairvoyant is None else self.goodput / self.clairvoyant


def compare(
    traces: Sequence[Trace],
    worlds: Sequence[World],
    *,
    lookaheads: Sequence[int],
    maximum: int = 16,
    seed: int = 0,
) -> Iterator[Comparison]:
    """Play all traces with every controller, in each world; one at a time, as they are done.

    Every trace is a session. The sessions of the goodput controller share one fleet per world, so
    later ones begin with what earlier ones saw.

    Args:
        traces: in the order in which they are played.
        worlds: each is played apart.
        lookaheads: fixed ones to compare with; 0 always is.
        maximum: longest draft.
        seed: of the noise, which is another one for every controller.
    """
    tokens = sum(map(len, traces))
    for world in worlds:

        def speed(controllers: Controllers, world: World = world) -> float:
            clock = Clock(world, seed)
            for trace in traces:
                play(trace, controllers(), world, clock, maximum=maximum)
            return 1000 * tokens / clock.now_ms

        fleet = Fleet(maximum)
        yield Comparison(
            world,
            {k: speed(lambda k=k: FixedController(k)) for k in sorted({0, *lookaheads})},  # type: ignore[misc]
            speed(lambda: WindowController(maximum=maximum)),
            speed(lambda: GoodputController(fleet, maximum=maximum)),  # noqa: B023 # called at once
            _clairvoyant(traces, world, maximum),
        )


def _clairvoyant(traces: Sequence[Trace], world: World, maximum: int) -> float | None:
    if world.jitter or world.swing or world.ahead:
        return None
    spent = sum(
        clairvoyant_ms(trace, world, batch=world.batch, maximum=maximum) for trace in traces
    )
    return 1000 * sum(map(len, traces)) / spent
