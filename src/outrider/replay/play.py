"""Play a trace: the rounds that a pipeline would do, with a real controller, in virtual time."""

from __future__ import annotations

from outrider.control import LookaheadController, Plan, RoundOutcome, RoundView
from outrider.replay.trace import Trace
from outrider.replay.world import Clock, World

__all__ = ["play"]


def play(
    trace: Trace, controller: LookaheadController, world: World, clock: Clock, *, maximum: int
) -> None:
    """Decode `trace` as a session of its own; `clock` moves on by what that takes.

    Args:
        trace: what drafts would hold.
        controller: chooses and observes as in a pipeline.
        world: what everything costs.
        clock: virtual time.
        maximum: longest draft that the target takes.
    """
    session = _Session(trace, controller, world, clock)
    while session.remaining:
        room = min(maximum, session.remaining - 1)
        plan = controller.choose(RoundView(session.remaining, room, can_ahead=world.ahead))
        session.round(plan, min(plan.lookahead, room))


class _Session:
    def __init__(
        self, trace: Trace, controller: LookaheadController, world: World, clock: Clock
    ) -> None:
        self._trace = trace
        self._controller = controller
        self._world = world
        self._clock = clock
        self._position = 0
        self._ahead: tuple[int, float] | None = None
        self._shadow: tuple[int, int, float] | None = None
        self._shadow_s = 0.0

    @property
    def remaining(self) -> int:
        return len(self._trace) - self._position

    def round(self, plan: Plan, lookahead: int) -> None:
        further = False
        if lookahead:
            self._judge(lookahead, ahead=plan.ahead)
            further = True
        elif plan.shadow:
            self._start_shadow(plan.shadow)
        for _ in range(plan.run + (not lookahead)):
            if self.remaining == 0:
                break
            self._step(further=further)
            further = True

    def _judge(self, lookahead: int, *, ahead: bool) -> None:
        world, clock = self._world, self._clock
        start = self._position
        drafted, accepted = self._trace.draft(start, lookahead)
        served, draft_ms = self._draft(drafted)
        batch = world.batch_at(clock.now_ms)
        step = clock.noisy(world.step_ms(batch, drafted))
        trip = clock.noisy(world.rtt_ms)
        behind = 0.0
        if ahead and drafted:
            behind = clock.noisy(world.draft_ms * (lookahead + 1))
            step += (1 - world.overlap) * min(behind, step)
        clock.now_ms += draft_ms + trip + step
        self._position += accepted + 1
        if ahead and drafted:
            # It serves if all of the draft held and the token behind it was guessed too.
            holds = self._trace.accepted[start] > lookahead
            late = max(behind - trip - step, 0.0)
            self._ahead = (self._position if holds else -1, late)
        self._controller.observe(
            RoundOutcome(
                drafted,
                accepted,
                draft_s=draft_ms / 1000,
                elapsed_s=(trip + step) / 1000,
                step_s=step / 1000,
                batch_size=batch,
                batch_tokens=batch * (drafted + 1),
                ahead=served,
            )
        )

    def _draft(self, drafted: int) -> tuple[bool | None, float]:
        """Whether a draft made ahead served, if there was one, and what is waited."""
        anew = self._clock.noisy(self._world.draft_ms * drafted)
        if self._ahead is None:
            return None, anew
        (position, late), self._ahead = self._ahead, None
        served = position == self._position
        return served, late if served else late + anew

    def _step(self, *, further: bool) -> None:
        world, clock = self._world, self._clock
        self._ahead = None
        batch = world.batch_at(clock.now_ms)
        step = clock.noisy(world.step_ms(batch, 0))
        if self._shadow is not None:
            start, end, work = self._shadow
            step += work  # a drafter beside the target shares its cores
            self._shadow = (start, end, 0.0)
        trip = 0.0 if further else clock.noisy(world.rtt_ms)
        clock.now_ms += trip + step
        self._position += 1
        self._controller.observe(
            RoundOutcome(
                0,
                0,
                elapsed_s=(trip + step) / 1000,
                step_s=step / 1000,
                batch_size=batch,
                batch_tokens=batch,
                further=further,
            )
        )
        self._score()

    def _start_shadow(self, tokens: int) -> None:
        if self._shadow is None:
            drafted, _ = self._trace.draft(self._position, tokens)
            takes = self._clock.noisy(self._world.draft_ms * drafted)
            work = (1 - self._world.overlap) * takes
            self._shadow = (self._position, self._position + drafted, work)
            self._shadow_s = takes / 1000

    def _score(self) -> None:
        if self._shadow is None or self._position < min(self._shadow[1], len(self._trace)):
            return
        start, end, _ = self._shadow
        self._shadow = None
        known = min(end, len(self._trace)) - start
        _, accepted = self._trace.draft(start, known)
        self._controller.observe(
            RoundOutcome(known, accepted, shadow=True, draft_s=self._shadow_s, context=start)
        )
