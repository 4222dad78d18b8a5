"""What clients get over real sockets is what the target alone would have said, or distributed so.

`scripts/http_joint.py` is the long form of the first part: ten times the samples and more.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import numpy as np
import pytest

from outrider.types import SamplingParams
from tests.integration.fit import fit
from tests.integration.joint import (
    LEAST_LIKELY,
    METHODS,
    PROMPT,
    SAMPLES,
    SETTINGS,
    Prefix,
    Table,
    complete,
    drafted_for,
    draw,
    params_of,
    serving,
)
from tests.pipeline.scenes import alone
from tests.verify.processing import processed

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

PLAIN_SAMPLES = 1280


@pytest.mark.statistical
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SETTINGS)
async def test_the_joint_distribution_over_http_is_the_exact_one(tmp_path, name, method) -> None:
    setting = SETTINGS[name]
    size = PLAIN_SAMPLES if method == "plain" else SAMPLES
    async with serving(tmp_path, setting.target, {"draft": setting.draft}) as gateway:
        sample = await draw(gateway, setting, method, size)
    exact = setting.joint()
    for found in (
        fit(sample.counts, exact),
        fit(drafted_for(sample.counts), drafted_for(exact)),
    ):
        assert found.size >= size
        assert found.impossible == 0
        assert found.p_value > LEAST_LIKELY, found
        assert found.tv < 2 * found.tv_floor
    assert sample.methods == {"none" if method == "plain" else method}
    assert sample.failures == 0
    if method == "plain":
        assert sample.drafted == 0
    else:
        assert sample.drafted > 2 * size
        assert 0.2 < sample.accepted / sample.drafted < 0.6


TARGET = Table(21, vocab_size=5)
DRAFTS = {"draft": Table(22, vocab_size=5), "twin": TARGET}
SHAPED: dict[str, Any] = {
    "max_tokens": 20,
    "top_p": 0.9,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {"1": 0.8, "4": -0.5},
    "bad_words": ["3 3"],
}
SEEDED: dict[str, dict[str, Any]] = {
    "plain sampling": {"temperature": 1.0, "seed": 7, "max_tokens": 20},
    "shaped": {**SHAPED, "temperature": 0.9, "seed": 8},
    "shaped and cut": {**SHAPED, "temperature": 1.3, "min_p": 0.05, "top_k": 4, "seed": 9},
    "shaped and greedy": {**SHAPED, "temperature": 0.0},
}
WAYS = [
    {"enabled": False},
    *(
        {"drafter": drafter, "max_lookahead": lookahead}
        for drafter in ("ngram", "table:draft", "table:twin")
        for lookahead in (0, 1, 4, 8)
    ),
]


def company() -> list[dict[str, Any]]:
    """16 requests of all sorts."""
    methods = itertools.cycle(METHODS.values())
    return [
        {
            "prompt": [index % 5, 2],
            "max_tokens": 5 + index,
            "temperature": 1.0 if index % 4 else 0.7,
            "presence_penalty": index % 3 / 2,
            "speculation": next(methods),
        }
        for index in range(16)
    ]


@pytest.mark.parametrize("name", SEEDED)
async def test_a_seed_fixes_the_ids_whatever_drafts_and_whoever_else_is_served(
    tmp_path, name
) -> None:
    request = SEEDED[name]
    # A server that prefers ratios keeps to matching where there is a seed.
    async with serving(
        tmp_path, TARGET, DRAFTS, lookahead=8, max_lookahead=8, verification="block"
    ) as gateway:
        expected = list(alone(tmp_path / "target.json", PROMPT, params_of(request)))
        by_itself = [await complete(gateway, **request, speculation=way) for way in WAYS]
        crowd = [complete(gateway, **other) for other in company()]
        among = [complete(gateway, **request, speculation=way) for way in WAYS]
        found = await asyncio.gather(*crowd, *among)
    for way, response in zip([*WAYS, *WAYS], [*by_itself, *found[16:]], strict=True):
        assert response["choices"][0]["token_ids"] == expected, way
        told = response["speculation"]
        assert told["exact"] == "identical"
        drafting = bool(way.get("max_lookahead"))
        method = "greedy" if request["temperature"] == 0 else "matching"
        assert told["verification"] == (method if drafting else "none")
        assert (told["drafted_tokens"] > 0) == drafting
        if drafting and way["drafter"] == "table:twin":
            assert told["accepted_tokens"] == told["drafted_tokens"]
    drafters = {response["speculation"]["drafter"] for response in by_itself}
    assert drafters == {None, "ngram", "table:draft", "table:twin"}
    assert any(response["speculation"]["verification"] == "block" for response in found[:16])


async def test_copies_and_seeds_differ_and_each_copy_is_the_targets_own(tmp_path) -> None:
    request = SEEDED["shaped"]
    copies = {}
    async with serving(tmp_path, TARGET, DRAFTS, lookahead=4) as gateway:
        for seed, drafter in ((8, "table:draft"), (8, "ngram"), (9, "table:draft")):
            body = {**request, "n": 8, "seed": seed, "speculation": {"drafter": drafter}}
            response = await complete(gateway, **body)
            copies[seed, drafter] = [tuple(each["token_ids"]) for each in response["choices"]]
    file = tmp_path / "target.json"
    expected = [alone(file, PROMPT, params_of(request), choice=index) for index in range(8)]
    assert copies[8, "table:draft"] == copies[8, "ngram"] == expected
    everything = {*copies[8, "ngram"], *copies[9, "table:draft"]}
    assert len(everything) == 16


def exact_logprobs(
    target: Table, prompt: Prefix, output: Prefix, params: SamplingParams | None
) -> np.ndarray:
    """Of all tokens behind `output`: the table's own, or with parameters the processed ones."""
    logits = target.logits(prompt + output)
    if params is None:
        return np.array(logits) - math.log(sum(map(math.exp, logits)))
    with np.errstate(divide="ignore"):
        return np.log(processed(logits, prompt, output, params))


def check_logprobs(choice: dict[str, Any], params: SamplingParams | None, top: int) -> None:
    """Every entry of a choice is exact at its own prefix."""
    output, told = tuple(choice["token_ids"]), choice["logprobs"]
    assert told["tokens"] == [str(token) for token in output]
    assert len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(output) > 0
    for index, token in enumerate(output):
        exact = exact_logprobs(TARGET, PROMPT, output[:index], params)
        assert math.isclose(told["token_logprobs"][index], exact[token], abs_tol=1e-12)
        likely = [int(i) for i in np.argsort(-exact, kind="stable")[:top] if exact[i] > -np.inf]
        wanted = {str(i): exact[i] for i in (*likely, token)}
        assert told["top_logprobs"][index] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("lookahead", [1, 4])
async def test_logprobs_are_the_exact_ones_at_accepted_recovered_and_bonus_positions(
    tmp_path, mode, lookahead
) -> None:
    asked = {**SHAPED, "temperature": 0.9, "logprobs": 3, "logprobs_mode": mode}
    params = params_of({**SHAPED, "temperature": 0.9}) if mode == "processed" else None
    async with serving(tmp_path, TARGET, DRAFTS, lookahead=lookahead) as gateway:
        for method, options in METHODS.items():
            response = await complete(gateway, **asked, n=4, speculation=options)
            for choice in response["choices"]:
                check_logprobs(choice, params, 3)
            told = response["speculation"]
            if method == "plain":
                continue
            assert told["verification"] == method
            # What was not accepted was recovered; and a draft of one token, if accepted, has a
            # bonus behind it.
            assert 0 < told["accepted_tokens"] < told["drafted_tokens"]


@pytest.mark.parametrize("mode", ["raw", "processed"])
async def test_logprobs_of_a_seeded_request_are_the_same_with_and_without_drafts(
    tmp_path, mode
) -> None:
    asked = {**SEEDED["shaped"], "n": 4, "logprobs": 5, "logprobs_mode": mode}
    async with serving(tmp_path, TARGET, DRAFTS, lookahead=4) as gateway:
        plain = await complete(gateway, **asked, speculation={"enabled": False})
        for drafter in ("table:draft", "table:twin", "ngram"):
            drafted = await complete(gateway, **asked, speculation={"drafter": drafter})
            assert drafted["speculation"]["drafted_tokens"] > 0
            assert drafted["choices"] == plain["choices"]


ENDING = Table(31, eos=(3,))


@pytest.mark.parametrize("method", METHODS)
async def test_no_output_ends_before_min_tokens_and_many_do_right_behind(tmp_path, method) -> None:
    request = {"max_tokens": 10, "min_tokens": 4, "logit_bias": {"3": 2.0}}
    ends = {3, 1}
    async with serving(tmp_path, ENDING, {"draft": Table(32, eos=(3,))}, lookahead=4) as gateway:
        outputs = []
        for stops in ([], [1]):
            body = {**request, "n": 64, "stop_token_ids": stops, "speculation": METHODS[method]}
            response = await complete(gateway, **body)
            assert (response["speculation"]["drafted_tokens"] > 0) == (method != "plain")
            outputs += [(stops, each) for each in response["choices"]]
    lengths = []
    for stops, choice in outputs:
        ids = choice["token_ids"]
        lengths.append(len(ids))
        these = ends if stops else {3}
        assert these.isdisjoint(ids[:4])
        assert these.isdisjoint(ids[:-1])
        assert choice["finish_reason"] == ("stop" if ids[-1] in these else "length")
        assert choice["finish_reason"] == "stop" or len(ids) == 10
    assert min(lengths) == 5
    assert lengths.count(5) > 32


@pytest.mark.parametrize("method", METHODS)
async def test_bad_words_and_ids_that_are_not_allowed_never_come(tmp_path, method) -> None:
    allowed = [0, 2, 3]
    words = ["2 1", "4 1 3", "0"]
    request = {"max_tokens": 12, "temperature": 1.5, "n": 64, "speculation": METHODS[method]}
    found: dict[str, list[str]] = {}
    async with serving(tmp_path, TARGET, DRAFTS, lookahead=4) as gateway:
        for name, extra in (
            ("free", {}),
            ("allowed", {"allowed_token_ids": allowed}),
            ("words", {"bad_words": words}),
        ):
            response = await complete(gateway, **request, **extra)
            assert (response["speculation"]["drafted_tokens"] > 0) == (method != "plain")
            ids = [choice["token_ids"] for choice in response["choices"]]
            found[name] = [" ".join(map(str, each)) for each in ids]

    def holding(name: str, word: str) -> int:
        return sum(word in text for text in found[name])

    assert all(holding("free", word) for word in (*words, "1", "4"))
    assert not any(holding("words", word) for word in words)
    assert not any(holding("allowed", token) for token in ("1", "4"))
    assert holding("allowed", "3 2")
    assert holding("words", "4")
    assert holding("words", "1")
