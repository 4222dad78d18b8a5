from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from outrider.engine import read_config
from outrider.errors import ConfigError, TrainingError, VocabularyMismatch
from outrider.text import HFTokenizer
from outrider.train.initialise import Sizes, choose_layers, from_layers, from_scratch
from tests.train.toy import VOCAB, toy_tokenizer

LAYERS = 4
END = VOCAB - 1
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"head_dim": 16},
    "phi3": {},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA | {"sliding_window_pattern": 2},
}
TRIMMED = np.asarray([*range(0, VOCAB - 2, 3), END])


def write_model(folder: Path, family: str = "llama", **own: Any) -> PreTrainedModel:
    """A random model of `LAYERS` layers, no two of whose rows are alike."""
    torch.manual_seed(1)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": [2, END],
        "pad_token_id": 0,
    }
    config = AutoConfig.for_model(family, **sizes | FAMILIES[family] | own)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 1:  # biases and norms begin all alike
                each.add_(torch.rand_like(each) * 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(toy_tokenizer())
    return model


def logits_of(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


@pytest.fixture(scope="module")
def tokenizer() -> HFTokenizer:
    return HFTokenizer(toy_tokenizer())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_and_all_ids_are_the_model_itself(
    tmp_path: Path, tokenizer: HFTokenizer, family: str, tied: bool
) -> None:
    model = write_model(tmp_path, family, tie_word_embeddings=tied)
    draft = from_layers(tmp_path, range(LAYERS), tokenizer=tokenizer).eval()
    tokens = torch.randint(0, VOCAB, (20,)).tolist()
    assert torch.equal(logits_of(draft, tokens), logits_of(model, tokens))
    assert type(draft) is type(model)
    assert draft.config.tie_word_embeddings is tied


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
def test_a_trimmed_draft_has_the_columns_of_the_models_logits(
    tmp_path: Path, tokenizer: HFTokenizer, family: str, tied: bool
) -> None:
    model = write_model(tmp_path, family, tie_word_embeddings=tied)
    draft = from_layers(tmp_path, range(LAYERS), tokenizer=tokenizer, target_ids=TRIMMED).eval()
    tokens = torch.randint(0, TRIMMED.size, (20,)).tolist()
    ours = logits_of(draft, tokens)
    theirs = logits_of(model, TRIMMED[tokens].tolist())[:, TRIMMED]
    assert ours.shape == (20, TRIMMED.size)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_rows_of_embedding_and_head_go_to_the_right_ids(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    model = write_model(tmp_path)
    draft = from_layers(tmp_path, [0], tokenizer=tokenizer, target_ids=TRIMMED)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for place, token_id in enumerate(TRIMMED.tolist()):
        assert torch.equal(draft.get_input_embeddings().weight[place], embedding[token_id])
        assert torch.equal(draft.get_output_embeddings().weight[place], head[token_id])
    assert not torch.equal(embedding, head)


def test_layers_are_those_that_were_named_in_their_order(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    model = write_model(tmp_path)
    draft = from_layers(tmp_path, (1, 3), tokenizer=tokenizer)
    theirs = model.state_dict()
    assert draft.config.num_hidden_layers == 2
    for ours, source in ((0, 1), (1, 3)):
        for name, tensor in draft.model.layers[ours].state_dict().items():
            assert torch.equal(tensor, theirs[f"model.layers.{source}.{name}"]), name


def test_a_layer_keeps_its_window(tmp_path: Path, tokenizer: HFTokenizer) -> None:
    model = write_model(tmp_path, "qwen2")
    assert model.config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    draft = from_layers(tmp_path, (0, 3), tokenizer=tokenizer)
    draft.save_pretrained(tmp_path / "draft")
    assert read_config(tmp_path / "draft").windows == (None, 8)


def test_a_draft_is_trained_in_float32_whatever_its_source_is_kept_in(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    model = write_model(tmp_path).bfloat16()
    model.save_pretrained(tmp_path)
    draft = from_layers(tmp_path, range(LAYERS), tokenizer=tokenizer)
    assert {each.dtype for each in draft.parameters()} == {torch.float32}
    assert torch.equal(draft.lm_head.weight, model.lm_head.weight.float())


def test_special_ids_of_the_config_become_the_drafts(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    write_model(tmp_path)
    draft = from_layers(tmp_path, [0], tokenizer=tokenizer, target_ids=TRIMMED)
    config = draft.config
    assert (config.bos_token_id, config.eos_token_id) == (None, [TRIMMED.size - 1])
    assert config.pad_token_id == 0
    assert config.vocab_size == TRIMMED.size


def test_tying_keeps_the_embedding_and_untying_copies_it(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    model = write_model(tmp_path / "two")
    tied = from_layers(tmp_path / "two", [0], tokenizer=tokenizer, tied=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert torch.equal(tied.lm_head.weight, model.model.embed_tokens.weight)
    model = write_model(tmp_path / "one", tie_word_embeddings=True)
    untied = from_layers(tmp_path / "one", [0], tokenizer=tokenizer, tied=False)
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert torch.equal(untied.lm_head.weight, model.model.embed_tokens.weight)


def test_a_model_with_other_tokens_is_refused_though_it_has_as_many(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    write_model(tmp_path)
    other = json.loads(toy_tokenizer())
    vocabulary = other["model"]["vocab"]
    vocabulary["er"], vocabulary["in"] = vocabulary["in"], vocabulary["er"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(VocabularyMismatch, match="2 of 265 ids differ"):
        from_layers(tmp_path, [0], tokenizer=tokenizer)


def test_layers_and_rows_that_are_not_there_are_told(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    write_model(tmp_path, vocab_size=VOCAB - 5, eos_token_id=2)
    with pytest.raises(TrainingError, match=r"layers \[0, 4\] are not all in 0..3"):
        from_layers(tmp_path, [0, 4], tokenizer=tokenizer)
    with pytest.raises(TrainingError, match=f"token {END} of the target is wanted"):
        from_layers(tmp_path, [0], tokenizer=tokenizer, target_ids=TRIMMED)


def test_a_draft_from_scratch_has_the_sizes_asked_for_and_the_targets_context(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "qwen2", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    sizes = Sizes(hidden=24, layers=3, heads=6, kv_heads=2, intermediate=40)
    draft = from_scratch(tmp_path, sizes, target_ids=TRIMMED)
    draft.save_pretrained(tmp_path / "draft")
    made = read_config(tmp_path / "draft")
    assert (made.family, made.hidden_size, made.num_layers) == ("llama", 24, 3)
    assert (made.num_heads, made.num_kv_heads, made.head_dim) == (6, 2, 4)
    assert (made.vocab_size, made.context_length, made.rope.theta) == (TRIMMED.size, 128, 5e5)
    assert made.tied_head
    assert made.eos_token_ids == {TRIMMED.size - 1}


def test_a_seed_fixes_a_draft_from_scratch_and_nothing_else(tmp_path: Path) -> None:
    write_model(tmp_path)
    sizes = Sizes(hidden=16, layers=1, heads=2, kv_heads=2, intermediate=16)
    before = torch.random.get_rng_state()
    weights = [
        from_scratch(tmp_path, sizes, seed=seed).model.embed_tokens.weight for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ("3", (0, 14, 29)),
        ("1", (0,)),
        ("2", (0, 29)),
        ("30", tuple(range(30))),
        ("0,14,29", (0, 14, 29)),
        ("5,", (5,)),
    ],
)
def test_layers_are_given_by_number_or_by_name(given: str, layers: tuple[int, ...]) -> None:
    assert choose_layers(given, 30) == layers


@pytest.mark.parametrize("given", ["0", "31", "-1", "a", "", ",", "1,30", "3,1", "1,1", "-1,2"])
def test_layers_that_mean_nothing_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="layers"):
        choose_layers(given, 30)


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 30, "heads": 4, "kv_heads": 2},
        {"hidden": 32, "heads": 4, "kv_heads": 3},
        {"hidden": 32, "heads": 0, "kv_heads": 1},
        {"hidden": 32, "heads": 4, "kv_heads": 2, "layers": 0},
    ],
)
def test_sizes_that_do_not_go_together_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Sizes(**{"layers": 1, "intermediate": 8, **sizes})
