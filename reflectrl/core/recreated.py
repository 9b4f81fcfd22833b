"""``Recreated``: base class of objects that are copied by making them again with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T", bound="Recreated")


class Recreated:
    """Base class of objects whose insides (files, engines, processes) cannot be copied, but can be made again.

    A subclass defines ``__getstate__`` and ``__setstate__`` for what a new object lacks to be like the original.
    ``gymnasium.utils.EzPickle`` is similar, but each class has to call it, and a copy starts from the beginning.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls: type[_T], *args: Any, **options: Any) -> _T:
        """Remember the arguments; the constructor gets them next."""
        made = super().__new__(cls)
        made._made_with = args, options
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the call by which ``copy`` and ``pickle`` make the object again."""
        return _make, (type(self), *self._made_with), self.__getstate__()


def _make(cls: type[Recreated], args: Sequence[Any], options: Mapping[str, Any]) -> Recreated:
    return cls(*args, **options)
