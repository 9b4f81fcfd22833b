"""``Drawn``: what a notebook shows as HTML."""

from __future__ import annotations

from pkgutil import resolve_name


class Drawn:
    """Base class of values that the room ``report`` draws, which lies above the rooms in which they are made."""

    def _repr_html_(self) -> str:
        return str(resolve_name("reflectrl.report.notebook:drawn")(self))
