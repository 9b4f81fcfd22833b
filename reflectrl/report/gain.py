"""What several runs say about a success rate, and whether RLFT changed it: the one rule of all verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.report.series import mean_interval
from reflectrl.rollout.iteration import Z95, EpisodeMetrics, wilson_interval

_LEAST = 1e-9  # a probability or its variance, so that intervals in edited files divide by no 0


@dataclass(frozen=True)
class Interval:
    """Success rate, or difference of two, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, metrics: EpisodeMetrics) -> Interval:
        """Return the success rate of a run's evaluation, over its tasks."""
        return cls(metrics.success, metrics.success_low, metrics.success_high)

    def minus(self, other: Interval) -> Interval:
        """Return the difference, with the interval that follows from both (Newcombe 1998, method 10)."""
        difference = self.mean - other.mean
        down = ((self.mean - self.low) ** 2 + (other.high - other.mean) ** 2) ** 0.5
        up = ((self.high - self.mean) ** 2 + (other.mean - other.low) ** 2) ** 0.5
        return Interval(difference, difference - down, difference + up)

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def points(self) -> str:
        """The difference in percentage points."""
        return f"{100 * self.mean:+z.0f} points [{100 * self.low:+z.0f}, {100 * self.high:+z.0f}]"

    def __str__(self) -> str:
        return f"{100 * self.mean:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"


def over_runs(each: Sequence[Interval]) -> Interval:
    """Return the mean success of runs with its 95 % interval; of one run, what is known of it.

    The interval is Wilson's for the effective number of trials: that of all tasks of all runs, or fewer where the runs
    scatter more than their tasks explain. Then it is the number at which a binomial proportion would scatter as the
    runs do, with Student's quantile for them in place of the normal one (Korn and Graubard 1998, with Wilson's interval
    as Dean and Pagano 2015 advise). A t interval alone would make a certainty of runs that happen to be equal, and
    near 100 % would cut off its long side.
    """
    if len(each) == 1:
        return each[0]
    trials = _trials(each)
    mean, half = mean_interval([one.mean for one in each])
    if half:
        trials = min(trials, mean * (1 - mean) * (Z95 / half) ** 2)
    return Interval(mean, *wilson_interval(mean, max(trials, _LEAST)))


def change_over_runs(after: Sequence[Interval], before: Sequence[Interval]) -> Interval:
    """Return the mean change of success from one policy to another of the same runs, with its 95 % interval.

    Each end is Newcombe's for the tasks of all runs together or, if that is farther out, the end of the t interval of
    the runs' own changes. They are paired because runs of one seed share what its data were worth, which cancels. The
    number of runs decides, not that of tasks: three runs that gain 17, 9 and 1 points are not a clear gain.

    Args:
        after: success of the later policy, of one or more runs.
        before: that of the earlier policy in the same runs, in the same order.

    """
    tasks = _of_all_tasks(after).minus(_of_all_tasks(before))
    mean, half = mean_interval([one.mean - other.mean for one, other in zip(after, before, strict=True)])
    half = half or 0.0
    return Interval(mean, max(-1.0, min(tasks.low, mean - half)), min(1.0, max(tasks.high, mean + half)))


def tell_way(
    after: Sequence[Interval], random: Sequence[Interval], expert: Sequence[Interval], policy: str = "RLFT"
) -> str:
    """Return the sentence on where runs of one recipe ended between the random policy and the expert.

    Args:
        after: success of each run.
        random: success of the random policy in each run, in the same order; empty where it did not play.
        expert: success of the expert, likewise.
        policy: name of what played.

    """
    if not random:
        return ""
    ended, floor, top = over_runs(after), over_runs(random), over_runs(expert) if expert else None
    gain, reached = change_over_runs(after, random), f"the expert {100 * top.mean:.0f} %" if top else ""
    if not gain.is_clear or gain.mean < 0:
        told = "worse than random" if gain.is_clear else "not clearly better than random"
        return f"{policy} is {told} ({gain.points}): {', '.join(filter(None, (f'{ended} against {floor}', reached)))}."
    if top is None or top.mean <= floor.mean:
        told = ", ".join(filter(None, (f"random {100 * floor.mean:.0f} %", reached)))
        return f"{policy} is better than random: success is {ended}, {told}."
    way = (ended.mean - floor.mean) / (top.mean - floor.mean)
    return (
        f"{policy} went {100 * way:.0f} % of the way from random ({100 * floor.mean:.0f} %) to the expert "
        f"({100 * top.mean:.0f} %): success is {ended}."
    )


def tell_gain(
    after: Sequence[Interval], before: Sequence[Interval], success: str = "success", policy: str = "RLFT"
) -> str:
    """Return the sentence on what RLFT changed in runs of one recipe.

    Args:
        after: success of each run.
        before: success of each run before RLFT, in the same order; empty where it is not known.
        success: name of what was measured.
        policy: name of what played, in the sentence where nothing is known of before.

    """
    ended, seeds = over_runs(after), "" if len(after) == 1 else f", mean of {len(after)} runs"
    if not before:
        return f"{policy} ended at a {success} of {ended}{seeds}."
    gain, began = change_over_runs(after, before), over_runs(before)
    if gain.is_clear:
        return f"RLFT {'raised' if gain.mean > 0 else 'lowered'} {success} from {began} to {ended}{seeds}."
    return (
        f"RLFT made no clear difference ({gain.points}): {success} was {began} before it and {ended} after it{seeds}."
    )


def tell_worst(successes: Sequence[float], names: Sequence[str]) -> str:
    """Return the sentence on the worst of several runs; empty for one."""
    worst, name = min(zip(successes, names, strict=True))
    return "" if len(names) == 1 else f"The worst of these runs ended at {100 * worst:.0f} % ({name})."


def _of_all_tasks(each: Sequence[Interval]) -> Interval:
    """Return the mean of runs, with its interval over the tasks of these runs alone."""
    mean = sum(one.mean for one in each) / len(each)
    return each[0] if len(each) == 1 else Interval(mean, *wilson_interval(mean, _trials(each)))


def _trials(each: Sequence[Interval]) -> float:
    """Return the number of trials in which a proportion would vary as the mean of these runs does over their tasks."""
    return len(each) ** 2 / max(sum(map(_inverse_trials, each)), _LEAST)


def _inverse_trials(rate: Interval) -> float:
    """Return 1 over the number of trials of a Wilson interval, from its end on the longer side."""
    end = rate.low if rate.mean >= 0.5 else rate.high
    return ((rate.mean - end) / Z95) ** 2 / max(end * (1 - end), _LEAST)
