from __future__ import annotations

import asyncio

import pytest

from outrider.config import Settings
from outrider.drafters import SessionView, SuffixDrafter, create_drafter
from outrider.drafters import suffix as module
from outrider.drafters.suffix_log import PythonLog
from outrider.errors import DraftFailed
from outrider.types import NO_DRAFT, SamplingParams, TargetInfo

pytestmark = pytest.mark.anyio

TEXT = list(range(100, 140))


def view(
    tokens: list[int],
    session_id: str = "s",
    *,
    tenant: str = "",
    prompt: int = 1,
    length: int | None = None,
    max_tokens: int = 4096,
) -> SessionView:
    return SessionView(
        session_id=session_id,
        tokens=tokens,
        length=len(tokens) if length is None else length,
        prompt_length=prompt,
        sampling=SamplingParams(max_tokens=max_tokens),
        noise_key=0,
        tenant=tenant,
    )


async def say(
    drafter: SuffixDrafter, tokens: list[int], *, tenant: str = "", prompt: int = 1
) -> None:
    """A whole session."""
    await drafter.propose(view(tokens, "said", tenant=tenant, prompt=prompt), 4)
    await drafter.release("said")


async def drafted(drafter: SuffixDrafter, tokens: list[int], tenant: str = "") -> tuple[int, ...]:
    """What a new session gets."""
    draft = await drafter.propose(view(tokens, "asks", tenant=tenant), 4)
    drafter._sessions.pop("asks")
    return draft.token_ids


async def test_it_drafts_from_the_request_itself() -> None:
    draft = await SuffixDrafter().propose(view([1, 2, 3, 4, 5, 9, 1, 2, 3]), 2)
    assert draft.token_ids == (4, 5)
    assert draft.source == "suffix"


async def test_it_drafts_from_earlier_outputs_of_the_tenant() -> None:
    drafter = SuffixDrafter()
    await say(drafter, TEXT)
    assert await drafted(drafter, [5, *TEXT[10:20]]) == tuple(TEXT[20:24])


async def test_an_output_of_a_tenant_never_appears_in_drafts_of_another() -> None:
    drafter = SuffixDrafter()
    await say(drafter, TEXT, tenant="a")
    assert await drafted(drafter, [5, *TEXT[10:20]], tenant="b") == ()
    assert await drafted(drafter, [5, *TEXT[10:20]]) == ()
    assert await drafted(drafter, [5, *TEXT[10:20]], tenant="a") == tuple(TEXT[20:24])


async def test_prompts_of_others_never_appear_beyond_the_tokens_that_lead_to_an_output() -> None:
    drafter = SuffixDrafter()
    await say(drafter, [*TEXT, 1, 2, 3], prompt=40)
    assert await drafted(drafter, [5, *TEXT[10:20]]) == ()
    assert await drafted(drafter, [5, *TEXT[36:40]]) == (1, 2, 3)


async def test_a_session_without_output_enters_nothing() -> None:
    drafter = SuffixDrafter()
    await say(drafter, TEXT, prompt=40)
    assert drafter.cache_bytes() == 0


async def test_what_was_committed_after_the_last_draft_enters_too() -> None:
    drafter, tokens = SuffixDrafter(), TEXT[:10]
    await drafter.propose(view(tokens), 4)
    tokens += TEXT[10:]
    await drafter.release("s")
    assert await drafted(drafter, [5, *TEXT[20:24]]) == tuple(TEXT[24:28])


async def test_the_better_of_both_sources_is_drafted() -> None:
    drafter = SuffixDrafter()
    await say(drafter, TEXT)
    own = [1, *TEXT[18:20], 7, 8, 9, 1, *TEXT[10:20]]
    assert await drafted(drafter, own) == tuple(TEXT[20:24])
    own = [*TEXT[5:20], 7, 8, 9, 6, 1, *TEXT[5:20]]
    assert await drafted(drafter, own) == (7, 8, 9, 6)


async def test_a_full_cache_forgets_the_oldest_outputs_first() -> None:
    drafter = SuffixDrafter(cache_tokens=128)
    await say(drafter, TEXT)
    await say(drafter, list(range(200, 240)))
    assert await drafted(drafter, [5, *TEXT[10:20]]) == tuple(TEXT[20:24])
    await say(drafter, list(range(300, 380)))
    assert await drafted(drafter, [5, *TEXT[10:20]]) == ()
    assert await drafted(drafter, [5, 320, 321, 322]) == (323, 324, 325, 326)
    assert drafter.cache_bytes() < 128 * 36 + 100


async def test_an_output_longer_than_the_cache_is_kept_in_part() -> None:
    drafter = SuffixDrafter(cache_tokens=64)
    await say(drafter, list(range(1000)))
    assert await drafted(drafter, [5, 980, 981, 982]) == (983, 984, 985, 986)
    assert await drafted(drafter, [5, 880, 881, 882]) == ()


async def test_the_cache_of_the_tenant_that_was_away_for_longest_goes() -> None:
    drafter = SuffixDrafter(max_tenants=2)
    await say(drafter, TEXT, tenant="a")
    await say(drafter, TEXT, tenant="b")
    assert await drafted(drafter, TEXT[10:20], tenant="a")
    await say(drafter, TEXT, tenant="c")
    assert await drafted(drafter, TEXT[10:20], tenant="b") == ()
    assert await drafted(drafter, TEXT[10:20], tenant="a")
    assert await drafted(drafter, TEXT[10:20], tenant="c")


async def test_a_thousand_tenants_take_no_more_memory_than_the_allowed_ones() -> None:
    drafter = SuffixDrafter(cache_tokens=1024, max_tenants=4)
    for tenant in range(1000):
        await say(drafter, TEXT, tenant=str(tenant))
        assert drafter.cache_bytes() <= 4 * (1024 * 36 + 100)


async def test_the_cache_grows_to_its_bound_and_keeps_what_it_held(monkeypatch) -> None:
    monkeypatch.setattr(module, "_SMALL", 1 << 12)  # so that the last steps run in a thread
    drafter = SuffixDrafter(cache_tokens=1 << 14)
    await say(drafter, TEXT)
    for start in range(0, 16_000, 1000):
        await say(drafter, list(range(1000 + start, 2000 + start)))
    assert drafter._caches[""].log.window == 1 << 14
    assert await drafted(drafter, [5, *TEXT[10:20]]) == tuple(TEXT[20:24])
    for start in range(0, 16_000, 1000):
        await say(drafter, list(range(1000 + start, 2000 + start)))
    assert drafter._caches[""].log.window == 1 << 14


async def test_without_memory_to_grow_a_cache_stays_as_large_as_it_is(monkeypatch) -> None:
    drafter = SuffixDrafter()
    await say(drafter, TEXT)

    def refuse(self, window: int):
        raise MemoryError

    monkeypatch.setattr(type(drafter._caches[""].log), "grown", refuse)
    for start in range(0, 9000, 1000):
        await say(drafter, list(range(1000 + start, 2000 + start)))
    assert await drafted(drafter, [5, 9100, 9101, 9102]) == (9103, 9104, 9105, 9106)
    assert drafter._caches[""].log.window == 4096


async def test_outputs_that_end_at_a_time_do_not_mix() -> None:
    drafter = SuffixDrafter()
    texts = [list(range(start, start + 9000)) for start in (10_000, 20_000, 30_000)]
    for number, text in enumerate(texts):
        await drafter.propose(view(text, str(number), max_tokens=9000), 4)
    await asyncio.gather(*(drafter.release(str(number)) for number in range(3)))
    for text in texts:
        for place in (5, 4090, 8190, 8990):
            tail = text[place : place + 4]
            assert await drafted(drafter, [5, *tail]) == tuple(text[place + 4 : place + 8])


async def test_tokens_beyond_the_view_are_not_looked_at() -> None:
    tokens = [1, 2, 3, 9, 1, 2, 7, 7, 1, 2, 8]
    draft = await SuffixDrafter().propose(view(tokens, length=6), 1)
    assert draft.token_ids == (3,)


async def test_growing_round_by_round_finds_what_a_fresh_look_finds() -> None:
    tokens = [(index * index) % 7 for index in range(300)]
    grown = SuffixDrafter()
    for length in range(1, 300, 7):
        fresh = await SuffixDrafter().propose(view(tokens, length=length), 5)
        assert await grown.propose(view(tokens, length=length), 5) == fresh


async def test_a_long_prompt_lets_others_run_while_it_is_read() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await SuffixDrafter().propose(view([7] * 32768, prompt=32768), 4)
    task.cancel()
    assert turns >= 7


async def test_a_draft_that_was_cancelled_while_reading_goes_on_where_it_was() -> None:
    drafter, tokens = SuffixDrafter(), [*range(20_000), 5, 6, 7]
    task = asyncio.create_task(drafter.propose(view(tokens, prompt=20_003), 3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert 0 < drafter._sessions["s"].read < 20_000
    draft = await drafter.propose(view(tokens, prompt=20_003), 3)
    assert draft.token_ids == (8, 9, 10)


async def test_of_a_request_longer_than_its_log_the_last_tokens_count(monkeypatch) -> None:
    monkeypatch.setattr(module, "_SESSION_TOKENS", 64)
    tokens = [*range(1000), 5, 6, 7, *range(500, 540), 510, 511, 512]
    draft = await SuffixDrafter().propose(view(tokens), 3)
    assert draft.token_ids == (513, 514, 515)
    assert (await SuffixDrafter().propose(view(tokens[:1003]), 3)).token_ids == ()


async def test_memory_of_a_session_is_observed_and_given_back() -> None:
    drafter = SuffixDrafter()
    await drafter.propose(view([1, 2, 3], max_tokens=60), 4)
    assert 64 * 36 <= drafter.session_bytes() < 64 * 36 + 100
    await drafter.release("s")
    await drafter.release("never seen")
    assert drafter.session_bytes() == 0


async def test_without_memory_for_a_session_there_is_no_draft(monkeypatch) -> None:
    def refuse(window: int):
        raise MemoryError(f"no room for a log of {window} tokens")

    monkeypatch.setattr(module, "open_log", refuse)
    with pytest.raises(DraftFailed, match="no room for a log of 4096 tokens"):
        await SuffixDrafter().propose(view([1, 2, 3], max_tokens=4000), 4)


async def test_without_memory_for_a_cache_a_session_ends_all_the_same(monkeypatch) -> None:
    drafter = SuffixDrafter()
    await drafter.propose(view(TEXT), 4)

    def refuse(window: int):
        raise MemoryError

    monkeypatch.setattr(module, "open_log", refuse)
    await drafter.release("s")
    assert drafter.cache_bytes() == drafter.session_bytes() == 0


async def test_closing_frees_everything() -> None:
    drafter = SuffixDrafter()
    await say(drafter, TEXT)
    await drafter.propose(view(TEXT), 4)
    await drafter.close()
    assert drafter.cache_bytes() == drafter.session_bytes() == 0


async def test_nothing_is_drafted_where_nothing_was_asked_for() -> None:
    assert await SuffixDrafter().propose(view([7] * 9), 0) is NO_DRAFT


async def test_it_says_that_its_drafts_depend_on_more_than_the_request() -> None:
    info = await SuffixDrafter().describe()
    assert info.name == "suffix"
    assert not info.deterministic


async def test_it_is_made_by_its_name_without_an_engine() -> None:
    target = TargetInfo("m", "h", 10, "f", frozenset(), 100)
    assert isinstance(create_drafter("suffix", target, None, Settings()), SuffixDrafter)


async def test_in_plain_python_it_drafts_the_same(monkeypatch) -> None:
    monkeypatch.setattr(module, "open_log", PythonLog)
    drafter = SuffixDrafter()
    await say(drafter, TEXT)
    assert await drafted(drafter, [5, *TEXT[10:20]]) == tuple(TEXT[20:24])


@pytest.mark.parametrize(
    "options", [{"cache_tokens": 100}, {"cache_tokens": 8}, {"max_tenants": 0}]
)
def test_impossible_bounds_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SuffixDrafter(**options)
