"""Which rule judges: ratios only where every condition of their exactness holds."""

from __future__ import annotations

import itertools

import pytest

from outrider.types import DrafterInfo, SamplingParams, VerificationMethod
from outrider.verify import choose_method

DECLARES = DrafterInfo("model", declares=True)
REPEATS = DrafterInfo("ngram", declares=False)
RATIOS = [VerificationMethod.TOKEN, VerificationMethod.BLOCK]


@pytest.mark.parametrize("preferred", RATIOS)
def test_the_preferred_ratio_rule_judges_where_nothing_speaks_against_it(preferred) -> None:
    assert choose_method(SamplingParams(), DECLARES, preferred, trusted=True) is preferred


@pytest.mark.parametrize("preferred", VerificationMethod)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_judges_without_a_drafter(temperature: float, preferred) -> None:
    sampling = SamplingParams(temperature=temperature)
    assert choose_method(sampling, None, preferred, trusted=True) is VerificationMethod.NONE


@pytest.mark.parametrize("preferred", VerificationMethod)
@pytest.mark.parametrize("seed", [None, 0])
def test_temperature_0_is_judged_by_the_argmax(seed: int | None, preferred) -> None:
    sampling = SamplingParams(temperature=0.0, seed=seed)
    assert choose_method(sampling, DECLARES, preferred, trusted=True) is VerificationMethod.GREEDY


@pytest.mark.parametrize(
    ("seed", "drafter", "preferred", "trusted"),
    [
        (0, DECLARES, VerificationMethod.BLOCK, True),
        (None, REPEATS, VerificationMethod.BLOCK, True),
        (None, DECLARES, VerificationMethod.MATCHING, True),
        (None, DECLARES, VerificationMethod.BLOCK, False),
    ],
    ids=["seed", "undeclared", "preferred", "untrusted"],
)
def test_each_doubt_alone_leads_to_matching(seed, drafter, preferred, trusted: bool) -> None:
    sampling = SamplingParams(seed=seed)
    method = choose_method(sampling, drafter, preferred, trusted=trusted)
    assert method is VerificationMethod.MATCHING


def test_no_other_case_is_judged_by_ratios() -> None:
    cases = itertools.product(
        (0.0, 0.7), (None, 5), (None, REPEATS, DECLARES), VerificationMethod, (False, True)
    )
    by_ratio = [
        (temperature, seed, drafter, trusted)
        for temperature, seed, drafter, preferred, trusted in cases
        if choose_method(
            SamplingParams(temperature=temperature, seed=seed), drafter, preferred, trusted=trusted
        ).ratio
    ]
    assert by_ratio == [(0.7, None, DECLARES, True)] * 2
