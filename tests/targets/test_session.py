"""What every target does with a draft and its rows."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import RequestError
from outrider.sampling import History, TokenSampler, warp
from outrider.targets import OpenRequest
from outrider.targets.session import TargetSession, _DeadEnd
from outrider.types import (
    DRAFT_TOTAL,
    NO_DRAFT,
    Draft,
    DraftRow,
    FinishReason,
    LogprobsMode,
    SampledDraft,
    SamplingParams,
    VerificationMethod,
)
from outrider.verify import verify_block, verify_tokens

V = 6
ROWS = np.random.default_rng(0).standard_normal((8, V))
PENALISED = SamplingParams(
    frequency_penalty=2.0,
    repetition_penalty=1.5,
    bad_words=((1, 2),),
    min_tokens=3,
    max_tokens=20,
)


def session(
    params: SamplingParams,
    *,
    output: tuple[int, ...] = (3,),
    method: VerificationMethod = VerificationMethod.BLOCK,
) -> TargetSession:
    request = OpenRequest("s", 0, (0, 1), output, params, noise_key=4, verification=method)
    opened = TargetSession(request, frozenset({5}))
    opened.begin(1, len(output))
    return opened


def by_definition(params: SamplingParams, count: int) -> list[int]:
    """The output behind (3,), row by row, from a history made anew for each."""
    sampler = TokenSampler(params, 4, end_token_ids=params.end_token_ids(frozenset({5})))
    output = [3]
    for row in ROWS[:count]:
        output.append(sampler.sample(row, History((0, 1), output)))
    return output[1:]


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=20), PENALISED])
@pytest.mark.parametrize("right", range(5))
def test_a_draft_is_judged_with_the_history_of_each_row(params, right) -> None:
    truth = by_definition(params, 5)
    drafted = [*truth[:right], *((token + 1) % 5 for token in truth[right:4])]
    answer = session(params).judge(Draft(tuple(drafted)), ROWS[:5], step_s=0.0)
    assert answer.accepted == right
    assert list(answer.token_ids) == truth[: right + 1]


def test_what_a_rejected_draft_counted_is_counted_out_again() -> None:
    one, two = session(PENALISED), session(PENALISED)
    wrong = tuple((token + 1) % 5 for token in by_definition(PENALISED, 4))
    first = one.judge(Draft(wrong), ROWS[:5], step_s=0.0)
    two.judge(NO_DRAFT, ROWS[:1], step_s=0.0)
    assert len(first.token_ids) == 1
    assert one.history.tokens == two.history.tokens
    assert [counts.tolist() for counts in one.history.counts().output()] == [
        counts.tolist() for counts in two.history.counts().output()
    ]
    assert one.judge(NO_DRAFT, ROWS[5:6], step_s=0.0) == two.judge(NO_DRAFT, ROWS[5:6], step_s=0.0)


def test_constraints_that_leave_no_token_end_the_request_and_spoil_nothing() -> None:
    params = SamplingParams(allowed_token_ids=frozenset({5}), min_tokens=2, max_tokens=9)
    judged = session(params)
    with pytest.raises(RequestError, match="output position 1"):
        judged.judge(Draft((4, 4)), ROWS[:3], step_s=0.0)
    assert judged.history.tokens == [0, 1, 3]


@pytest.mark.parametrize("mode", LogprobsMode)
def test_logprobs_are_those_of_the_true_prefix_at_every_emitted_token(mode) -> None:
    params = SamplingParams(
        frequency_penalty=2.0, top_k=4, logprobs=2, logprobs_mode=mode, max_tokens=20
    )
    truth = by_definition(params, 4)
    drafted = (*truth[:2], (truth[2] + 1) % 5)
    answer = session(params).judge(Draft(drafted), ROWS[:4], step_s=0.0)
    assert list(answer.token_ids) == truth[:3]
    assert answer.logprobs is not None
    sampler = TokenSampler(params, 4)
    for index, told in enumerate(answer.logprobs):
        history = History((0, 1), (3, *truth[:index]))
        processed = sampler.support(ROWS[index], history)
        support = (
            processed if mode is LogprobsMode.PROCESSED else warp(ROWS[index], SamplingParams())
        )
        probs = support.dense(V)
        assert told.token_id == truth[index]
        assert told.logprob == pytest.approx(np.log(probs[truth[index]]))
        likeliest = np.argsort(-probs, kind="stable")[:2]
        assert [token for token, _ in told.top] == likeliest.tolist()
        assert [value for _, value in told.top] == pytest.approx(np.log(probs[likeliest]).tolist())


def test_tokens_beyond_the_end_have_no_logprobs() -> None:
    params = SamplingParams(temperature=0.0, logprobs=0, max_tokens=3)
    rows = np.eye(V)[[4, 4, 4, 4]]
    answer = session(params).judge(Draft((4, 4, 4)), rows, step_s=0.0)
    assert answer.token_ids == (4, 4)
    assert answer.finish_reason is FinishReason.LENGTH
    assert [told.token_id for told in answer.logprobs or ()] == [4, 4]


def test_without_being_asked_nothing_is_told() -> None:
    assert session(PENALISED).judge(NO_DRAFT, ROWS[:1], step_s=0.0).logprobs is None


def declared(rows: np.ndarray, tokens: tuple[int, ...]) -> SampledDraft:
    counts = np.floor(rows * DRAFT_TOTAL)
    counts[:, 0] += DRAFT_TOTAL - counts.sum(axis=1)
    found = [DraftRow(np.flatnonzero(row), row[row > 0].astype(np.uint16)) for row in counts]
    return SampledDraft(tokens, tuple(found), "me")


@pytest.mark.parametrize("verify", [verify_tokens, verify_block])
@pytest.mark.parametrize("dead", [0, 1, 2, 3])
def test_a_dead_end_is_a_row_that_gives_a_token_of_its_own(verify, dead) -> None:
    """Then it counts exactly as often as plain decoding gets there, however often it is drafted."""
    draw = np.random.default_rng(dead)
    params = SamplingParams(temperature=1.0)
    for _ in range(1500):
        rows = draw.dirichlet(np.full(V, 0.7), size=4)
        draft_rows = draw.dirichlet(np.full(V, 0.7), size=3)
        draft = declared(draft_rows, tuple(int(draw.choice(V, p=row)) for row in draft_rows))
        uniforms = draw.random(4)
        logits = np.log(np.hstack([rows, np.zeros((4, 1))]) + 1e-300)
        logits[dead] = np.log(np.eye(V + 1)[V] + 1e-300)
        with_token = [warp(row, params) for row in logits]
        with_end: list = [warp(row[:V], params) for row in logits]
        with_end[dead] = _DeadEnd(RequestError("no token is left"))
        accepted, token = verify(draft, with_token.__getitem__, uniforms)
        if token == V:
            assert accepted == dead
            with pytest.raises(RequestError, match="no token is left"):
                verify(draft, with_end.__getitem__, uniforms)
        else:
            assert verify(draft, with_end.__getitem__, uniforms) == (accepted, token)


@pytest.mark.parametrize("method", [VerificationMethod.TOKEN, VerificationMethod.BLOCK])
def test_a_drafted_dead_end_that_is_not_kept_is_no_error(method) -> None:
    """The target never says 1, and behind a 1 no token is left; the draft says little else."""
    params = SamplingParams(bad_words=tuple((1, token) for token in range(V)), max_tokens=20)
    rows = np.zeros((3, V))
    rows[0, 1] = -np.inf
    draft_rows = np.full((2, V), 0.02)
    draft_rows[:, 1] = 0.9
    for _ in range(50):
        answer = session(params, method=method).judge(
            declared(draft_rows, (1, 1)), rows, step_s=0.0
        )
        assert answer.accepted == 0


@pytest.mark.parametrize("method", [VerificationMethod.TOKEN, VerificationMethod.BLOCK])
def test_a_drawn_draft_follows_its_rule_with_fresh_randomness_in_every_session(method) -> None:
    """One token, drawn from a row that overlaps: kept as often as min(1, target / draft) says."""
    params = SamplingParams(frequency_penalty=1.0, max_tokens=20)
    target = TokenSampler(params, 0).support(ROWS[0], History((0, 1), (3,))).dense(V)
    draft_row = np.full(V, 1 / V)
    token = int(np.argmin(target))
    keep = target[token] * V
    trials = 3000
    kept = 0
    for _ in range(trials):
        judged = session(params, method=method)
        answer = judged.judge(declared(draft_row[None], (token,)), ROWS[:2], step_s=0.0)
        kept += answer.accepted
    assert abs(kept / trials - keep) < 4.5 * np.sqrt(keep * (1 - keep) / trials)


def test_the_rounds_of_a_session_use_different_uniforms() -> None:
    params = SamplingParams(max_tokens=2000)
    judged = session(params)
    draft = declared(np.full((1, V), 1 / V), (4,))
    outcomes = set()
    for round_id in range(2, 200):
        judged.begin(round_id, judged.output_length)
        outcomes.add(judged.judge(draft, ROWS[:2] * 0.0, step_s=0.0).token_ids[-1])
    assert outcomes == set(range(V))
