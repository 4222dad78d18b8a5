from __future__ import annotations

from outrider.control.options import Options


def options(tokens: list[float], seconds: list[float], lost: list[float]) -> Options:
    return Options(0.0, tokens, seconds, lost, [False] * len(tokens))


def test_the_best_choice_has_the_most_tokens_per_second_whichever_it_is_sought_from() -> None:
    choices = options([1, 1.8, 2.4, 2.7], [1, 1.2, 1.4, 1.9], [0, 0, 0, 0])
    assert [choices.best(start) for start in range(4)] == [2, 2, 2, 2]


def test_what_others_lose_counts_against_a_choice() -> None:
    assert options([1, 1.8], [1, 1.2], [0, 0.3]).best(0) == 1
    assert options([1, 1.8], [1, 1.2], [0, 0.7]).best(0) == 0


def test_an_improvement_of_less_than_a_hundredth_is_none() -> None:
    assert not options([1, 1.2], [1, 1.195], [0, 0]).improves(1, 0)
    assert options([1, 1.2], [1, 1.1], [0, 0]).improves(1, 0)
