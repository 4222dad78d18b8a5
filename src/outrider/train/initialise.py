"""The first draft: layers of another model, or nothing but sizes.

Best first: layers of a smaller model of the target's family; layers of the target itself, with its
embeddings; random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from outrider.engine import ModelConfig, read_config
from outrider.engine.checkpoint import Checkpoint
from outrider.engine.shapes import EMBEDDING, HEAD, tensor_shapes
from outrider.errors import ConfigError, CorruptModel, TrainingError
from outrider.models import load_text_assets
from outrider.text import HFTokenizer, check_same_vocabulary

__all__ = ["Sizes", "choose_layers", "from_layers", "from_scratch"]

I64 = npt.NDArray[np.int64]

_LAYERS: Final = "model.layers."
_TOKENS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a draft from scratch.

    Attributes:
        hidden, intermediate: widths of the residual stream and of the MLP.
        layers: how many.
        heads, kv_heads: of queries, and of keys and values.

    Raises:
        ConfigError: they do not go together.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int

    def __post_init__(self) -> None:
        if min(self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate) < 1:
            raise ConfigError(f"{self}: sizes of a draft must be 1 or more")
        if self.hidden % (2 * self.heads):
            raise ConfigError(
                f"a hidden size of {self.hidden} does not divide into {self.heads} heads of an even"
                " size; choose a multiple of twice the heads"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly; choose a "
                "divisor"
            )


def choose_layers(given: str, num_layers: int) -> tuple[int, ...]:
    """Which layers of a model of `num_layers` a user means, ascending, counted from 0.

    `3` is three of them, evenly spaced, first and last included: what the embedding feeds and what
    feeds the head. `0,14,29` is these; `5,` is one.

    Raises:
        ConfigError: it is neither, or the model has no such layers.
    """
    try:
        named = [int(each) for each in given.split(",") if each.strip()]
    except ValueError:
        named = []
    listed = "," in given
    if not named or (not listed and not 1 <= named[0] <= num_layers):
        raise ConfigError(
            f"layers {given!r} must be how many, from 1 to {num_layers}, or which, as in "
            f"0,{num_layers - 1}"
        )
    if not listed:
        return tuple(np.linspace(0, num_layers - 1, named[0]).round().astype(int).tolist())
    if min(named) < 0 or max(named) >= num_layers or sorted(set(named)) != named:
        raise ConfigError(
            f"layers {given!r} must ascend and lie in 0..{num_layers - 1}, each named once"
        )
    return tuple(named)


def from_layers(
    folder: Path,
    layers: Sequence[int],
    *,
    tokenizer: HFTokenizer,
    target_ids: I64 | None = None,
    tied: bool | None = None,
) -> PreTrainedModel:
    """A draft of some layers of the model in `folder`, with the rows of its embedding and head.

    Reads only the tensors that it takes. With all layers and all ids it computes what the model
    does.

    Args:
        folder: in floating point, see `teacher_weights.float_folder`: a smaller model with the
            target's tokenizer, or the target.
        layers: ascending.
        tokenizer: the target's.
        target_ids: int64 [V_draft], ascending: the rows to take; None takes all.
        tied: whether the head is the embedding; None leaves it as the model has it. Of a model
            that has both, the embedding is kept.

    Returns:
        A model of the same family in float32, in draft ids.

    Raises:
        VocabularyMismatch: its tokens are not the target's.
        TrainingError: it has no such layers, or lacks rows.
        ModelError: it cannot be read.
    """
    source = read_config(folder)
    check_same_vocabulary(
        tokenizer.token_strings,
        HFTokenizer(load_text_assets(folder).tokenizer_json).token_strings,
        target_name="the target",
        draft_name=folder.name,
    )
    if not layers or not all(0 <= each < source.num_layers for each in layers):
        raise TrainingError(
            f"layers {list(layers)} are not all in 0..{source.num_layers - 1} of {folder}"
        )
    if target_ids is not None and target_ids[-1] >= source.vocab_size:
        raise TrainingError(
            f"{folder} has {source.vocab_size} rows, and token {target_ids[-1]} of the target is "
            "wanted; choose a model with the target's tokenizer"
        )
    config = _config(folder, layers, target_ids, source.tied_head if tied is None else tied)
    model = _empty(config)
    with ExitStack() as stack:
        checkpoint = Checkpoint(folder, stack)
        parts = dict(_parts(checkpoint, source, list(model.state_dict()), layers, target_ids))
    _fill(model, parts)
    return model


def from_scratch(
    folder: Path,
    sizes: Sizes,
    *,
    target_ids: I64 | None = None,
    tied: bool = True,
    seed: int = 0,
) -> PreTrainedModel:
    """A random draft of the plainest family, Llama, for the target in `folder`.

    Args:
        folder: the target's; its vocabulary and its context are taken.
        target_ids: int64 [V_draft], ascending; None for all of the target's ids.
        tied: whether the head is the embedding.
        seed: fixes the numbers.

    Raises:
        ModelError: `folder` cannot be read.
    """
    target = read_config(folder)
    config = LlamaConfig(
        vocab_size=target.vocab_size if target_ids is None else len(target_ids),
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=target.context_length,
        rope_parameters={"rope_type": "default", "rope_theta": target.rope.theta},
        rms_norm_eps=target.rms_norm_eps,
        tie_word_embeddings=tied,
        bos_token_id=_draft_tokens(target.bos_token_id, target_ids),
        eos_token_id=_draft_tokens(sorted(target.eos_token_ids), target_ids),
        pad_token_id=None,
        architectures=["LlamaForCausalLM"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _empty(config)


def _config(folder: Path, layers: Sequence[int], target_ids: I64 | None, tied: bool) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        words = " ".join(str(error).split())
        raise CorruptModel(f"{folder} cannot be read by transformers: {words}") from error
    kinds = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(layers)
    if kinds is not None:
        config.layer_types = [kinds[each] for each in layers]
    config.tie_word_embeddings = tied
    if target_ids is not None:
        config.vocab_size = len(target_ids)
        for name in _TOKENS:
            setattr(config, name, _draft_tokens(getattr(config, name, None), target_ids))
    return config


def _draft_tokens(tokens: Any, target_ids: I64 | None) -> Any:
    """One id or several, or none, in draft ids; those that the draft lacks are left out."""
    if tokens is None or target_ids is None:
        return tokens
    places = {int(token): place for place, token in enumerate(target_ids)}
    if isinstance(tokens, list):
        return [places[each] for each in tokens if each in places] or None
    return places.get(tokens)


def _empty(config: Any) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # has no types
        config, dtype=torch.float32, trust_remote_code=False
    )
    return model


def _parts(
    checkpoint: Checkpoint,
    source: ModelConfig,
    names: Sequence[str],
    layers: Sequence[int],
    target_ids: I64 | None,
) -> Iterator[tuple[str, Tensor]]:
    """The draft's tensors by name, out of the model's."""
    shapes = {**tensor_shapes(source), HEAD: (source.vocab_size, source.hidden_size)}
    rows = None if target_ids is None else torch.from_numpy(target_ids)
    for name in names:
        stored = _stored_name(name, layers)
        if stored == HEAD and source.tied_head and HEAD not in checkpoint:
            stored = EMBEDDING
        tensor = checkpoint.read(stored, shapes[stored])
        if stored in (EMBEDDING, HEAD) and rows is not None:
            tensor = tensor[rows]
        yield name, tensor.to(torch.float32, copy=True)


def _stored_name(name: str, layers: Sequence[int]) -> str:
    if not name.startswith(_LAYERS):
        return name
    index, _, rest = name.removeprefix(_LAYERS).partition(".")
    return f"{_LAYERS}{layers[int(index)]}.{rest}"


def _fill(model: PreTrainedModel, parts: dict[str, Tensor]) -> None:
    # A tied head is the same tensor under a second name: whatever comes last would win.
    if model.config.tie_word_embeddings:
        parts[HEAD] = parts[EMBEDDING]
    model.load_state_dict(parts, strict=True)
