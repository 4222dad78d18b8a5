"""The map from errors to HTTP."""

from __future__ import annotations

import inspect
import json

import pytest
from starlette.exceptions import HTTPException

import outrider.errors
from outrider.errors import (
    DraftFailed,
    OutriderError,
    Overloaded,
    RequestError,
    SessionLost,
    TargetFailed,
)
from outrider.serving import failure_of
from outrider.serving.failures import STATUS_OF


def _tree() -> list[type[OutriderError]]:
    members = vars(outrider.errors).values()
    return [m for m in members if inspect.isclass(m) and issubclass(m, OutriderError)]


def test_every_error_of_the_tree_has_a_status_of_its_own() -> None:
    assert set(STATUS_OF) == set(_tree())


@pytest.mark.parametrize("kind", _tree(), ids=lambda kind: kind.__name__)
def test_what_a_client_is_told_agrees_with_the_map(kind: type[OutriderError]) -> None:
    failure = failure_of(kind("said"))
    assert (failure.status, failure.type) == STATUS_OF[kind]
    body = json.loads(failure.body())
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert (body["error"]["message"] == "said") == (failure.status != 500)


def test_a_request_error_keeps_its_field_and_code() -> None:
    failure = failure_of(RequestError("n is 0", param="n", code="odd"))
    assert (failure.status, failure.param, failure.code) == (400, "n", "odd")


def test_overload_tells_when_to_come_again_at_least_a_second_later() -> None:
    assert failure_of(Overloaded("full", retry_after_s=0)).headers == {"Retry-After": "1"}


@pytest.mark.parametrize("kind", [TargetFailed, SessionLost, DraftFailed])
def test_failures_of_a_model_are_not_the_clients_fault(kind: type[OutriderError]) -> None:
    assert failure_of(kind("x")).status == 502


def test_an_unforeseen_error_is_internal() -> None:
    failure = failure_of(KeyError("secret"))
    assert failure.status == 500
    assert "secret" not in failure.message


def test_a_status_without_a_name_keeps_its_detail() -> None:
    failure = failure_of(HTTPException(418, "teapot", headers={"X": "y"}))
    assert (failure.status, failure.message, failure.headers) == (418, "teapot", {"X": "y"})
