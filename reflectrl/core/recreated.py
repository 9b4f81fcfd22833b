"""``Recreated``: base class of objects that are copied by constructing them again with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T", bound="Recreated")


class Recreated:
    """Base class of objects whose resources (files, engines, processes) cannot be copied but can be created again.

    A subclass defines ``__getstate__`` and ``__setstate__`` for the state that a new object lacks to be equal to the
    original. ``gymnasium.utils.EzPickle`` is similar, but each class has to call it, and a copy has the initial state.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls: type[_T], *args: Any, **options: Any) -> _T:
        """Create the object and store the arguments, which the constructor receives next."""
        made = super().__new__(cls)
        made._made_with = args, options
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the call by which ``copy`` and ``pickle`` construct the object again."""
        return _make, (type(self), *self._made_with), self.__getstate__()


def _make(cls: type[Recreated], args: Sequence[Any], options: Mapping[str, Any]) -> Recreated:
    return cls(*args, **options)
