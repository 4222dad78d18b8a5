from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outrider.errors import CorruptData, TrainingError
from outrider.train.store import (
    Example,
    Part,
    Sampling,
    ShardWriter,
    Source,
    read_examples,
    read_source,
    shards,
)

SOURCE = Source(
    model_id="toy",
    model_hash="abc",
    vocab_fingerprint="def",
    vocab_size=50,
    eos_token_ids=(3, 7),
    dtype="int8",
    temperatures=(0.7, 1.0),
    k=4,
    sampling=Sampling(temperatures=(0.0, 1.0), top_p=0.9, seed=5, max_tokens=20),
    holdout=0.25,
    prompts="0123",
)


def example(name: str = "a", *, held_out: bool = False, seed: int = 0, n: int = 9) -> Example:
    draw = np.random.default_rng(seed)
    generated = np.zeros(n, dtype=bool)
    generated[4:] = True
    logits = -np.sort(-draw.normal(size=(n - 4, 4)) * 8).astype(np.float32)
    return Example(
        id=name,
        category="maths",
        token_ids=draw.integers(0, 50, n, dtype=np.int32),
        generated=generated,
        support_ids=np.array([draw.permutation(50)[:4] for _ in range(n - 4)], dtype=np.int32),
        support_logits=logits,
        logsumexps=draw.normal(size=(n - 4, 2)).astype(np.float32),
        temperature=1.0,
        held_out=held_out,
        finish_reasons=("length", "stop"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of two examples, every other one held out."""
    writer = ShardWriter(tmp_path, SOURCE)
    for shard in range(2):
        places = (2 * shard, 2 * shard + 1)
        writer.write(
            shard, [example(str(at), held_out=at % 2 == 1, seed=at, n=9 + at) for at in places]
        )
    return tmp_path


def test_what_is_written_is_read_again(folder: Path) -> None:
    examples = read_examples(folder)
    assert read_source(folder) == examples.source == SOURCE
    assert [each.id for each in examples] == ["0", "1", "2", "3"]
    for at, found in enumerate(examples):
        wanted = example(str(at), held_out=at % 2 == 1, seed=at, n=9 + at)
        for name in ("token_ids", "generated", "support_ids", "logsumexps"):
            there, here = getattr(found, name), getattr(wanted, name)
            assert there.dtype == here.dtype
            assert there.flags.writeable
            np.testing.assert_array_equal(there, here)
        for name in ("category", "temperature", "held_out", "finish_reasons"):
            assert getattr(found, name) == getattr(wanted, name)


def test_logits_keep_their_largest_exactly_and_the_others_to_half_precision(folder: Path) -> None:
    found, wanted = read_examples(folder)[0].support_logits, example().support_logits
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 0], wanted[:, 0])
    gaps = wanted[:, :1] - wanted
    assert (np.abs(found - wanted) <= gaps * 2**-11 + 1e-6).all()


def test_a_logit_of_minus_infinity_stays_readable(tmp_path: Path) -> None:
    least = example()
    least.support_logits[:, 3] = -np.inf
    ShardWriter(tmp_path, SOURCE).write(0, [least])
    found = read_examples(tmp_path)[0].support_logits
    assert np.isfinite(found).all()
    assert (found[:, 3] < -1e4).all()


def test_counts_are_known_without_reading_the_examples(folder: Path) -> None:
    examples = read_examples(folder)
    assert examples.num_tokens.tolist() == [9, 10, 11, 12]
    assert examples.num_generated.tolist() == [5, 6, 7, 8]
    assert examples.entries[1].held_out
    assert examples.entries[0].finish_reasons == ("length", "stop")
    assert examples.nbytes == sum(path.stat().st_size for path in folder.iterdir())


def test_the_parts_divide_the_examples(folder: Path) -> None:
    assert [each.id for each in read_examples(folder, Part.TRAIN)] == ["0", "2"]
    assert [each.id for each in read_examples(folder, Part.HELD_OUT)] == ["1", "3"]


def test_examples_may_be_asked_for_in_any_order(folder: Path) -> None:
    examples = read_examples(folder)
    assert [examples[at].id for at in (3, 0, 2, -1)] == ["3", "0", "2", "3"]
    assert [each.id for each in examples[1:3]] == ["1", "2"]


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    ShardWriter(tmp_path, SOURCE).write(0, [])
    assert len(read_examples(tmp_path)) == 0
    assert list(shards(tmp_path)) == [0]


def test_a_folder_without_data_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="outrider train data"):
        read_examples(tmp_path / "nowhere")


def test_an_unfinished_shard_is_none(folder: Path) -> None:
    (folder / "part-00002.unfinished").write_bytes(b"half of it")
    assert list(shards(folder)) == [0, 1]


@pytest.mark.parametrize("kept", [0, 3, 200, -5])
def test_a_truncated_shard_is_named(folder: Path, kept: int) -> None:
    path = folder / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CorruptData, match=r"part-00001\.parquet.*again"):
        read_examples(folder)


def test_damage_inside_a_shard_is_named_when_it_is_read(folder: Path) -> None:
    path = folder / "part-00000.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=r"part-00000\.parquet"):
        list(read_examples(folder))


def test_a_strangers_parquet_file_is_refused(folder: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), folder / "part-00002.parquet")
    with pytest.raises(CorruptData, match="no file of `outrider train data`"):
        read_examples(folder)


@pytest.mark.parametrize("metadata", ["[]", "{", '{"version": 99}', '{"version": 1, "k": 2}'])
def test_metadata_of_another_form_is_refused(folder: Path, metadata: str) -> None:
    path = folder / "part-00000.parquet"
    table = pq.read_table(path).replace_schema_metadata({b"outrider": metadata.encode()})
    pq.write_table(table, path)
    with pytest.raises(CorruptData, match=r"part-00000\.parquet does not say where it comes from"):
        read_source(folder)


def test_a_missing_column_is_named(folder: Path) -> None:
    path = folder / "part-00000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["logsumexps"]), path)
    with pytest.raises(CorruptData, match="logsumexps"):
        list(read_examples(folder))


def test_a_column_of_another_type_is_named(folder: Path) -> None:
    path = folder / "part-00000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("temperature")
    pq.write_table(table.set_column(at, "temperature", pa.array(["warm", "warm"])), path)
    with pytest.raises(CorruptData, match="temperature"):
        read_examples(folder)


def test_shards_of_two_targets_are_not_mixed(folder: Path) -> None:
    ShardWriter(folder, replace(SOURCE, model_hash="other")).write(2, [example()])
    with pytest.raises(CorruptData, match="another target"):
        read_examples(folder)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"generated": np.ones(9, dtype=bool)}, "first token"),
        ({"generated": np.zeros(8, dtype=bool)}, "marks"),
        ({"token_ids": np.full(9, 50, dtype=np.int32)}, "outside the vocabulary"),
        ({"support_ids": np.full((5, 4), -1, dtype=np.int32)}, "outside the vocabulary"),
        ({"support_ids": np.zeros((4, 4), dtype=np.int32)}, "support_ids has 16"),
        ({"logsumexps": np.full((5, 2), np.nan, dtype=np.float32)}, "not finite"),
        ({"logsumexps": np.zeros((5, 1), dtype=np.float32)}, "logsumexps has 5"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(
    tmp_path: Path, wrong: dict[str, np.ndarray], words: str
) -> None:
    ShardWriter(tmp_path, SOURCE).write(0, [example("good"), replace(example("bad"), **wrong)])
    with pytest.raises(CorruptData, match=rf"part-00000.*row 1 \(id bad\).*{words}"):
        list(read_examples(tmp_path))


def test_a_full_disk_leaves_no_shard_and_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(bytes(content)[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(TrainingError, match=r"No space left on device.*same command"):
            ShardWriter(folder, SOURCE).write(2, [example()])
    assert len(read_examples(folder)) == 4


def test_the_source_survives_its_json() -> None:
    assert Source.from_json(SOURCE.to_json()) == SOURCE
    assert json.loads(SOURCE.to_json())["sampling"]["top_p"] == 0.9
