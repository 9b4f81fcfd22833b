"""Table of a profile: the parts of an iteration with their seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich import box
from rich.console import Console
from rich.table import Table

from reflectrl.core.profile import Part, Profile


def mean_iteration(iterations: Sequence[Mapping[str, Part]]) -> dict[str, Part]:
    """Return calls and seconds of each part in a mean iteration, the most expensive first.

    The first iteration, which warms up, is left out where there are others.
    """
    counted = iterations[1:] or iterations
    names = dict.fromkeys(name for iteration in counted for name in iteration)
    means = {}
    for name in names:
        parts = [iteration.get(name, Part()) for iteration in counted]
        means[name] = Part(round(fmean(part.calls for part in parts)), fmean(part.seconds for part in parts))
    return dict(sorted(means.items(), key=lambda item: -item[1].seconds))


def print_profile(profile: Profile) -> None:
    """Print the mean iteration of ``profile``."""
    console = Console(markup=False, highlight=False, emoji=False)
    means = mean_iteration(profile.iterations)
    if not means:
        console.print("no iteration was trained, so there is no profile: the run is done, or its recipe has no rlft.")
        return
    total = sum(part.seconds for part in means.values())
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("part of an iteration", no_wrap=True)
    for name in ("calls", "seconds", "share"):
        table.add_column(name, justify="right")
    for name, part in means.items():
        table.add_row(name, str(part.calls) if part.calls else "", f"{part.seconds:.3f}", f"{part.seconds / total:.0%}")
    table.add_row("all", "", f"{total:.3f}", "100%")
    console.print(table)
    counted = len(profile.iterations) - 1
    console.print(f"mean of {counted} iterations, without the first" if counted > 0 else "the only iteration")
