"""What tests of several rooms share: the real model, tiny tables, a pipeline over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import structlog

from outrider.config import load_settings
from outrider.models import ModelFolder, resolve


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    """The default model, in the user's own cache, shared between workers."""
    return resolve("smollm2-135m-q4_1", home=load_settings().home)


@pytest.fixture(scope="session")
def smollm2_folder(smollm2: ModelFolder) -> Path:
    return smollm2.path


@pytest.fixture(autouse=True)
def logs_as_they_are_at_first() -> None:
    """What a test before it set up, such as a level, no test should see."""
    structlog.reset_defaults()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TableWriter = Callable[..., Path]


@pytest.fixture
def write_table(tmp_path: Path) -> TableWriter:
    """Writes a random table of logits and returns its file."""

    def write(
        name: str = "target",
        *,
        seed: int = 0,
        vocab_size: int = 5,
        order: int = 1,
        eos: tuple[int, ...] = (),
        scale: float = 1.5,
        **extra: object,
    ) -> Path:
        draw = np.random.default_rng(seed)
        contexts = [""]
        keys = [""]
        for _ in range(order):
            contexts = [
                f"{context},{token}".strip(",")
                for context in contexts
                for token in range(vocab_size)
            ]
            keys += contexts
        logits = {key: (scale * draw.standard_normal(vocab_size)).tolist() for key in keys}
        table = {"vocab_size": vocab_size, "order": order, "eos": list(eos), "logits": logits}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(table | extra))
        return file

    return write
