"""``BatchCache``: each input is computed once, as long as it is used often enough."""

from __future__ import annotations

import pytest

from reflectrl.core.cache import BatchCache


class Doubling:
    """Batch function that records its inputs."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, inputs: list[int]) -> list[int]:
        self.asked.append(inputs)
        return [2 * each for each in inputs]


def test_new_inputs_are_computed_together_and_once() -> None:
    double, cache = Doubling(), BatchCache[int, int](10)
    assert cache.get([1, 2, 1], double) == [2, 4, 2]
    assert cache.get([2, 3], double) == [4, 6]
    assert cache.get([3, 1], double) == [6, 2]
    assert double.asked == [[1, 2], [3]]


def test_the_results_used_last_are_kept() -> None:
    double, cache = Doubling(), BatchCache[int, int](2)
    assert cache.get([8, 7], double) == [16, 14]
    assert cache.get([7], double) == [14]
    assert cache.get([9], double) == [18]  # in place of 8
    assert cache.get([7, 8, 9], double) == [14, 16, 18]
    assert (double.asked, len(cache)) == ([[8, 7], [9], [8]], 2)
    cache.clear()
    assert len(cache) == 0


def test_what_fails_is_computed_again() -> None:
    cache = BatchCache[int, int](2)
    with pytest.raises(ZeroDivisionError):
        cache.get([0], lambda inputs: [1 // each for each in inputs])
    assert cache.get([0], Doubling()) == [0]
