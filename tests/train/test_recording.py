from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.train.recording import Recorder


@pytest.mark.parametrize("size", [64, 500, 49152])
def test_the_likeliest_tokens_and_the_normalisers_are_those_of_the_whole_row(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    rows = torch.randn(3, size, generator=draw) * 4
    recorder = Recorder(64, (0.5, 1.0, 1.7))
    for row in rows:
        recorder.record(row)
    values = rows.double().numpy()
    order = np.argsort(-values, axis=1, kind="stable")[:, :64]
    np.testing.assert_array_equal(recorder.support_ids(), order)
    np.testing.assert_array_equal(recorder.support_logits(), np.take_along_axis(values, order, 1))
    for column, t in enumerate((0.5, 1.0, 1.7)):
        wanted = np.log(np.exp(values / t).sum(axis=1))
        np.testing.assert_allclose(recorder.logsumexps()[:, column], wanted, rtol=2e-6)


def test_the_lowest_ids_come_first_among_equals() -> None:
    recorder = Recorder(3, (1.0,))
    recorder.record(torch.tensor([1.0, 2.0, 2.0, 1.0, 1.0]))
    assert recorder.support_ids().tolist() == [[1, 2, 0]]


def test_rows_on_an_accelerator_are_kept_as_those_in_memory() -> None:
    row = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 4
    here, there = Recorder(8, (0.7, 1.0)), Recorder(8, (0.7, 1.0))
    ids, logits, logsumexps = here._on_host(row)
    far_ids, far_logits, far_logsumexps = there._on_device(row)
    np.testing.assert_array_equal(ids, far_ids)
    np.testing.assert_array_equal(logits, far_logits)
    np.testing.assert_allclose(logsumexps, far_logsumexps, rtol=1e-6)


def test_a_row_that_is_reused_changes_nothing_that_was_kept() -> None:
    row = torch.arange(10.0)
    recorder = Recorder(2, (1.0,))
    recorder.record(row)
    row.fill_(0)
    assert recorder.support_logits().tolist() == [[9.0, 8.0]]


def test_nothing_recorded_has_the_right_shape() -> None:
    recorder = Recorder(4, (1.0, 2.0))
    assert recorder.support_ids().shape == recorder.support_logits().shape == (0, 4)
    assert recorder.logsumexps().shape == (0, 2)


def test_a_row_shorter_than_what_is_to_be_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="no 64 likeliest"):
        Recorder(64, (1.0,)).record(torch.zeros(63))
