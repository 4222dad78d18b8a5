"""Where a draft model stops since it is unsure, and that the output does not show it."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.drafters import SessionView
from outrider.drafters.confidence import ConfidenceStop
from outrider.drafters.picker import Picker, Sampling
from outrider.sampling import History
from outrider.types import SampledDraft, SamplingParams
from outrider.verify import block_law, token_law
from tests.verify.oracle import (
    CAUGHT,
    EXACT,
    Prefix,
    Rows,
    Source,
    error_of,
    onehot,
    random_rows,
)

V = 3
K = 3
LEAST = 0.6
KINDS = ("dirichlet", "peaked", "zeros", "penalised", "warped")
EVERY_LAW = pytest.mark.parametrize(
    "law", [onehot, token_law, block_law], ids=lambda law: law.__name__
)


def stopping(rows: Rows) -> Source:
    """A drafter that draws until the rule says stop, and keeps the token that it stops behind."""

    def source(history: Prefix, accepted: int | None):
        def grow(draft: Prefix, chance: float):
            stop = ConfidenceStop(LEAST)
            for index in range(len(draft)):
                stop.see(float(rows(history + draft[:index]).max()))
            if len(draft) == K or (draft and stop.reached):
                yield draft, chance, rows
                return
            row = rows(history + draft)
            for token in np.flatnonzero(row):
                yield from grow((*draft, int(token)), chance * float(row[token]))

        yield from grow((), 1.0)

    return source


def dropping(rows: Rows) -> Source:
    """The mistake: a token is drawn, and dropped where it is itself an unlikely one."""

    def source(history: Prefix, accepted: int | None):
        def grow(draft: Prefix, chance: float):
            if len(draft) == K:
                yield draft, chance, rows
                return
            row = rows(history + draft)
            for token in np.flatnonzero(row):
                if row[token] < LEAST:
                    yield draft, chance * float(row[token]), rows
                else:
                    yield from grow((*draft, int(token)), chance * float(row[token]))

        yield from grow((), 1.0)

    return source


def drafted_lengths(rows: Rows) -> set[int]:
    return {len(draft) for draft, _, _ in stopping(rows)((), None)}


@EVERY_LAW
@pytest.mark.parametrize("kind", KINDS)
def test_stopping_behind_an_unsure_row_is_exact(law, kind) -> None:
    for seed in range(2):
        target, draft = random_rows(seed, V, kind)
        assert error_of(law, target, stopping(draft), K + 1, rounds=2) < EXACT


def test_the_rule_really_ends_some_of_these_drafts_early_and_not_all() -> None:
    lengths = [drafted_lengths(random_rows(seed, V, "peaked")[1]) for seed in range(4)]
    assert set().union(*lengths) == {1, 2, 3}


@pytest.mark.parametrize("law", [token_law, block_law], ids=lambda law: law.__name__)
def test_dropping_a_token_for_what_it_is_is_caught(law) -> None:
    models = [random_rows(seed, V, "dirichlet") for seed in range(8)]
    assert max(error_of(law, each[0], dropping(each[1]), K + 1) for each in models) > CAUGHT


def test_matching_is_immune_to_dropping() -> None:
    target, draft = random_rows(1, V, "dirichlet")
    assert error_of(onehot, target, dropping(draft), K + 1) < EXACT


@pytest.mark.parametrize(("temperature", "drawn"), [(0.0, False), (1.0, False), (1.0, True)])
def test_a_draft_ends_behind_the_row_that_makes_it_unlikely(temperature, drawn) -> None:
    picker = make(temperature, 0.5, drawn=drawn)
    history = History((1,), (2,))
    for largest, done in ((0.9, False), (0.9, False), (0.5, True)):
        picker.pick(np.log([largest, (1 - largest) * 0.75, (1 - largest) * 0.25]), history)
        assert picker.done(9) is done
    assert len(picker.draft("me")) == 3


def test_a_threshold_of_0_never_ends_a_draft() -> None:
    picker = make(1.0, 0.0)
    history = History((1,), (2,))
    for _ in range(20):
        picker.pick(np.zeros(3), history)
    assert not picker.done(21)


def test_the_drawn_token_does_not_change_whether_a_draft_goes_on() -> None:
    row, seen = np.log([0.6, 0.3, 0.1]), set()
    for seed in range(40):
        picker = make(1.0, 0.4, drawn=True, seed=seed)
        history = History((1,), (2,))
        picker.pick(row, history)
        assert not picker.done(9)
        picker.pick(row, history)
        assert picker.done(9)
        draft = picker.draft("me")
        assert isinstance(draft, SampledDraft)
        seen.update(draft.token_ids)
    assert seen == {0, 1, 2}


def make(temperature: float, least: float, *, drawn: bool = False, seed: int = 0) -> Picker:
    view = SessionView("s", [1, 2], 2, 1, SamplingParams(temperature=temperature), noise_key=5)
    sampling = Sampling(view, frozenset(), min_confidence=least)
    return Picker(sampling, np.random.default_rng(seed) if drawn else None)
