"""What the published tables say of the shipped recipes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from arms import ENVIRONMENTS, LEARNING, SIBLINGS, Arm, published_rows  # noqa: E402
from studies import GPU_STUDIES, STUDIES  # noqa: E402


class Outcome(NamedTuple):
    """Cells of a recipe."""

    success: str
    """The mean in per cent with its interval, linked to its table."""
    minutes: str


def outcomes() -> Mapping[str, Outcome]:
    """The recipes with published runs, whose settings were not changed for them, and what these reached."""
    tables = {mark: published_rows(page, mark) for page, mark in ((LEARNING, "learning"), (SIBLINGS, "siblings"))}
    tables["pretrained"] = published_rows(LEARNING, "pretrained")
    found: dict[str, Outcome] = {}
    for mark, about, arm, gpu in _arms():
        first = [about, arm.title, "GPU" if gpu else "CPU"] if mark == "pretrained" else [about, arm.title]
        own = [row for row in tables[mark] if [*row.values()][: len(first)] == first]
        if own and all(override.startswith("eval.") for override in arm.overrides):
            page = SIBLINGS if mark == "siblings" else LEARNING
            success = f"[{own[0]['mean']}](results-{page.stem}.md){' on a GPU' * gpu}"
            minutes = "" if gpu else own[0].get("minutes", "")  # on a GPU, several runs shared it
            found.setdefault(arm.recipe, Outcome(success, minutes))
    return found


def _arms() -> Iterator[tuple[str, str, Arm, bool]]:
    """The table of each arm, what its first cell says there, the arm, and whether its recipe was run on a GPU only."""
    for env, played in ENVIRONMENTS.items():
        yield from (("learning", env, arm, False) for arm in (played.silent, played.reflecting, *played.ablations))
    for name, study in {**STUDIES, **GPU_STUDIES}.items():
        kind, _, task = name.partition("_")
        mark, about = ("pretrained", task) if kind == "pretrained" else ("siblings", name)
        yield from ((mark, about, arm, name in GPU_STUDIES) for arm in study.arms)
