from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from outrider.config import PeerSettings
from outrider.errors import ConfigError
from outrider.serving import Bearer, check_exposure

TOKEN = PeerSettings(token="secret")  # type: ignore[arg-type] # noqa: S106 # pydantic makes it one


def scope(*headers: bytes) -> dict[str, object]:
    return {"type": "http", "headers": [(b"authorization", header) for header in headers]}


def test_with_a_token_set_only_that_token_is_let_in() -> None:
    bearer = Bearer(TOKEN)
    bearer.check(scope(b"Bearer secret"))
    for headers in ((), (b"Bearer secret2",), (b"secret",), (b"Basic secret",), (b"\xff",)):
        with pytest.raises(HTTPException) as caught:
            bearer.check(scope(*headers))
        assert caught.value.status_code == 401


def test_without_a_token_anybody_is_let_in() -> None:
    Bearer(PeerSettings()).check(scope())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host) -> None:
    check_exposure(host, PeerSettings(), "draft_server")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "box.example"])  # noqa: S104 # refused
def test_what_others_reach_needs_a_token(host) -> None:
    with pytest.raises(ConfigError, match=r"draft_server\.host.*peers\.token"):
        check_exposure(host, PeerSettings(), "draft_server")
    check_exposure(host, TOKEN, "draft_server")
