"""``Drawn``: what a notebook shows as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Drawn:
    """Base class of values that are drawn by a room above those in which they are made."""

    as_html: ClassVar[Callable[[Any], str]]
    """Draws a value; set by the package root."""

    def _repr_html_(self) -> str:
        return Drawn.as_html(self)
