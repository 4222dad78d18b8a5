from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from outrider.config import PeerSettings
from outrider.errors import ConfigError
from outrider.rpc.channel import Address, call_metadata, open_channel, parse_addresses


def test_an_address_has_host_port_and_whether_it_is_secure() -> None:
    assert parse_addresses("grpc://10.0.0.1:8002") == (Address("10.0.0.1", 8002),)
    assert parse_addresses("grpcs://gpu.example:443") == (Address("gpu.example", 443, secure=True),)


def test_several_addresses_stand_with_commas_between() -> None:
    found = parse_addresses("grpc://a:1, grpc://b:1,grpcs://a:2")
    assert [str(address) for address in found] == ["grpc://a:1", "grpc://b:1", "grpcs://a:2"]


def test_an_ipv6_address_keeps_its_brackets_for_grpc() -> None:
    (address,) = parse_addresses("grpc://[::1]:8002")
    assert address.host == "::1"
    assert str(address) == "grpc://[::1]:8002"


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("grpc://a", "names no port"),
        ("grpc://a:0", "names no port"),
        ("grpc://:8002", "names no host"),
        ("grpc://a:99999", "out of range"),
        ("http://a:1", "no target server"),
        ("grpc://a:1,", "no target server"),
        ("grpc://a:1/path", "more than a host and a port"),
        ("grpc://me@a:1", "more than a host and a port"),
        ("grpc://a:1,grpc://a:1", "twice"),
        ("grpc://a:1,grpcs://a:1", "twice"),
    ],
)
def test_what_is_no_address_is_refused_with_the_remedy(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        parse_addresses(spec)
    assert "\n" not in str(refused.value)


def test_the_token_is_shown_as_a_bearer_token() -> None:
    peers = PeerSettings(token=SecretStr("secret"))
    assert call_metadata(peers) == (("authorization", "Bearer secret"),)
    assert call_metadata(PeerSettings()) == ()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    peers = PeerSettings().model_copy(update={"ca_file": tmp_path / "missing.pem"})
    with pytest.raises(ConfigError, match=r"missing\.pem cannot be read"):
        open_channel(Address("a", 1, secure=True), peers)
