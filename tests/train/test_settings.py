"""Settings that cannot work, and those that changed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from outrider.errors import ConfigError, TrainingError
from outrider.train.first_draft import Origin
from outrider.train.interrupt import interruptible
from outrider.train.objective import LossSettings
from outrider.train.settings import DistilSettings, refuse_changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"warmup": 1.5}, "warmup is 1.5"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"max_length": 1}, "max_length is 1"),
        ({"seed": -1}, "seed is -1"),
        ({"teacher": "lively"}, "teacher 'lively' is none of stored, live"),
        ({"precision": "float16"}, "precision 'float16' is none of auto"),
    ],
)
def test_settings_that_cannot_work_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DistilSettings(**changes)


def test_every_setting_is_compared_when_a_run_goes_on() -> None:
    flat = DistilSettings(loss=LossSettings("kl")).flat()
    assert flat["loss.kind"] == "kl"
    assert {"epochs", "learning_rate", "seed", "loss.temperature"} <= flat.keys()
    refuse_changes(flat, dict(flat), "runs/a")


def test_a_setting_that_is_new_or_gone_is_a_change() -> None:
    with pytest.raises(TrainingError, match="runs/a was begun with b None, and this run has 1"):
        refuse_changes({"a": 1}, {"a": 1, "b": 1}, "runs/a")
    with pytest.raises(TrainingError, match="begun with a 1, and this run has None"):
        refuse_changes({"a": 1}, {}, "runs/a")


def test_random_numbers_and_a_model_to_begin_with_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--scratch"):
        Origin(scratch="layers=1", layers="2")


def test_where_a_draft_comes_from_is_compared_by_all_that_is_given() -> None:
    assert str(Origin(layers="4", vocabulary=8192)) == "layers=4 vocabulary=8192 seed=0"


def test_the_first_signal_asks_and_the_second_ends() -> None:
    told = []
    with interruptible(lambda: told.append(1)) as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        assert told == [1]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
