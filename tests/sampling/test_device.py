"""The sampler for rows on a device against the one for rows of the host.

Tensors in the host's memory stand in for those of a device. So what is shown is that both do the
same on the same arithmetic, not that an accelerator's kernels do.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.errors import RequestError, TargetFailed
from outrider.sampling import History, Sampler, Support, TokenSampler
from outrider.sampling.device import DeviceSampler, HostSampler, sampler_on
from outrider.sampling.history import TokenMask
from outrider.types import LogprobsMode, SamplingParams, TokenLogprobs

LARGE = 20_011
SMALL = 300
KEY = 0x9E3779B97F4A7C15
ENDS = frozenset({3, 4})
PROMPT = (7, 7, 9, 12, 250)
OUTPUT = (9, 9, 13, 1)


class OddOnly:
    """A grammar that never allows an even token."""

    def __init__(self, vocab_size: int) -> None:
        self._allowed = np.arange(vocab_size) % 2 == 1

    def allowed(self) -> np.ndarray:
        return self._allowed

    def accept(self, token_id: int) -> None:
        """Forgets it."""

    def rollback(self, count: int) -> None:
        """Remembers nothing."""


def rows(size: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(size)
    peaked = draw.standard_normal(size)
    peaked[draw.integers(size, size=20)] += draw.exponential(6.0, size=20) + 5.0
    masked = draw.standard_normal(size)
    masked[draw.random(size) < 0.95] = -np.inf
    masked[[5, 9]] = 1.0
    made = {
        "flat": np.zeros(size),
        "gaussian": draw.standard_normal(size),
        "small": 1e-3 * draw.standard_normal(size),
        "coarse": np.round(2 * draw.standard_normal(size)),
        "wide": 40 * draw.standard_normal(size),
        "peaked": peaked,
        "masked": masked,
    }
    return {name: row.astype(np.float32) for name, row in made.items()}


ROWS = {(name, size): row for size in (SMALL, LARGE) for name, row in rows(size).items()}

PARAMS = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "cold": {"temperature": 0.3},
    "coldest": {"temperature": 5e-324},
    "hot": {"temperature": 30.0},
    "top-k": {"top_k": 40},
    "top-k of nearly all": {"top_k": SMALL - 1, "temperature": 2.0},
    "top-k above all": {"top_k": 10**6},
    "top-p": {"top_p": 0.9},
    "top-p of little": {"top_p": 1e-6},
    "top-p of nearly all": {"top_p": 0.9999, "temperature": 0.7},
    "min-p": {"min_p": 0.05},
    "min-p 1": {"min_p": 1.0},
    "min-p of nearly all": {"min_p": 1e-300, "temperature": 3.0},
    "min-p, top-k, top-p": {"min_p": 0.01, "top_k": 50, "top_p": 0.95, "temperature": 0.8},
    "min-p, top-p": {"min_p": 0.01, "top_p": 0.8},
    "large top-k, top-p": {"top_k": 9000, "top_p": 0.9, "temperature": 1.5},
    "processors": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.7,
        "logit_bias": {11: 6.0, 13: -3.0, 44: 100.0},
        "bad_words": ((15,), (1, 17), (2, 18)),
        "min_tokens": 6,
    },
    "allowed": {"allowed_token_ids": frozenset(range(1, 290, 3)), "top_p": 0.9},
    "allowed, top-k": {"allowed_token_ids": frozenset({5, 8, 9}), "top_k": 20},
    "bias, top-p": {"logit_bias": {20: 7.5}, "top_p": 0.7, "presence_penalty": 1.0},
}


def params_of(name: str, **more: object) -> SamplingParams:
    return SamplingParams(**PARAMS[name], **more)  # type: ignore[arg-type]


def twins(params: SamplingParams) -> tuple[TokenSampler, DeviceSampler]:
    return (
        TokenSampler(params, KEY, 2, end_token_ids=ENDS),
        DeviceSampler(params, KEY, 2, end_token_ids=ENDS),
    )


def behind(mask: TokenMask | None = None) -> History:
    return History(PROMPT, OUTPUT, mask=mask)


def same(found: Support, expected: Support) -> None:
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.logits.dtype == expected.logits.dtype
    assert found.logits.tobytes() == expected.logits.tobytes()
    assert (found.top, found.temperature) == (expected.top, expected.temperature)


def close(found: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert found.token_id == expected.token_id
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    values = [value for _, value in expected.top]
    assert [value for _, value in found.top] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize(("kind", "size"), ROWS)
def test_both_keep_the_same_tokens_and_draw_the_same(name: str, kind: str, size: int) -> None:
    row = ROWS[kind, size]
    tensor = torch.from_numpy(row.copy())
    on_host, on_device = twins(params_of(name))
    history = behind()
    for position in range(8):
        if position < 2:
            same(on_device.support(tensor, history), on_host.support(row, history))
            same(on_device.head(tensor, history, 30), on_host.head(row, history, 30))
        token = on_host.sample(row, history)
        assert on_device.sample(tensor, history) == token
        history.extend((token,))
    assert tensor.numpy().tobytes() == row.tobytes()


@pytest.mark.parametrize("name", ["plain", "greedy", "top-k", "top-p", "min-p", "processors"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_both_obey_a_grammar(name: str, size: int) -> None:
    row = ROWS["gaussian", size]
    on_host, on_device = twins(params_of(name))
    history = behind(OddOnly(size))
    for _ in range(20):
        token = on_host.sample(row, history)
        assert token % 2 == 1
        assert on_device.sample(torch.from_numpy(row), history) == token
        history.extend((token,))


def test_many_positions_of_a_whole_vocabulary_draw_the_same() -> None:
    on_host, on_device = twins(SamplingParams())
    for kind in ("flat", "peaked"):
        row = ROWS[kind, LARGE]
        tensor = torch.from_numpy(row)
        for position in range(200):
            history = History(range(position))
            assert on_device.sample(tensor, history) == on_host.sample(row, history)


@pytest.mark.parametrize("mode", LogprobsMode)
@pytest.mark.parametrize("count", [0, 5, SMALL])
@pytest.mark.parametrize("name", PARAMS)
def test_both_tell_the_same_log_probabilities(name: str, count: int, mode: LogprobsMode) -> None:
    on_host, on_device = twins(params_of(name, logprobs=count, logprobs_mode=mode))
    history = behind()
    for row in ROWS.values():
        token = on_host.sample(row, history)
        for asked in (token, 2):
            close(
                on_device.logprobs(torch.from_numpy(row), history, asked),
                on_host.logprobs(row, history, asked),
            )


def test_a_tie_with_the_last_of_the_likeliest_goes_to_the_lowest_id() -> None:
    _, on_device = twins(SamplingParams(logprobs=2))
    told = on_device.logprobs(torch.zeros(9), behind(), 8)
    assert [token for token, _ in told.top] == [0, 1]
    assert told.logprob == pytest.approx(-np.log(9))


@pytest.mark.parametrize("name", ["plain", "greedy", "top-k", "top-p", "min-p"])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_logits_are_refused(name: str, broken: float) -> None:
    row = torch.zeros(SMALL)
    row[5] = broken
    if broken == -np.inf:
        row[:] = broken
    _, on_device = twins(params_of(name, logprobs=1, logprobs_mode=LogprobsMode.PROCESSED))
    _, raw = twins(params_of(name, logprobs=1))
    calls = (
        lambda: on_device.sample(row, behind()),
        lambda: on_device.support(row, behind()),
        lambda: on_device.head(row, behind(), 3),
        lambda: on_device.logprobs(row, behind(), 1),
        lambda: raw.logprobs(row, behind(), 1),
    )
    for call in calls:
        with pytest.raises(TargetFailed, match="weights are broken"):
            call()


@pytest.mark.parametrize("name", ["plain", "greedy", "top-k", "top-p", "min-p"])
def test_constraints_that_leave_no_token_are_refused_by_name(name: str) -> None:
    params = params_of(name, allowed_token_ids=ENDS, min_tokens=9)
    _, on_device = twins(params)
    for call in (on_device.sample, on_device.support):
        with pytest.raises(RequestError, match="no token is left at output position 4") as caught:
            call(torch.zeros(SMALL), behind())
        assert caught.value.param == "allowed_token_ids"


def test_only_a_few_numbers_of_a_row_are_copied(monkeypatch) -> None:
    copied: list[int] = []
    copy = torch.Tensor.cpu

    def counting(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor.numel())
        return copy(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", counting)
    tensor = torch.from_numpy(ROWS["peaked", LARGE])
    for name in ("plain", "greedy", "top-k", "top-p", "min-p", "processors"):
        _, on_device = twins(params_of(name, logprobs=5))
        token = on_device.sample(tensor, behind())
        on_device.head(tensor, behind(), 20)
        on_device.logprobs(tensor, behind(), token)
    assert len(copied) == 18
    assert max(copied) < 300


def test_a_sampler_over_tensors_of_the_host_reads_them_in_place() -> None:
    params = params_of("processors", logprobs=3)
    row = ROWS["gaussian", LARGE]
    tensor = torch.from_numpy(row)
    plain = TokenSampler(params, KEY, 1, end_token_ids=ENDS)
    over: Sampler = HostSampler(params, KEY, 1, end_token_ids=ENDS)
    assert over.sample(tensor, behind()) == plain.sample(row, behind())
    assert over.logprobs(tensor, behind(), 3) == plain.logprobs(row, behind(), 3)
    same(over.support(tensor, behind()), plain.support(row, behind()))
    same(over.head(tensor, behind(), 9), plain.head(row, behind(), 9))
    whole = HostSampler(SamplingParams(), KEY).support(tensor, behind())
    assert np.shares_memory(whole.logits, row)


def test_rows_stay_where_they_lie() -> None:
    assert sampler_on(torch.device("cpu")) is HostSampler
    assert sampler_on(torch.device("cuda", 0)) is DeviceSampler
