"""The drafter over a table keeps to the contract of drafters that declare what they draw from."""

from __future__ import annotations

import json

import pytest

from outrider.drafters import DeclaringDrafter, SessionView, TableDrafter
from outrider.errors import DraftFailed
from outrider.models import TableModel
from outrider.types import SampledDraft, SamplingParams

pytestmark = pytest.mark.anyio


def drafter(tmp_path, logits: dict[str, list[float | None]]) -> TableDrafter:
    file = tmp_path / "draft.json"
    file.write_text(json.dumps({"vocab_size": 3, "order": 1, "logits": logits}))
    return TableDrafter(TableModel.load(file))


def view(**params: object) -> SessionView:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    return SessionView("s", [0, 1], 2, 1, sampling, noise_key=3)


async def test_it_can_declare(tmp_path) -> None:
    found = drafter(tmp_path, {"": [0, 0, 0]})
    assert isinstance(found, DeclaringDrafter)
    await found.prepare(view())
    draft = await found.draw(view(), 3)
    assert isinstance(draft, SampledDraft)
    assert [row.token_ids.tolist() for row in draft.rows] == [[0, 1, 2]] * 3


async def test_a_draft_that_fails_on_the_way_is_the_tokens_drawn_so_far(tmp_path) -> None:
    """Dropping it would depend on what was drawn, and bias the output."""
    found = drafter(tmp_path, {"": [0, 0, None], "0": [None, None, 0]})
    lengths = set()
    for _ in range(60):
        draft = await found.draw(view(allowed_token_ids=frozenset({0, 1})), 3)
        assert isinstance(draft, SampledDraft)
        ends = draft.token_ids.index(0) + 1 if 0 in draft.token_ids else 3
        assert len(draft) == ends
        lengths.add(ends)
    assert lengths == {1, 2, 3}


async def test_a_draft_that_fails_at_its_first_token_is_a_failure(tmp_path) -> None:
    found = drafter(tmp_path, {"": [None, None, 0]})
    with pytest.raises(DraftFailed, match="no token is left at output position 1"):
        await found.draw(view(allowed_token_ids=frozenset({0, 1})), 3)
