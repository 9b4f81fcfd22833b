"""The seats of the turn: one file for each frozen player, which says everything about it; ``SEATS`` lists them.

``table`` holds what follows from the list: who sees what. ``own`` seats a player that a recipe names by its class. The
trained player has its place in ``others``. What a memory keeps, and how it is searched, is in ``experience``,
``embedders``, ``neural`` and ``retriever``.
"""

from importlib import import_module

from reflectrl.seats.base import Bench, SeatKind, SeatSection

__all__ = ["SEATS", "Bench", "SeatKind", "SeatSection"]

FILES = (
    "planner",
    "memory",
    "reflector",
    "corrector",
    "rater",
)
"""The modules of this room that are a seat, in the order in which players of one moment speak: add yours here."""
SEATS: tuple[SeatKind, ...] = tuple(import_module(f"{__name__}.{name}").SEAT for name in FILES)
"""The frozen players' seats."""
