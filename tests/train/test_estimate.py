"""What a draft does on held-out data, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.train.batches import Reader, collate
from outrider.train.draft_loss import COUNTS, DraftLoss
from outrider.train.estimate import Totals, measure, rounds
from outrider.train.live_teacher import LiveTeacher
from outrider.train.objective import LossSettings
from outrider.train.store import Example
from tests.train.toy import VOCAB
from tests.train.toy_answers import toy_draft, toy_example, toy_source


@pytest.mark.parametrize(
    ("agreed", "expected"),
    [
        ("", 0),
        ("0", 1),
        ("1", 1),
        ("11110", 1),  # four drafted and one of the target's own
        ("11111", 1),
        ("111111", 2),
        ("0000", 4),
        ("10", 1),
        ("1010", 2),
        ("0111", 2),
    ],
)
def test_a_round_takes_what_agrees_and_one_more(agreed: str, expected: int) -> None:
    assert rounds(np.array([each == "1" for each in agreed], dtype=bool), 4) == expected


def examples() -> list[Example]:
    return [toy_example(np.random.default_rng(seed), str(seed)) for seed in range(3)]


def test_the_estimate_counts_what_the_loss_counts() -> None:
    reader = Reader(None, vocab_size=VOCAB, draft_size=VOCAB, temperature=1.0, max_length=100)
    items = [reader.read(each, toy_source()) for each in examples()]
    module = DraftLoss(toy_draft(), LossSettings())
    totals = Totals()
    for item in items:
        measure(module, [item], 1.0, torch.device("cpu"), totals)
    estimate = totals.estimate()
    _, counts = module(collate(items), torch.tensor(1.0))
    wanted = dict(zip(COUNTS, counts.tolist(), strict=True))
    assert estimate.tokens == wanted["tokens"] == sum(len(each.labels) for each in items)
    assert estimate.acceptance == pytest.approx(wanted["acceptance"] / wanted["tokens"], rel=1e-5)
    assert estimate.acceptance_most == pytest.approx(
        wanted["acceptance_most"] / wanted["tokens"], rel=1e-5
    )
    assert estimate.agreement == pytest.approx(wanted["agreements"] / wanted["tokens"])


def test_a_draft_that_is_its_teacher_loses_nothing_and_is_accepted() -> None:
    reader = Reader(None, vocab_size=VOCAB, draft_size=VOCAB, temperature=1.0, max_length=100)
    items = [reader.read(each, toy_source()) for each in examples()]
    module = DraftLoss(
        toy_draft(), LossSettings("kl"), vocab_size=VOCAB, teacher=LiveTeacher(toy_draft())
    )
    batch = collate(items, live=True)
    loss, counts = module(batch, torch.tensor(float(len(batch["labels"]))))
    said = dict(zip(COUNTS, counts.tolist(), strict=True))
    assert loss.item() == pytest.approx(0.0, abs=1e-5)
    assert said["acceptance"] == pytest.approx(said["tokens"], rel=1e-5)
    assert said["agreements"] == said["tokens"]


def test_a_live_teacher_is_neither_trained_nor_saved() -> None:
    teacher = toy_draft()
    module = DraftLoss(toy_draft(), LossSettings(), teacher=LiveTeacher(teacher))
    assert not any(each is mine for each in teacher.parameters() for mine in module.parameters())
    assert not any(each.requires_grad for each in teacher.parameters())
    assert all(name.startswith("draft.") for name in module.state_dict())


def test_ids_beyond_the_target_s_rows_are_never_drafted() -> None:
    draft = toy_draft(vocab_size=VOCAB + 7)
    reader = Reader(None, vocab_size=VOCAB, draft_size=VOCAB + 7, temperature=1.0, max_length=100)
    items = [reader.read(each, toy_source()) for each in examples()]
    module = DraftLoss(draft, LossSettings("kl"), vocab_size=VOCAB)
    batch = collate(items)
    _, _, never = module.head
    assert never is not None
    assert never.nonzero().flatten().tolist() == list(range(VOCAB, VOCAB + 7))
    loss, _ = module(batch, torch.tensor(1.0))
    with torch.no_grad():
        draft.get_input_embeddings().weight[VOCAB:] = 100.0  # a tied head
    again, _ = module(batch, torch.tensor(1.0))
    assert again.item() == pytest.approx(loss.item(), rel=1e-5)
