"""Whatever a draft server does, it is a failed draft in one line, and soon no traffic."""

from __future__ import annotations

import asyncio

import pytest

from outrider.errors import DraftFailed
from tests.servers.drafting import until

from .draft_servers import V, answer, scripted, view

pytestmark = pytest.mark.anyio


BAD = {
    "garbage": (answer(b"\xff\xfe"), "something else than was asked for"),
    "no_object": (answer([1, 2]), "something else than was asked for"),
    "wrong_types": (answer({"tokens": ["a"]}), "something else than was asked for"),
    "no_tokens": (answer({}), "something else than was asked for"),
    "too_many": (answer({"tokens": [1] * 5}), "5 tokens where at most 4"),
    "out_of_range": (answer({"tokens": [1, V]}), "drafted token id 5; ids of the target lie in"),
    "negative": (answer({"tokens": [-1]}), "drafted token id -1"),
    "huge": (answer(b'{"tokens": [' + b" " * 100_000 + b"1]}"), "more than 65536 bytes"),
    "html": (answer(b"<p>", media_type="text/html"), "Content-Type 'text/html'"),
    "packed": (
        answer(b"x", headers="Content-Encoding: gzip\r\n"),
        "with a packed body",
    ),
    "redirect": (
        answer({}, status=307, headers="Location: http://127.0.0.1:1/\r\n"),
        r"307.*: a redirect",
    ),
    "error": (answer({"error": {"message": "oh"}}, status=500), r"propose with 500 \(oh\)"),
    "forbidden": (answer({}, status=401), "401.*same peers.token on both sides"),
    "closed": (None, "ServerDisconnectedError"),
    "no_http": (b"hello\r\n\r\n", "cannot talk to draft server"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_whatever_a_server_answers_is_a_failed_draft_in_one_line_and_counts(
    kind, remote
) -> None:
    content, said = BAD[kind]
    async with scripted(propose=content) as server:
        drafter = remote(server.url)
        await drafter.describe()
        for _ in range(3):
            with pytest.raises(DraftFailed, match=said) as caught:
                await drafter.propose(view([0, 1]), 4)
            assert "\n" not in str(caught.value)
        drafts = server.drafts
        with pytest.raises(DraftFailed, match=r"cut off for 0\.[45] s"):
            await drafter.propose(view([0, 1]), 4)
        assert server.drafts == drafts  # no traffic
        await drafter.close()


async def test_a_request_that_the_server_does_not_take_is_not_held_against_it(remote) -> None:
    refusal = {"error": {"message": "tokens has 7"}}
    async with scripted(propose=answer(refusal, status=400)) as server:
        drafter = remote(server.url)
        await drafter.describe()
        for _ in range(5):
            with pytest.raises(DraftFailed, match=r"400 \(tokens has 7\)"):
                await drafter.propose(view([0, 1]), 4)
        assert server.drafts == 5
        await drafter.close()


async def test_a_busy_server_is_left_alone_for_as_long_as_it_says(remote) -> None:
    async with scripted(propose=answer({}, status=429, headers="Retry-After: 2\r\n")) as server:
        drafter = remote(server.url)
        await drafter.describe()
        with pytest.raises(DraftFailed, match="has no room now"):
            await drafter.propose(view([0, 1]), 4)
        with pytest.raises(DraftFailed, match=r"is busy for (2\.0|1\.9) s"):
            await drafter.propose(view([0, 1]), 4)
        assert server.drafts == 1
        await drafter.close()


async def test_a_server_that_comes_back_is_probed_beside_the_requests(monkeypatch, remote) -> None:
    async with scripted(propose=answer({}, status=500)) as server:
        drafter = remote(server.url)
        await drafter.describe()
        breaker = drafter._fleet.servers[0].breaker
        for _ in range(3):
            with pytest.raises(DraftFailed):
                await drafter.propose(view([0, 1]), 4)
        server.propose = answer({"tokens": [1]})
        breaker._open_until = 0.0
        before = len(server.asked)
        with pytest.raises(DraftFailed, match="cut off"):
            await drafter.propose(view([0, 1]), 4)
        await until(lambda: breaker.refusal() is None)
        assert server.asked[before:] == ["/v1/describe"]
        assert (await drafter.propose(view([0, 1]), 4)).token_ids == (1,)
        await drafter.close()


async def test_a_server_that_is_always_late_is_cut_off(remote) -> None:
    async def propose(path, body, writer):
        await asyncio.sleep(0.02)
        return answer({"tokens": [1]})

    async with scripted(propose=propose) as server:
        drafter = remote(server.url, deadline_ms=5)
        await drafter.describe()
        for length in range(2, 6):  # the first may take as long as it likes
            await drafter.propose(view([1] * length), 4)
        with pytest.raises(DraftFailed, match="cut off"):
            await drafter.propose(view([1] * 6), 4)
        await drafter.close()


async def test_a_server_that_hangs_is_cut_off_when_its_drafts_are_given_up(
    monkeypatch, remote
) -> None:
    monkeypatch.setattr("outrider.drafters.fleet._CLOSE_S", 0.05)
    answers = [answer({"tokens": [1]})]

    async def propose(path, body, writer):
        if not answers:
            await asyncio.sleep(1)
        return answers.pop()

    async with scripted(propose=propose) as server:
        drafter = remote(server.url, deadline_ms=10)
        await drafter.describe()
        await drafter.propose(view([0, 1]), 4)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await drafter.propose(view([0, 1, 2]), 4)
        with pytest.raises(DraftFailed, match="cut off"):
            await drafter.propose(view([0, 1, 2]), 4)
        await drafter.close()


async def test_a_server_whose_first_drafts_never_come_is_cut_off_too(monkeypatch, remote) -> None:
    monkeypatch.setattr("outrider.drafters.fleet._CLOSE_S", 0.05)
    monkeypatch.setattr("outrider.drafters.remote._LATER_S", 0.02)

    async def propose(path, body, writer):
        await asyncio.sleep(1)

    async with scripted(propose=propose) as server:
        drafter = remote(server.url, deadline_ms=10)
        await drafter.describe()
        for name in ("x", "y", "z"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03):
                    await drafter.propose(view([0, 1], name), 4)
        with pytest.raises(DraftFailed, match="cut off"):
            await drafter.propose(view([0, 1]), 4)


@pytest.mark.parametrize("where", ["head", "body"])
async def test_a_trickle_ends_like_a_hung_server(monkeypatch, where, remote) -> None:
    monkeypatch.setattr("outrider.drafters.remote._FIRST_S", 0.1)
    whole = answer({"tokens": [1, 2, 3, 4]})

    async def propose(path, body, writer):
        if where == "body":
            writer.write(whole[:-15])
        for byte in whole if where == "head" else whole[-15:]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    async with scripted(propose=propose) as server:
        drafter = remote(server.url)
        await drafter.describe()
        with pytest.raises(DraftFailed, match=r"did not answer within 0\.1 s"):
            await drafter.propose(view([0, 1]), 4)
        await drafter.close()
