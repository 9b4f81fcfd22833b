"""Garbage collections of libraries, which search all objects of a process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def living_objects_left_out() -> Iterator[None]:
    """Leave what is alive out of the collections inside the block: to search millions of rows takes seconds.

    Where objects were left out before, such as by a server before it forks, all stay so.
    """
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not before:
            gc.unfreeze()
