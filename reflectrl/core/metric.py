"""``metric``: declares a field of a record as a metric; trackers and report take name, title and bounds from there."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Metric:
    """Name and display of a metric."""

    tracked: str
    """Name in an experiment tracker, ``group/name``."""
    title: str = ""
    """Title of its panel in the HTML report; empty for a metric that is not drawn."""
    fraction: bool = False
    """True if the metric lies between 0 and 1."""
    low: float | None = None
    """Lower bound of the metric; ``None`` if it has none."""


def metric(
    tracked: str,
    title: str = "",
    *,
    fraction: bool = False,
    low: float | None = None,
    default: Any = MISSING,
) -> Any:
    """Return a dataclass field that declares a metric; see ``Metric`` for the arguments."""
    shown = Metric(tracked, title, fraction, 0.0 if fraction else low)
    return field(default=default, metadata={"metric": shown})


def metrics_of(record: type[Any]) -> dict[str, Metric]:
    """Return the metrics among the fields of a record class, keyed by field name."""
    return {each.name: each.metadata["metric"] for each in fields(record) if "metric" in each.metadata}


def tracked(record: Any, prefix: str = "") -> dict[str, float]:
    """Return the metrics of a record that were measured, by their names in a tracker."""
    numbers = {f"{prefix}{each.tracked}": getattr(record, field) for field, each in metrics_of(type(record)).items()}
    return {name: number for name, number in numbers.items() if number is not None}
