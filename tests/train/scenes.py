"""Made-up tallies and costs, from which forecasts follow by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider.train.acceptance import survival
from outrider.train.costs import Costs
from outrider.train.evaluate import Evaluation
from outrider.train.forecast import Tally, forecast
from outrider.train.renewal import walk
from outrider.types import VerificationMethod
from tests.train.toy_answers import toy_source

LOOKAHEAD = 4


def tally(name: str, chances: list[float], *, tokens: int = 40) -> Tally:
    """A draft whose tokens are all accepted with a chance that hangs on the prompt."""
    walks = [
        walk(survival([chance] * tokens, LOOKAHEAD), np.full(tokens, LOOKAHEAD))
        for chance in chances
    ]
    return Tally(
        name,
        VerificationMethod.MATCHING,
        tokens=np.full(len(chances), float(tokens)),
        by_length=np.array([each.by_length for each in walks]),
        offered=np.array([each.offered for each in walks]),
        accepted=np.array([each.accepted for each in walks]),
        starts=np.array([each.starts for each in walks]),
    )


def costs(names: list[str], *, token_s: float, repeats: int = 5) -> Costs:
    """A step takes 10 ms, and one more for each further row."""
    return Costs(
        context=100,
        target_s=np.tile(0.010 + 0.001 * np.arange(LOOKAHEAD + 1), (repeats, 1)),
        token_s={name: np.full(repeats, token_s) for name in names},
        round_s={name: np.zeros(repeats) for name in names},
    )


def evaluation(chances: dict[str, list[float]], *, token_s: float) -> Evaluation:
    """Two categories, the first half of the prompts in one."""
    tallies = [tally(name, each) for name, each in chances.items()]
    measured = costs(list(chances), token_s=token_s)
    size = len(tallies[0].tokens)
    first = np.arange(size) < size // 2
    parts = {"chat": first, "code": ~first}
    return Evaluation(
        source=replace(toy_source(), model_id="toy [1]"),
        temperature=1.0,
        lookahead=3,
        prompts=size,
        tokens=int(tallies[0].tokens.sum()),
        costs=measured,
        drafts=tuple(forecast(tallies, measured)),
        categories={
            name: (
                int(chosen.sum()),
                tuple(forecast([each.part(chosen) for each in tallies], measured)),
            )
            for name, chosen in parts.items()
        },
    )
