"""Penalties, bias, masks and warping in plain Python: a second opinion, one row at a time.

It shares no code with the sampler of the product. Rows made by it depend on the prefix in the way
that real requests make them: tokens are dropped, pushed and cut off by what came before.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.types import SamplingParams

Prefix = tuple[int, ...]

PROMPT = (0,)
STOP = 2


def processed(
    logits: list[float], prompt: Prefix, output: Prefix, params: SamplingParams
) -> np.ndarray:
    """The distribution that is sampled behind `output`, shape [V]."""
    row = np.zeros(len(logits))
    for token, prob in _warped(_penalised(logits, prompt, output, params), params).items():
        row[token] = prob
    return row


def _penalised(
    logits: list[float], prompt: Prefix, output: Prefix, params: SamplingParams
) -> dict[int, float]:
    scores = dict(enumerate(logits))
    everything = prompt + output
    for *before, last in params.bad_words:
        if list(everything[len(everything) - len(before) :]) == before:
            scores.pop(last, None)
    if len(output) < params.min_tokens:
        for token in params.stop_token_ids:
            scores.pop(token, None)
    return {t: _pushed(score, t, prompt, output, params) for t, score in scores.items()}


def _pushed(
    score: float, token: int, prompt: Prefix, output: Prefix, params: SamplingParams
) -> float:
    score += params.logit_bias.get(token, 0.0)
    if token in prompt + output:
        repeated = params.repetition_penalty
        score = score / repeated if score > 0 else score * repeated
    if token in output:
        score -= params.presence_penalty + params.frequency_penalty * output.count(token)
    return score


def _warped(scores: dict[int, float], params: SamplingParams) -> dict[int, float]:
    top = max(scores.values())
    weights = {token: math.exp((s - top) / params.temperature) for token, s in scores.items()}
    order = sorted(weights, key=lambda token: (-weights[token], token))
    order = [token for token in order if weights[token] >= params.min_p]
    order = order[: params.top_k or None]
    total = sum(weights[token] for token in order)
    kept: list[int] = []
    mass = 0.0
    for token in order:
        if mass < params.top_p * total:
            kept.append(token)
            mass += weights[token]
    return {token: weights[token] / mass for token in kept}


def penalised_rows(
    seed: int, vocab_size: int, prefix: Prefix, counted: Prefix
) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft rows behind `prefix`, with the history `counted` for the penalties.

    The logits depend on the last token alone, so whatever else the history does, penalties do.
    The drafter knows neither bias nor masks, and penalises by half.
    """
    draw = np.random.default_rng([seed, *prefix[-1:]])
    target_logits = 1.5 * draw.standard_normal(vocab_size)
    draft_logits = target_logits + 0.7 * draw.standard_normal(vocab_size)
    target = SamplingParams(
        temperature=0.9,
        repetition_penalty=1.6,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        logit_bias={1: 0.4},
        bad_words=((1, 1),),
        min_tokens=2,
        stop_token_ids=frozenset({STOP}),
    )
    draft = SamplingParams(repetition_penalty=1.3, presence_penalty=0.25, frequency_penalty=0.2)
    return (
        processed(list(target_logits), PROMPT, counted, target),
        processed(list(draft_logits), PROMPT, counted, draft),
    )


def warped_rows(seed: int, vocab_size: int, prefix: Prefix) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft rows of one model, cut off by different mixes of temperature and filters."""
    draw = np.random.default_rng([seed, len(prefix), *prefix])
    logits = list(1.5 * draw.standard_normal(vocab_size))
    mixes = (
        SamplingParams(temperature=0.7, top_k=2),
        SamplingParams(temperature=1.2, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.3),
        SamplingParams(temperature=1.5, top_k=3, top_p=0.9, min_p=0.1),
        SamplingParams(temperature=1.0),
    )
    target, draft = mixes[seed % 5], mixes[(seed // 5 + 2 * seed + 1) % 5]
    return processed(logits, (), prefix, target), processed(logits, (), prefix, draft)
