from __future__ import annotations

from typing import Any

import pytest

from outrider.engine.windows import windows_of
from outrider.errors import CorruptModel, UnsupportedModel

FULL, SLIDING = "full_attention", "sliding_attention"
SWITCHED_ON = {"sliding_window": 8, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("family", "config", "windows"),
    [
        ("llama", {"sliding_window": 8}, [None] * 4),
        ("llama", {"layer_types": [FULL] * 4}, [None] * 4),
        ("mistral", {"sliding_window": 8}, [8] * 4),
        ("mistral", {"sliding_window": None}, [None] * 4),
        ("mistral", {}, [4096] * 4),
        ("phi3", {"sliding_window": 8}, [8] * 4),
        ("phi3", {}, [None] * 4),
        ("qwen2", {"sliding_window": 8}, [None] * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False}, [None] * 4),
        ("qwen2", {**SWITCHED_ON, "max_window_layers": 0}, [8] * 4),
        ("qwen2", {**SWITCHED_ON, "max_window_layers": 4}, [None] * 4),
        ("qwen2", {**SWITCHED_ON, "max_window_layers": 3}, [None, None, None, 8]),
        ("qwen2", SWITCHED_ON, [None] * 4),
        ("qwen3", {**SWITCHED_ON, "max_window_layers": 2}, [None, None, 8, 8]),
        ("qwen2", {"layer_types": [FULL] * 4}, [None] * 4),
        ("qwen2", {**SWITCHED_ON, "layer_types": [SLIDING, FULL] * 2}, [8, None, 8, None]),
        ("gemma2", {"sliding_window": 8}, [8, None, 8, None]),
        ("gemma2", {"sliding_window": None}, [None] * 4),
        ("gemma3_text", {"sliding_window": 8}, [8] * 4),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}, [8, 8, None, 8]),
        (
            "gemma3_text",
            {"sliding_window": 8, "layer_types": [FULL, SLIDING, SLIDING, SLIDING]},
            [None, 8, 8, 8],
        ),
    ],
)
def test_a_window_counts_in_the_layers_where_the_family_has_it(
    family: Any, config: dict[str, Any], windows: list[int | None]
) -> None:
    assert list(windows_of(config, family, 4)) == windows


def test_every_sixth_layer_of_gemma3_sees_everything() -> None:
    windows = windows_of({"sliding_window": 8}, "gemma3_text", 13)
    assert [layer for layer, window in enumerate(windows) if window is None] == [5, 11]


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("llama", {"layer_types": [SLIDING] * 4}, "'sliding_attention'.*None.*llama"),
        ("mistral", {"layer_types": [FULL, SLIDING] * 2}, "'full_attention', 'sliding.*mistral"),
        ("mistral", {"sliding_window": None, "layer_types": [SLIDING] * 4}, "'sliding_attention'"),
        ("qwen2", {"layer_types": [FULL, SLIDING] * 2}, "'full_attention', 'sliding_attention'"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'.*gemma2"),
    ],
)
def test_layers_that_the_family_does_not_have_are_refused_by_name(
    family: Any, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        windows_of(config, family, 4)


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window 0"),
        ("qwen2", {**SWITCHED_ON, "max_window_layers": None}, "max_window_layers None"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern 0"),
        ("gemma2", {"layer_types": [FULL]}, "1 layer_types for 4 layers"),
        ("gemma2", {"layer_types": "full"}, "layer_types 'full' is not a list"),
        ("gemma2", {"layer_types": [[FULL]] * 4}, "is not a list of words"),
    ],
)
def test_impossible_windows_are_named(family: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptModel, match=message):
        windows_of(config, family, 4)
