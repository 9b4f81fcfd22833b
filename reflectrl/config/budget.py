"""Section ``budget`` of a recipe: minutes, in place of settings, which then follow from measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reflectrl.core.addresses import dotted
from reflectrl.core.settings import Positive, Section


class BudgetSection(Section):
    """Time for a run; settings that the recipe does not state are chosen by measurement (``reflectrl.pipeline.auto``).

    The stages write into the run folder's ``recipe.yaml`` what they chose and why, so a run that continues keeps it.
    """

    minutes: Positive = 15.0
    """Time for all stages together, in minutes on this machine."""
    stated: list[str] | None = None
    """Dotted keys that the recipe states itself, which nothing overrides; absent in a recipe that was written by hand,
    whose loader fills it in."""
    chosen: dict[str, str] = {}
    """Reason of each setting that was chosen, by its dotted key; filled in by the stages."""

    def states(self, key: str) -> bool:
        """Return whether the recipe itself states ``key``, a part of it, or a section that contains it."""
        return any(f"{each}.".startswith(f"{key}.") or f"{key}.".startswith(f"{each}.") for each in self.stated or ())


def note_stated(values: dict[str, Any], given: Mapping[str, Any], overridden: Sequence[str]) -> None:
    """Note in a recipe's ``values``, if they have a budget, which keys the recipe ``given`` and its overrides state."""
    budget = values.get("budget")
    if isinstance(budget, dict):
        before = budget.get("stated")
        stated = [*(_stated(given) if before is None else before), *overridden]
        budget["stated"] = sorted(each for each in {*stated} if not each.startswith("budget"))


def _stated(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of ``values``, those of list entries by their numbers."""
    for key, value in dotted(values).items():
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for number, entry in enumerate(value):
                yield from (f"{key}.{number}.{inner}" for inner in dotted(entry))
        else:
            yield key
