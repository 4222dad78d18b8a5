from __future__ import annotations

from collections import Counter
from dataclasses import replace

from outrider.targets.placement import placement_key, rank
from tests.targets.remote_serving import request

NAMES = [f"grpc://host{index}:8002" for index in range(5)]
EMPTY = dict.fromkeys(NAMES, (0, 1000))
KEYS = [placement_key(request(prompt_ids=(index,))) for index in range(2000)]


def test_what_begins_alike_has_one_key_and_tenants_never_share_it() -> None:
    system = tuple(range(100))
    first, second = (request(prompt_ids=(*system, last)) for last in (1, 2))
    assert placement_key(first) == placement_key(second)
    assert placement_key(first) != placement_key(replace(first, tenant="other"))
    assert placement_key(first) != placement_key(replace(first, prompt_ids=(7, *system)))


def test_a_key_keeps_its_server_whatever_order_they_are_named_in() -> None:
    backwards = dict(reversed(EMPTY.items()))
    assert all(rank(key, EMPTY) == rank(key, backwards) for key in KEYS[:50])


def test_keys_spread_evenly() -> None:
    counts = Counter(rank(key, EMPTY)[0] for key in KEYS)
    assert all(300 < counts[name] < 500 for name in NAMES)


def test_a_server_that_goes_moves_no_sessions_but_its_own() -> None:
    fewer = {name: EMPTY[name] for name in NAMES[1:]}
    for key in KEYS:
        before = rank(key, EMPTY)
        assert rank(key, fewer)[0] == (before[1] if before[0] == NAMES[0] else before[0])


def test_one_popular_beginning_loads_no_server_beyond_its_bound() -> None:
    held = dict.fromkeys(NAMES, 0)
    for _ in range(100):
        name = rank(KEYS[0], {name: (held[name], 1000) for name in NAMES})[0]
        held[name] += 1
    assert max(held.values()) == 25
    # The first is full, and so is the next, before the third is asked.
    assert sorted(held.values()) == [0, 25, 25, 25, 25]


def test_a_larger_server_takes_more() -> None:
    held = dict.fromkeys(NAMES[:2], 0)
    room = dict(zip(NAMES, (10, 30), strict=False))
    for _ in range(40):
        name = rank(KEYS[0], {name: (held[name], room[name]) for name in held})[0]
        held[name] += 1
    assert held == room


def test_a_full_server_comes_last_and_is_still_named() -> None:
    best = rank(KEYS[0], EMPTY)[0]
    assert rank(KEYS[0], EMPTY | {best: (1000, 1000)})[-1] == best
    assert set(rank(KEYS[0], dict.fromkeys(NAMES, (0, 0)))) == set(NAMES)
