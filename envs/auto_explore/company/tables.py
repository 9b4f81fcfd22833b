"""A table: one row a month or a day, one column of seeded numbers an aspect."""

from __future__ import annotations

import random
from datetime import date, timedelta

from reflectrl.envs.auto_explore.company.plan import Folder, Size

_MONTHS = 12
"""A table of no more rows than this has one a month."""


def table(folder: Folder, entity: str, size: Size, rng: random.Random) -> str:
    """The text of one file."""
    rows = rng.randint(*size.rows)
    year = rng.randint(2012, 2022)
    if rows <= _MONTHS:
        unit, keys = "month", [f"{year}-{number + 1:02}" for number in range(rows)]
    else:
        unit, keys = "day", [str(date(year, 1, 1) + timedelta(days=number)) for number in range(rows)]
    title = f"{folder.subject.name} of {entity.title()}" + (f" {folder.group}" if folder.group else "")
    lines = [",".join([unit, *(f"{title}: {aspect}" for aspect in folder.subject.aspects)])]
    usual = [rng.randint(10, 900) for _ in folder.subject.aspects]
    lines += [",".join([key, *(f"{number * rng.uniform(0.8, 1.2):.1f}" for number in usual)]) for key in keys]
    return "\n".join(lines) + "\n"
