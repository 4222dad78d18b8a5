"""Judge drafts by text that the target made, without serving anything.

Each draft reads the text as it stands, on this process's engine, and above temperature 0 the target
does so too. `acceptance` says how likely each
of its tokens would be accepted, `renewal` how rounds then fall upon the text, `costs` what a round
takes, and `forecast` what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from outrider.engine import Lane
from outrider.errors import TrainingError
from outrider.sampling import History
from outrider.sampling.device import sampler_on
from outrider.train.acceptance import SparseRow, sparse_row
from outrider.train.candidates import Candidate, Rule, TargetRows, judged_places
from outrider.train.costs import Costs, measure_costs
from outrider.train.forecast import Forecast, Tally, forecast
from outrider.train.reading import read
from outrider.train.records import Example, Source
from outrider.train.renewal import walk
from outrider.train.store import Examples
from outrider.types import DrafterInfo, SamplingParams, TargetInfo, VerificationMethod
from outrider.verify import choose_method

__all__ = ["Evaluation", "Progress", "check_source", "evaluate", "judge", "rule_for", "target_rows"]

Progress = Callable[[int, int], None]
"""Called with prompts judged, and prompts in all."""

_REPEATS: Final = 9


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Drafts judged on answers at one temperature.

    Attributes:
        source: where the answers come from.
        temperature: at which they were drawn.
        lookahead: the one that reports are about.
        prompts, tokens: how many were judged; the first token of each answer is left out.
        costs: measured.
        drafts: what is expected of each.
        categories: the same by category, with the prompts that it has.
    """

    source: Source
    temperature: float
    lookahead: int
    prompts: int
    tokens: int
    costs: Costs
    drafts: tuple[Forecast, ...]
    categories: dict[str, tuple[int, tuple[Forecast, ...]]]


def check_source(source: Source, info: TargetInfo) -> None:
    """See to it that data is of this target. Raises TrainingError."""
    if source.model_hash != info.model_hash:
        raise TrainingError(
            f"the data is of {source.model_id} ({source.dtype}, hash {source.model_hash[:12]}), "
            f"not of {info.model_id} ({info.dtype}, hash {info.model_hash[:12]}); give the "
            "--target and --dtype that it was made with, or make data with this one"
        )


def rule_for(
    candidate: Candidate,
    source: Source,
    temperature: float,
    preferred: VerificationMethod,
    lookahead: int,
) -> Rule:
    """How requests like those of the data, without a seed, would have this draft judged."""
    sampling = source.sampling
    params = SamplingParams(
        temperature=temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
    )
    info = DrafterInfo(name=candidate.name, declares=candidate.declares)
    return Rule(choose_method(params, info, preferred, trusted=True), params, lookahead)


async def evaluate(
    examples: Examples,
    places: Sequence[int],
    lane: Lane,
    candidates: Sequence[Candidate],
    *,
    temperature: float,
    preferred: VerificationMethod,
    lookahead: int,
    most: int,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Judge drafts on answers of one temperature.

    Args:
        examples: the data; see `check_source`.
        places: which of its examples, all drawn at `temperature`.
        lane: the target.
        candidates: the drafts, with distinct names.
        preferred: the rule of verification where parameters and draft leave a choice.
        lookahead: the one that reports are about.
        most: the longest lookahead that is looked at.

    Raises:
        TrainingError: there is nothing to judge by.
        TargetFailed: the engine failed.
    """
    source = examples.source
    used = [place for place in places if examples.num_generated[place] > 1]
    if not used:
        raise TrainingError(
            "there is no answer of two tokens or more to judge by; make more data with "
            "`outrider train data`"
        )
    rules = [rule_for(each, source, temperature, preferred, most) for each in candidates]
    judged = list(zip(candidates, rules, strict=True))
    tallies = await judge(examples, used, lane, judged, progress)
    params = rules[0].params
    costs = await _costs(examples, used, lane, candidates, params, most)
    named = np.asarray([examples.entries[place].category for place in used])
    categories = {}
    for name in sorted(set(named.tolist())):
        parts = [each.part(named == name) for each in tallies]
        if parts[0].tokens.sum() > 0:
            categories[name] = (len(parts[0].tokens), tuple(forecast(parts, costs)))
    return Evaluation(
        source=source,
        temperature=temperature,
        lookahead=lookahead,
        prompts=len(used),
        tokens=int(tallies[0].tokens.sum()),
        costs=costs,
        drafts=tuple(forecast(tallies, costs)),
        categories=categories,
    )


async def judge(
    examples: Sequence[Example],
    places: Sequence[int],
    lane: Lane,
    candidates: Sequence[tuple[Candidate, Rule]],
    progress: Progress = lambda done, total: None,
) -> list[Tally]:
    """What drafts would do on these examples, one after the other.

    Args:
        candidates: with how each is judged, all at the temperature of the examples.

    Raises:
        TargetFailed: the engine failed.
        ContextLengthExceeded: an example is longer than the target's context as set now.
    """
    tallies = [_empty(candidate, rule, len(places)) for candidate, rule in candidates]
    params = candidates[0][1].params
    weighed = not params.greedy and any(candidate.declares for candidate, _ in candidates)
    for unit, place in enumerate(places):
        progress(unit, len(places))
        example = examples[place]
        rows = await target_rows(lane, example, params) if weighed else {}
        for (candidate, rule), tally in zip(candidates, tallies, strict=True):
            for prospect in await candidate.judge(example, rows, rule):
                rounds = walk(prospect.held, prospect.drafted)
                tally.tokens[unit] += len(prospect.drafted)
                tally.by_length[unit] += rounds.by_length
                tally.offered[unit] += rounds.offered
                tally.accepted[unit] += rounds.accepted
                tally.starts[unit] += rounds.starts
    progress(len(places), len(places))
    return tallies


def _empty(candidate: Candidate, rule: Rule, size: int) -> Tally:
    k = rule.lookahead + 1
    square = (size, k, k)
    return Tally(
        candidate.name,
        rule.method,
        tokens=np.zeros(size),
        by_length=np.zeros(square),
        offered=np.zeros(square),
        accepted=np.zeros(square),
        starts=np.zeros((size, k)),
    )


async def target_rows(lane: Lane, example: Example, params: SamplingParams) -> TargetRows:
    """What the tokens of all answers were drawn from, but for their first.

    Raises as `reading.read` does.
    """
    sampler = sampler_on(lane.decoder.device)(params, 0)
    history = History((0,))  # answers are drawn without penalties
    rows: dict[int, SparseRow] = {}

    def look(place: int, logits: torch.Tensor) -> None:
        said = int(example.token_ids[place + 1])
        rows[place + 1] = sparse_row(sampler.support(logits, history), said)

    before = [place - 1 for place in judged_places(example)]
    await read(lane, example.token_ids.tolist(), before, look)
    return rows


async def _costs(
    examples: Examples,
    places: Sequence[int],
    lane: Lane,
    candidates: Sequence[Candidate],
    params: SamplingParams,
    most: int,
) -> Costs:
    """Measured behind as many tokens as usually stand in front of one that is judged."""
    longest = places[int(np.argmax(examples.num_tokens[places]))]
    text = examples[longest].token_ids
    # An answer's middle lies half of it in front of the end, turns apart.
    middles = examples.num_tokens[places] - examples.num_generated[places] // 2
    room = lane.cache.max_length - most - 1
    context = max(min(int(np.median(middles)), room), 1)
    padded = np.resize(text, context + most + 1).tolist()
    return await measure_costs(
        lane, candidates, padded, context, params, lookahead=most, repeats=_REPEATS
    )
