from __future__ import annotations

import math
from typing import Any

import pytest

from outrider.engine.families import ropes_of
from outrider.engine.rope_config import RopeConfig
from outrider.errors import CorruptModel, UnsupportedModel

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 2.0, 3.0, 4.0],
    "long_factor": [8.0] * 4,
    "original_max_position_embeddings": 64,
}


def read(partial: bool = False, **config: Any) -> RopeConfig:
    return RopeConfig.from_hf(config, context_length=256, head_dim=8, partial=partial)


def test_old_and_new_keys_mean_the_same() -> None:
    old = read(rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old == new
    assert (new.theta, new.factor) == (5e5, 8.0)


def test_the_oldest_name_of_a_variant_is_understood() -> None:
    assert read(rope_scaling={"type": "linear", "factor": 2.0}).factor == 2.0
    assert read(rope_scaling={**LONGROPE, "rope_type": "su"}).scaling == "longrope"


@pytest.mark.parametrize("name", ["dynamic", "yarn", "proportional"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_variants_are_refused_by_name(name: str, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"rope_type '{name}' is not supported.*llama3"):
        read(**{key: {"rope_type": name, "factor": 2.0}})


def test_parameters_by_layer_type_are_refused_where_layers_turn_alike() -> None:
    with pytest.raises(UnsupportedModel, match=r"by layer type .full_attention"):
        read(rope_parameters={"full_attention": {"rope_theta": 1e4}})


def test_a_share_of_a_head_is_refused_where_the_family_turns_whole_ones() -> None:
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor 0\.5"):
        read(partial_rotary_factor=0.5)
    assert read(partial_rotary_factor=1.0).rotary_dim is None


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "linear"}, "factor None"),
        ({"rope_type": "linear", "factor": 0}, "factor 0"),
        ("linear", "rope parameters 'linear'"),
        ({"rope_theta": "big"}, "rope_theta 'big'"),
        ({"rope_type": "frequency_factors", "factors": [1.0]}, "1 frequency factors for 4"),
        ({**LONGROPE, "short_factor": None}, "short_factor None"),
        ({**LONGROPE, "short_factor": [1.0, -1.0, 1.0, 1.0]}, "short_factor -1.0"),
        ({**LONGROPE, "short_factor": [1.0] * 3}, "short_factor holds 3 frequency factors for 4"),
        (
            {**LONGROPE, "original_max_position_embeddings": None},
            "original_max_position_embeddings None",
        ),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor 0.4 does not leave"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor 2.0 does not leave"),
    ],
)
def test_impossible_parameters_are_named(scaling: Any, message: str) -> None:
    with pytest.raises(CorruptModel, match=message):
        read(partial=True, rope_scaling=scaling)


@pytest.mark.parametrize(
    ("changes", "magnitude"),
    [
        ({}, math.sqrt(1 + math.log(4) / math.log(64))),
        ({"factor": 64.0}, math.sqrt(2)),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 1.5, "factor": 64.0}, 1.5),
    ],
)
def test_longrope_stretches_by_what_the_context_grew(
    changes: dict[str, float], magnitude: float
) -> None:
    rope = read(rope_parameters={**LONGROPE, **changes})
    assert rope.magnitude == pytest.approx(magnitude)
    assert rope.frequency_factors == (1.0, 2.0, 3.0, 4.0)
    assert rope.longest == 64


def test_only_longrope_ends_with_its_original_context() -> None:
    assert read(rope_scaling=LLAMA3).longest is None


def test_gemma3_turns_its_kinds_of_layers_apart() -> None:
    def ropes(**config: Any) -> tuple[RopeConfig, RopeConfig]:
        return ropes_of(config, "gemma3_text", context_length=256, head_dim=8)

    assert ropes() == (RopeConfig(theta=1e6), RopeConfig(theta=1e4))
    linear = {"rope_type": "linear", "factor": 8.0}
    expected = (RopeConfig(theta=5e5, scaling="linear", factor=8.0), RopeConfig(theta=2e4))
    assert ropes(rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling=linear) == expected
    by_layer = {
        "full_attention": {**linear, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    assert ropes(rope_parameters=by_layer) == expected
    with pytest.raises(UnsupportedModel, match="by layer type, full_attention"):
        ropes(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
