from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from outrider.drafters.pairing import pair
from outrider.engine import Chunk, load_model, read_config
from outrider.errors import ConfigError, CorruptModel, TrainingError
from outrider.models import (
    DRAFT_VOCABULARY,
    load_text_assets,
    read_draft_vocabulary,
    resolve,
    write_draft_vocabulary,
)
from outrider.text import HFTokenizer, fingerprint
from outrider.train import export as exporting
from outrider.train.card import read_record
from outrider.train.export import Story, export_draft, find_checkpoint
from outrider.train.initialise import from_layers
from outrider.train.plan import Target
from outrider.train.records import Example, Source
from outrider.train.sources import digest_data
from outrider.train.store import Part, ShardWriter, read_examples
from outrider.types import Capabilities, TargetInfo
from tests.train.toy import CHAT_TEMPLATE, VOCAB, write_toy

END = VOCAB - 1
KEPT = np.asarray([*range(256), 258, VOCAB - 2, END])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = resolve(str(write_toy(tmp_path_factory.mktemp("toy"))), home=Path("unused"))
    tokenizer = HFTokenizer(load_text_assets(folder.path).tokenizer_json)
    return Target(
        model_id="toy",
        model_hash=folder.model_hash,
        vocab_fingerprint=fingerprint(tokenizer.token_strings),
        tokenizer=tokenizer,
        folder=folder.path,
        dtype=folder.dtype,
    )


def write_checkpoint(
    folder: Path, target: Target, kept: np.ndarray | None = KEPT, **begun: Any
) -> Path:
    """One layer of the target, as a run of `outrider train distill` leaves it."""
    model = from_layers(target.folder, [0], tokenizer=target.tokenizer, target_ids=kept)
    model.save_pretrained(folder)
    if kept is not None:
        write_draft_vocabulary(folder, kept)
    run = {"version": 1, "step": 7, "begun": {"target": target.model_hash, **begun}, "best": None}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path, target: Target) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", target, loss="lk")


def write_data(folder: Path, target: Target, **source: Any) -> Path:
    said: dict[str, Any] = {
        "model_id": target.model_id,
        "model_hash": target.model_hash,
        "vocab_fingerprint": target.vocab_fingerprint,
        "vocab_size": VOCAB,
        "eos_token_ids": (END,),
        "k": 1,
        **source,
    }
    example = Example(
        id="0",
        category="code",
        token_ids=np.asarray([0, 1, 2], dtype=np.int32),
        generated=np.asarray([False, True, True]),
        support_ids=np.asarray([[1], [2]], dtype=np.int32),
        support_logits=np.zeros((2, 1), dtype=np.float32),
        logsumexps=np.zeros((2, 1), dtype=np.float32),
    )
    ShardWriter(folder, Source(**said)).write(0, [example, replace(example, held_out=True)])
    return folder


def test_an_exported_draft_computes_in_the_engine_what_was_trained(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    exported = export_draft(checkpoint, target, tmp_path / "draft", weights="float32")
    tokens = list(range(40, 60))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([tokens])).logits[0]
    decoder = load_model(exported.path, dtype=torch.float32, device=torch.device("cpu"))
    cache = decoder.new_cache(num_slots=1, max_length=len(tokens))
    (ours,) = decoder.forward([Chunk(cache.allocate(), tokens, len(tokens))], cache)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert exported.difference < 1e-3


def test_weights_are_bfloat16_unless_told(checkpoint: Path, target: Target, tmp_path: Path) -> None:
    half = export_draft(checkpoint, target, tmp_path / "half")
    whole = export_draft(checkpoint, target, tmp_path / "whole", weights="float32")
    assert json.loads((half.path / "config.json").read_text())["dtype"] == "bfloat16"
    assert half.nbytes < 0.55 * whole.nbytes
    assert half.parameters == whole.parameters
    theirs = LlamaForCausalLM.from_pretrained(checkpoint).state_dict()
    ours = LlamaForCausalLM.from_pretrained(half.path, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(ours[name], theirs[name].bfloat16()) for name in theirs)


def test_a_trimmed_draft_has_the_targets_text_and_a_map_to_its_ids(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    out = export_draft(checkpoint, target, tmp_path / "draft").path
    assert np.array_equal(read_draft_vocabulary(out), KEPT)
    ours, theirs = load_text_assets(out), load_text_assets(target.folder)
    assert ours == theirs
    assert ours.chat_template == CHAT_TEMPLATE
    assert read_config(out).vocab_size == KEPT.size
    info = TargetInfo(
        model_id=target.model_id,
        model_hash=target.model_hash,
        vocab_size=VOCAB,
        vocab_fingerprint=target.vocab_fingerprint,
        eos_token_ids=frozenset({END}),
        context_length=256,
        capabilities=Capabilities(max_draft_tokens=8),
        tokenizer_json=theirs.tokenizer_json,
    )
    translation = pair(resolve(str(out), home=tmp_path), info)
    assert translation is not None
    assert translation.pieces(258) == (256,)


def test_whoever_may_read_one_file_may_read_all(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    out = export_draft(checkpoint, target, tmp_path / "draft").path
    (tmp_path / "ordinary").touch()
    modes = {each.stat().st_mode for each in out.iterdir()}
    assert modes == {(tmp_path / "ordinary").stat().st_mode}


def test_a_draft_with_the_targets_ids_has_no_map(target: Target, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", target, None)
    exported = export_draft(checkpoint, target, tmp_path / "draft")
    assert not (exported.path / DRAFT_VOCABULARY).exists()
    assert not exported.record.trimmed


def test_what_ends_an_output_is_said_in_the_targets_ids_though_its_config_alone_says_it(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    folder = write_toy(tmp_path / "toy")
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    out = export_draft(checkpoint, replace(target, folder=folder), tmp_path / "draft").path
    assert load_text_assets(out).eos_token_ids == {END}
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == KEPT.size - 1


def test_the_record_says_what_it_is_for_and_what_it_was_made_of(
    target: Target, tmp_path: Path
) -> None:
    data = write_data(tmp_path / "data", target)
    digest = digest_data([read_examples(data, Part.TRAIN)])
    checkpoint = write_checkpoint(tmp_path / "checkpoint", target, data=digest, loss="lk")
    story = Story(
        data=(data,),
        prompt_files=("chat.jsonl",),
        licence="Apache-2.0",
        base_models=("org/toy",),
    )
    exported = export_draft(checkpoint, target, tmp_path / "draft", story=story)
    record = read_record(exported.path)
    assert record == exported.record
    assert record is not None
    assert (record.target_id, record.target_hash) == ("toy", target.model_hash)
    assert record.vocab_fingerprint == target.vocab_fingerprint
    assert record.recipe == {"loss": "lk", "steps": 7, "data": digest}
    (told,) = record.data
    assert (told.answers, told.tokens, told.held_out) == (1, 2, 1)
    card = (exported.path / "README.md").read_text()
    assert target.model_hash in card
    assert "chat.jsonl" in card


def test_a_draft_for_another_target_is_refused(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="same --target and --dtype"):
        export_draft(checkpoint, replace(target, model_hash="f" * 64), tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_a_draft_with_ids_that_the_target_has_not_is_refused(
    target: Target, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", target)
    write_draft_vocabulary(checkpoint, np.asarray([*KEPT[:-1], VOCAB + 9]))
    with pytest.raises(TrainingError, match=f"has token {VOCAB + 9} of its target"):
        export_draft(checkpoint, target, tmp_path / "draft")


def test_a_draft_without_a_map_and_with_too_few_ids_is_refused(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    (checkpoint / DRAFT_VOCABULARY).unlink()
    with pytest.raises(TrainingError, match=f"{KEPT.size} ids and no map"):
        export_draft(checkpoint, target, tmp_path / "draft")


def test_a_map_of_another_size_is_refused(checkpoint: Path, target: Target, tmp_path: Path) -> None:
    write_draft_vocabulary(checkpoint, KEPT[1:])
    with pytest.raises(TrainingError, match=f"map for {KEPT.size - 1}"):
        export_draft(checkpoint, target, tmp_path / "draft")


def test_a_vocabulary_without_an_end_is_refused(target: Target, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", target, KEPT[:-1])
    with pytest.raises(TrainingError, match=rf"{END} '<\|im_end\|>'"):
        export_draft(checkpoint, target, tmp_path / "draft")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(
    checkpoint: Path, target: Target, tmp_path: Path, value: float
) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = value
    model.save_pretrained(checkpoint)
    with pytest.raises(TrainingError, match=r"mlp\.up_proj\.weight holds numbers"):
        export_draft(checkpoint, target, tmp_path / "draft")


def test_weights_that_bfloat16_cannot_hold_are_refused(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.finfo(torch.float32).max
    model.save_pretrained(checkpoint)
    with pytest.raises(TrainingError, match=r"model\.norm\.weight"):
        export_draft(checkpoint, target, tmp_path / "draft")


def test_data_that_it_was_not_trained_on_does_not_get_into_its_card(
    target: Target, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", target, data="other")
    data = write_data(tmp_path / "data", target)
    with pytest.raises(TrainingError, match="trained on other data"):
        export_draft(checkpoint, target, tmp_path / "draft", story=Story(data=(data,)))
    data = write_data(tmp_path / "foreign", target, vocab_fingerprint="foreign")
    with pytest.raises(TrainingError, match="another tokenizer"):
        export_draft(checkpoint, target, tmp_path / "draft", story=Story(data=(data,)))


def test_measures_of_another_target_do_not_get_into_its_card(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    story = Story(measures={"evaluations": [{"source": {"model_hash": "other"}}]})
    with pytest.raises(ConfigError, match="evaluation"):
        export_draft(checkpoint, target, tmp_path / "draft", story=story)


def test_a_draft_that_the_engine_computes_otherwise_gets_no_folder(
    checkpoint: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_checkpoint(tmp_path / "other", target)
    model = LlamaForCausalLM.from_pretrained(other)
    with torch.no_grad():
        model.model.norm.weight *= 1.01
    model.save_pretrained(other)

    monkeypatch.setattr(exporting, "load_model", lambda _, **how: load_model(other, **how))
    before = set(tmp_path.iterdir())
    with pytest.raises(TrainingError, match="cannot be served as it was trained"):
        export_draft(checkpoint, target, tmp_path / "draft")
    assert set(tmp_path.iterdir()) == before


def test_a_full_disk_leaves_nothing_behind(
    checkpoint: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "write_card", full)
    with pytest.raises(TrainingError, match="No space left on device"):
        export_draft(checkpoint, target, tmp_path / "draft")
    assert {each.name for each in tmp_path.iterdir()} == {"checkpoint"}


def test_a_folder_that_is_there_is_left_alone(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    out = tmp_path / "draft"
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        export_draft(checkpoint, target, out)
    (out / "mine").unlink()
    assert export_draft(checkpoint, target, out).path == out


def test_an_unknown_type_of_weights_is_refused(
    checkpoint: Path, target: Target, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="float8"):
        export_draft(checkpoint, target, tmp_path / "draft", weights="float8")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["{", "[]", '{"begun": 1, "step": 2}', '{"begun": {}}'])
def test_a_run_that_cannot_be_read_is_told(
    checkpoint: Path, target: Target, tmp_path: Path, text: str
) -> None:
    (checkpoint / "run.json").write_text(text)
    with pytest.raises(CorruptModel, match=r"run\.json"):
        export_draft(checkpoint, target, tmp_path / "draft")


def test_a_run_is_exported_at_its_best_checkpoint_or_else_its_last(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        folder = tmp_path / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert find_checkpoint(tmp_path).name == "step-000300"
    (tmp_path / "best").symlink_to(Path("checkpoints") / "step-000200")
    assert find_checkpoint(tmp_path).name == "step-000200"
    assert find_checkpoint(tmp_path / "checkpoints" / "step-000100").name == "step-000100"


def test_a_folder_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="holds no checkpoint"):
        find_checkpoint(tmp_path)
