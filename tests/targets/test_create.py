from __future__ import annotations

import pytest

from outrider.config import load_settings
from outrider.errors import ConfigError
from outrider.targets import TableTarget, create_target
from outrider.targets.remote import RemoteTarget
from outrider.targets.replicas import ReplicatedTarget


def create(spec: str):
    target, lane = create_target(load_settings(None, {"engine": {"target": spec}}))
    assert lane is None
    return target


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("grpc://127.0.0.1:1", RemoteTarget),
        ("grpcs://gpu.example:8002", RemoteTarget),
        ("grpc://127.0.0.1:1,grpc://127.0.0.1:2", ReplicatedTarget),
    ],
)
def test_addresses_become_targets_that_connect_when_they_are_first_asked(spec, kind) -> None:
    assert type(create(spec)) is kind


def test_a_table_is_decoded_here(write_table) -> None:
    assert type(create(f"table:{write_table()}")) is TableTarget


@pytest.mark.parametrize("spec", ["grpc://nowhere", "grpcs:", "grpc://a:1,http://b:2"])
def test_what_is_no_address_is_refused(spec) -> None:
    with pytest.raises(ConfigError, match=r"engine\.target has"):
        create(spec)
