"""Table of a profile: the parts of an iteration with their seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from reflectrl.core.profile import Part, Profile
from reflectrl.core.text import counted
from reflectrl.report.table import print_line, print_rows


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
    means = mean_iteration(profile.iterations)
    if not means:
        print_line("no iteration was trained, so there is no profile: the run is done, or its recipe has no rlft.")
        return
    total = sum(part.seconds for part in means.values())
    rows = [
        (name, str(part.calls or ""), f"{part.seconds:.3f}", f"{part.seconds / total:.0%}")
        for name, part in means.items()
    ]
    heads = ("part of an iteration", "calls", "seconds", "share")
    print_rows(heads, [*rows, ("all", "", f"{total:.3f}", "100%")], words=1)
    later = len(profile.iterations) - 1
    print_line(f"mean of {counted(later, 'iteration')}, without the first" if later else "the only iteration")
