"""Listening sockets."""

from __future__ import annotations

import socket

import pytest

from outrider.errors import ConfigError
from outrider.serving import bind


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == f"port {port} on 127.0.0.1 is in use; choose another with --port"


def test_a_host_that_is_none_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"no address 'no\.such\.host\.invalid'.*--host"):
        bind("no.such.host.invalid", 8000)


def test_an_address_of_another_machine_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1.*--host"):
        bind("192.0.2.1", 0)


def test_a_port_without_the_rights_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigError, match=r"port 80 on 127\.0\.0\.1 needs more rights.*--port"):
        bind("127.0.0.1", 80)
