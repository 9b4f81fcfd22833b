"""``BatchCache``: the results of a batch function, each computed once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BatchCache(Generic[K, V]):
    """Results of a batch function for the ``size`` inputs used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of results in the cache."""
        return len(self._known)

    def get(self, inputs: Sequence[K], compute: Callable[[list[K]], Sequence[V]]) -> list[V]:
        """Return one result per input; ``compute`` is called with the different ones that are not in the cache."""
        if missing := [each for each in dict.fromkeys(inputs) if each not in self._known]:
            self._known.update(zip(missing, compute(missing), strict=True))
        results = [self._known[each] for each in inputs]
        for each in inputs:
            self._known.move_to_end(each)
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return results

    def clear(self) -> None:
        """Remove all results."""
        self._known.clear()
