"""Conversations in the draft's ids: what predicts what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.drafters.translation import Translation
from outrider.errors import TrainingError
from outrider.train.batches import Corpus, Item, Reader, batch_rows, collate
from outrider.train.records import Part
from outrider.train.store import Example, read_examples
from tests.train.toy import VOCAB
from tests.train.toy_answers import TOKENIZER, toy_example, toy_source, write_answers

WORDS = range(256, VOCAB - 2)
"""Ids of the tokens that are more than a byte."""


def reader(translation: Translation | None = None, **changes: float) -> Reader:
    size = VOCAB if translation is None else translation.target_ids.size
    said = {"vocab_size": VOCAB, "draft_size": size, "temperature": 1.0, "max_length": 100}
    return Reader(translation, **(said | changes))  # type: ignore[arg-type]


def example(seed: int = 0) -> Example:
    return toy_example(np.random.default_rng(seed), "x")


def trimmed(*dropped: int) -> Translation:
    kept = [token_id for token_id in range(VOCAB) if token_id not in dropped]
    return Translation.trimmed(TOKENIZER, kept)


def test_each_generated_token_is_predicted_from_the_position_before_it() -> None:
    given = example()
    item = reader().read(given, toy_source())
    made = np.flatnonzero(given.generated)
    assert item.positions.tolist() == (made - 1).tolist()
    assert item.labels.tolist() == given.token_ids[made].tolist()
    assert item.input_ids[item.positions].tolist() == given.token_ids[made - 1].tolist()


def test_a_token_that_the_draft_lacks_is_read_in_pieces_and_never_a_label() -> None:
    given = example()
    used = set(given.token_ids.tolist())
    lacking = next(i for i in WORDS if len(TOKENIZER.token_bytes(i) or b"") == 2 and i not in used)
    place = int(np.flatnonzero(given.generated)[2])
    ids = given.token_ids.copy()
    ids[place] = lacking
    item = reader(trimmed(lacking)).read(replace(given, token_ids=ids), toy_source())
    assert item.labels[2] == -1
    # Two pieces in place of one: what follows is predicted one position later.
    assert item.positions[2] == place - 1
    assert item.positions[3] == place + 1
    assert item.labels[3] != -1


def test_pieces_spell_the_same_bytes() -> None:
    given = example(3)
    lacking = tuple(WORDS)
    translation = trimmed(*lacking)
    item = reader(translation).read(given, toy_source())
    last = int(item.target_positions[-1])
    spelled = b"".join(
        TOKENIZER.token_bytes(int(translation.target_ids[i])) or b"" for i in item.input_ids
    )
    assert spelled == b"".join(TOKENIZER.token_bytes(int(i)) or b"" for i in given.token_ids[:last])


def test_support_outside_of_the_draft_s_vocabulary_keeps_its_probability_but_has_no_id() -> None:
    given = example()
    lacking = int(given.support_ids[0, 0])
    whole, part = reader(), reader(trimmed(lacking) if lacking >= 256 else _without(lacking))
    all_rows, rows = (each.read(given, toy_source()).rows for each in (whole, part))
    assert rows.support_ids[0, 0] == -1
    assert torch.equal(rows.log_probs, all_rows.log_probs)


def _without(token_id: int) -> Translation:
    kept = np.array([i for i in range(VOCAB) if i != token_id], dtype=np.int64)
    own = np.full(VOCAB, -1, dtype=np.int64)
    own[kept] = np.arange(kept.size)
    return Translation(kept, own, words={}, token_bytes=lambda _: None)


def test_a_token_without_any_context_is_left_out() -> None:
    given = example()
    # The first token generated at once, behind one that the draft cannot read.
    unreadable = _without(int(given.token_ids[0]))
    ids = np.concatenate((given.token_ids[:1], given.token_ids[given.generated]))
    item = reader(unreadable).read(
        replace(given, token_ids=ids, generated=np.arange(len(ids)) > 0), toy_source()
    )
    made = len(ids) - 1
    assert len(item.rows) == len(item.labels) == len(item.positions) == made - 1
    assert item.target_positions[0] == 2


def test_a_long_conversation_is_cut_with_the_rows_behind_the_cut() -> None:
    given = example()
    first = int(np.flatnonzero(given.generated)[0])
    item = reader(max_length=first + 2).read(given, toy_source())
    assert len(item.labels) == len(item.rows) == 3
    assert len(item.input_ids) == first + 2


def test_the_draft_does_not_read_the_last_token() -> None:
    given = example()
    item = reader().read(given, toy_source())
    assert len(item.input_ids) == len(given.token_ids) - 1


def test_rows_are_at_the_temperature_asked_for() -> None:
    with pytest.raises(TrainingError, match=r"no normalisers at temperature 0\.7"):
        reader(temperature=0.7).read(example(), toy_source())


def items(num: int = 3) -> list[Item]:
    return [reader().read(example(seed), toy_source()) for seed in range(num)]


def test_places_in_a_batch_lead_to_what_stands_before_each_label() -> None:
    given = items()
    batch = collate(given)
    flat = batch["input_ids"].flatten()
    wanted = np.concatenate([each.input_ids[each.positions] for each in given])
    assert flat[batch["places"]].tolist() == wanted.tolist()
    assert batch["labels"].tolist() == np.concatenate([each.labels for each in given]).tolist()
    assert len(batch_rows(batch)) == len(batch["labels"])


def test_a_live_teacher_s_places_lead_to_the_same_tokens_in_its_own_ids() -> None:
    given = items()
    batch = collate(given, live=True)
    flat = batch["target_tokens"].flatten()
    assert flat[batch["target_places"] + 1].tolist() == batch["labels"].tolist()


def test_padding_is_never_a_place() -> None:
    given = items()
    batch = collate(given)
    length = batch["input_ids"].shape[1]
    for row, item in enumerate(given):
        inside = batch["places"][(batch["places"] // length) == row] % length
        assert int(inside.max()) < len(item.input_ids)


def test_a_corpus_joins_folders_in_order(tmp_path: Path) -> None:
    folders = [
        read_examples(write_answers(tmp_path / name, 20, seed=seed), Part.TRAIN)
        for name, seed in (("a", 1), ("b", 2))
    ]
    corpus = Corpus(folders, reader(), 100)
    assert len(corpus) == 32
    for place, (folder, index) in {0: (0, 0), 15: (0, 15), 16: (1, 0), 31: (1, 15)}.items():
        made = folders[folder][index]
        assert corpus[place].labels.tolist() == made.generated_ids.tolist()
    assert corpus.predicted == sum(int(each.num_generated.sum()) for each in folders)


def test_data_without_a_token_of_the_target_s_is_refused(tmp_path: Path) -> None:
    folder = write_answers(tmp_path / "a", 1)  # its only conversation is held out
    with pytest.raises(TrainingError, match="no token that the target made"):
        Corpus([read_examples(folder, Part.TRAIN)], reader(), 100)
