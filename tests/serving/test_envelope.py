"""What goes around every request."""

from __future__ import annotations

import re

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from outrider.serving import ClientGone

from .echo import counted, echo

pytestmark = pytest.mark.anyio


async def answer(error: Exception) -> tuple[httpx.Response, dict[str, float | None]]:
    """What a client sees of `error`, and how it was counted, by status."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    app, registry = counted(fail)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.get("/some/%1bpath")
    counts = {
        sample.labels["status"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "requests_total" and sample.labels["endpoint"] == "other"
    }
    return response, counts


async def request_id(given: str | bytes) -> str:
    app, _ = counted(echo)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.post("/", json=1, headers={"X-Request-Id": given})
    assert response.json() == 1
    return response.headers["x-request-id"]


@pytest.mark.parametrize("given", ["req-7", "a b", "x" * 128, "~!@#"])
async def test_a_sane_request_id_is_echoed(given: str) -> None:
    assert await request_id(given) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "caf\u00e9".encode(), "a\tb"])
async def test_an_odd_request_id_is_replaced(given: str | bytes) -> None:
    assert re.fullmatch("[0-9a-f]{32}", await request_id(given))


async def test_an_error_is_answered_in_openais_form_and_counted() -> None:
    response, counts = await answer(HTTPException(409, "told", headers={"X-More": "1"}))
    assert response.status_code == 409
    assert response.json()["error"] == {
        "message": "told",
        "type": "conflict_error",
        "param": None,
        "code": "conflict",
    }
    assert response.headers["x-more"] == "1"
    assert response.headers["x-request-id"]
    assert counts == {"409": 1}


@pytest.mark.parametrize("status", [404, 405])
async def test_what_is_not_served_is_named_without_its_odd_characters(status: int) -> None:
    response, _ = await answer(HTTPException(status))
    message = response.json()["error"]["message"]
    assert message == "GET /some/%1bpath is not served here; GET / lists what is"


async def test_an_unforeseen_error_shows_nothing_of_its_inside() -> None:
    response, counts = await answer(ValueError("secret"))
    assert response.status_code == 500
    assert "secret" not in response.text
    assert counts == {"500": 1}


async def test_a_client_that_left_is_counted_as_499() -> None:
    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientGone

    app, registry = counted(leave)
    scope = {"type": "http", "method": "GET", "raw_path": b"/", "headers": []}

    async def never_called(*_: object) -> None:
        raise AssertionError

    await app(scope, never_called, never_called)
    labels = {"endpoint": "other", "status": "499"}
    assert registry.get_sample_value("requests_total", labels) == 1
