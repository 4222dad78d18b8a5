"""The lookahead with the most tokens per second, by what acceptance and costs were measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from outrider.control.acceptance import SessionAcceptance
from outrider.control.base import Decision, Plan, RoundOutcome, RoundView
from outrider.control.fleet import Fleet
from outrider.control.options import Options

__all__ = ["GoodputController"]

_AHEAD_GAIN = 0.03
_OPTIMISM = 1.0
_STRETCH = 16
_MAX_STRETCH = 64
_SHADOW = 4
_FALLING = 2
_PATIENCE = 1.0


class GoodputController:
    """One session's lookahead, by argmax of tokens over time, with 0 among the choices.

    Everything that the choice depends on was measured in earlier rounds, here or in other
    sessions of the fleet. At 0 the target runs alone; whether drafts would pay is learned from
    shadow drafts beside it, and from trial rounds where an optimist would draft. Both are paid
    from the fleet's allowance, and wait until that suffices.

    A session's first draft takes its drafter through the prompt. Where that takes longer than a
    step, the target runs on beside it; and where the output left would not make up for it, there is
    no draft.

    Args:
        fleet: shared by the sessions of the drafter.
        maximum: never above.
        initial: lookahead while nothing at all is known.
    """

    def __init__(self, fleet: Fleet, *, maximum: int = 16, initial: int = 4) -> None:
        self._fleet = fleet
        self._maximum = min(maximum, fleet.acceptance.positions)
        self._initial = initial
        self._acceptance = SessionAcceptance(fleet.acceptance)
        self._lookahead: int | None = None
        self._stretch = _STRETCH
        self._plan = Plan(0)
        self._trial = False
        self._has_read = False
        self._reading = False
        self._lost_s = 0.0
        self._ran = False
        self._predicted = 0.0
        self._decision = Decision(0, "plain")
        self._basis: tuple[Options, list[float]] | None = None
        self.rate = 0.0
        fleet.join(self)

    def explain(self) -> Decision:
        """What the last plan rests on."""
        if self._basis is None:
            return self._decision
        options, survival = self._basis
        pairs = zip(options.tokens, options.seconds, strict=True)
        return replace(
            self._decision,
            goodput=tuple(tokens / seconds for tokens, seconds in pairs),
            survival=tuple(survival),
            price=options.price,
        )

    def choose(self, view: RoundView) -> Plan:
        room = min(self._maximum, view.max_draft_tokens)
        self._trial = self._reading = False
        self._basis = None
        if room == 0:
            self._plan = Plan(lookahead=0, run=view.remaining - 1)
            self._decision = Decision(0, "plain")
        elif self._initial and self._fleet.knows_nothing:
            self._plan = Plan(lookahead=min(self._initial, room))
            self._decision = Decision(self._plan.lookahead, "first")
        else:
            self._plan = self._choose(view, room)
        return self._plan

    def observe(self, outcome: RoundOutcome) -> None:
        if outcome.shadow:
            if not self._has_read:
                self._has_read = True
                self._fleet.cost.observe_read(outcome)
            elif outcome.drafted:
                self._fleet.cost.observe_shadow(outcome)
            self._acceptance.observe(outcome.drafted, outcome.accepted, max(outcome.drafted, 1))
            return
        fleet = self._fleet
        plan, self._plan = self._plan, Plan(0)
        asked = plan.lookahead
        if outcome.ahead is not None and outcome.drafted:
            fleet.add_hit(self._predicted, hit=outcome.ahead)
        reading = asked > 0 and not self._has_read
        if reading and outcome.drafted:
            self._has_read = True
            fleet.cost.observe_read(outcome)
        if self._reading and not self._has_read:
            if outcome.further:
                fleet.cost.observe_beside_reading(outcome)
        else:
            fleet.cost.observe(outcome, asked=0 if reading else asked, ahead=plan.ahead)
        spent = outcome.draft_s + outcome.elapsed_s
        fleet.earn(spent)
        if asked:
            self._acceptance.observe(outcome.drafted, outcome.accepted, asked)
            if self._trial:
                won = (1 + outcome.accepted) * fleet.cost.plain_s
                fleet.spend(spent + self._lost_s - won)

    def _choose(self, view: RoundView, room: int) -> Plan:
        survival = self._acceptance.survival(self._maximum)
        options = self._options(survival, room, ahead=view.can_ahead)
        best = options.best(min(self._lookahead or 0, len(options.tokens) - 1))
        if self._lookahead is not None:
            current = min(self._lookahead, room)
            if current < len(options.tokens) and not options.improves(best, current):
                best = current
        kind: Literal["draft", "plain", "reading", "trial"] = "draft" if best else "plain"
        chosen = best
        context = 0 if self._has_read else view.context
        reads = self._fleet.cost.read_s(context) > _PATIENCE * self._fleet.cost.plain_s
        if reads and best:
            chosen, kind = 0, "reading" if self._repays(options, best, view) else "plain"
        elif best == 0 and not reads and (tried := self._worth_trying(options, room)):
            chosen, kind = tried, "trial"
            self._trial = True
        if best < room or best > (self._lookahead or 0):  # else perhaps only for want of room
            self._lookahead = best
        self.rate = options.tokens[best] / options.seconds[best]
        self._ran = chosen == 0
        if chosen:
            self._stretch = _STRETCH
            plan = Plan(chosen, ahead=options.ahead[chosen])
            self._predicted = _behind(survival, chosen)
        elif kind == "reading":
            self._reading = True
            plan = self._read(view, room)
        else:
            plan = self._run(view, room, self._fleet.cost.lost_by_reading_s(context))
        self._decision = Decision(chosen, kind, plan.ahead)
        self._basis = (options, survival)
        return plan

    def _options(self, survival: list[float], room: int, *, ahead: bool = False) -> Options:
        cost, price = self._fleet.cost, self._fleet.price()
        says, fill = self._acceptance.says, self._fleet.acceptance.fill
        trip, alone = cost.trip_s, cost.step_s(0)
        nothing = (1 - says) * (cost.draft_s(0) + alone)
        options = Options(price, [1.0], [cost.plain_s], [0.0], [False])
        tokens, falling = 1.0, 0
        rate = 0.0
        for lookahead, survives in enumerate(survival[:room], start=1):
            tokens += survives
            drafted = round(lookahead * fill) or 1
            step = cost.step_s(drafted)
            options.tokens.append(tokens)
            saved = self._saved_by_ahead(drafted, _behind(survival, lookahead)) if ahead else 0.0
            seconds = trip + nothing + says * (cost.draft_s(drafted) + step)
            options.ahead.append(saved > _AHEAD_GAIN * seconds)
            options.seconds.append(seconds - saved if options.ahead[-1] else seconds)
            options.lost.append(price * says * (step - alone))
            before, rate = rate, (tokens - options.lost[-1]) / options.seconds[-1]
            falling = falling + 1 if rate < before else 0
            if falling > _FALLING:
                break
        return options

    def _worth_trying(self, known: Options, room: int) -> int:
        """The lookahead that an optimist would take, if it may be tried; else 0."""
        hoped = self._options(self._acceptance.survival(room, optimism=_OPTIMISM), room)
        best = min(hoped.best(0), len(known.tokens) - 1)
        if best == 0:
            return 0
        plain = self._fleet.cost.plain_s
        # Whoever interrupts a run pays for the trip that takes it up again.
        again = self._fleet.cost.trip_s if self._ran else 0.0
        if self._fleet.affords_in(again - known.gain(best, 1 / plain) * plain):
            return 0
        self._lost_s = again + known.lost[best] * plain
        return best

    def _read(self, view: RoundView, room: int) -> Plan:
        """The target alone until the drafter should be through, so that the next round drafts."""
        cost = self._fleet.cost
        shadow = min(_SHADOW, room)
        steps = math.ceil((cost.read_s(view.context) + cost.draft_s(shadow)) / cost.plain_s)
        return Plan(0, run=min(max(steps, shadow), view.remaining - 1), shadow=shadow)

    def _repays(self, options: Options, best: int, view: RoundView) -> bool:
        """Whether drafts for all that may be left win back what reading takes of the target."""
        plain = self._fleet.cost.plain_s
        won_s = options.gain(best, 1 / plain) * plain / options.tokens[best]
        return view.remaining * won_s > self._fleet.cost.lost_by_reading_s(view.context)

    def _run(self, view: RoundView, room: int, lost_s: float) -> Plan:
        """The target alone, beside a shadow draft; for longer while that costs too much."""
        cost = self._fleet.cost
        shadow = min(_SHADOW, room)
        price = cost.draft_s(shadow) + lost_s
        run = max(self._stretch, self._fleet.affords_in(price + cost.trip_s))
        if run < view.remaining:
            price += cost.trip_s
        elif self._fleet.affords_in(price) >= view.remaining:
            return Plan(lookahead=0, run=view.remaining - 1)
        self._fleet.spend(price)
        self._stretch = min(2 * self._stretch, _MAX_STRETCH)
        return Plan(lookahead=0, run=min(run, view.remaining) - 1, shadow=shadow)

    def _saved_by_ahead(self, drafted: int, behind: float) -> float:
        """Seconds that drafting on while the target judges saves per round; below 0 if it costs.

        Args:
            drafted: tokens of a draft.
            behind: the probability that all of them hold, and the guess of the token behind too.
        """
        cost = self._fleet.cost
        hits, predicted = self._fleet.hits
        hit = min(behind * hits / predicted, 1.0)
        after = hit * cost.ahead_wait_s(drafted) + (1 - hit) * cost.ahead_vain_s(drafted)
        return cost.draft_s(drafted) - after - cost.ahead_drag_s()


def _behind(survival: list[float], lookahead: int) -> float:
    """The probability that one token more than the draft holds, as far as positions are known."""
    return survival[min(lookahead, len(survival) - 1)]
