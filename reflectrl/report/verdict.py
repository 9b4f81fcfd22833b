"""Verdict on runs in plain sentences: how far RLFT came, what reflections were worth, what did not last, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from reflectrl.report.causes import Cause, causes, what_words_do
from reflectrl.report.compare import Rows, group_runs, repeats
from reflectrl.report.gain import Interval, change_over_runs, over_runs, tell_gain, tell_way, tell_worst
from reflectrl.report.runs import RunData
from reflectrl.report.series import largest_fall
from reflectrl.report.tables import print_line
from reflectrl.rollout.iteration import best_check
from reflectrl.rollout.results import CLEAR, EvalRow, way_to_play


def kept_and_played(run: RunData) -> Iterator[str]:
    """Yield a sentence if RLFT has kept the weights that it began with, and one if it matters how they are played."""
    validated = run.validated
    if validated is not None and validated.iterations == 0:
        scale = next((each.sharpened for each in run.points if each.sharpened not in (None, 1.0)), None)
        began = f", those of SFT with logits times {scale:g}" if scale else ""
        yield (
            f"{run.name} kept the weights that RLFT began with{began}: none that it trained did better in validation "
            f"({validated.rates})."
        )
    greedily = validated is None or validated.plays_greedily
    how = f"{run.name} is played with {way_to_play(greedy=greedily, validated=validated)} unless asked otherwise"
    if tested := _test(run):
        yield f"{how}: {tested}."
    elif validated is not None and validated.differs:
        yield f"{how}."


def _test(run: RunData) -> str:
    """Return the success rates of both ways to play in an evaluation where they differ; empty where in none."""
    rates = {(row.split, row.mode): row.metrics.success for row in run.own_rows if row.policy == "rlft"}
    for (split, mode), sampled in rates.items():
        greedy = rates.get((split, "greedy"))
        if mode == "sampled" and greedy is not None and abs(sampled - greedy) > CLEAR:
            return (
                f"on split {split}, {100 * sampled:.0f} % succeeded with sampled actions, {100 * greedy:.0f} % greedily"
            )
    return ""


LARGE_FALL = 0.1
"""Minimum fall from the best success rate of a training that is worth a sentence."""
_OF_THE_PLAYER = ("players.reflector.", "reflector_model", "eval.", "name", "description", "seed")
"""Keys in which a run with reflections and one without may differ and still be compared."""
_PLAYED = ("eval.split", "eval.tasks", "eval.max_tasks", "eval.env")
"""Keys of the evaluation in which they may not, because they decide what is played."""


def verdict(runs: Sequence[RunData]) -> list[str]:
    """Return sentences on evaluated runs, with runs of equal recipes taken together; none if nothing was evaluated."""
    evaluated = [run for run in runs if judged_rows(run)]
    groups = group_runs(evaluated)
    several = len(groups) > 1
    sentences = [sentence for name, group in groups.items() for sentence in _gain(group, f"{name}: " * several)]
    worth, explained = _worth_of_reflections(groups)
    sentences += worth
    sentences += [sentence for run in runs for sentence in (*_fall(run), *kept_and_played(run))]
    sentences += [
        sentence
        for name, group in groups.items()
        if name not in explained
        for sentence in _why(group, f"{name}: " * several)
    ]
    sentences += repeats(evaluated)
    if groups and max(map(len, groups.values())) == 1:
        sentences.append("One run a recipe: other seeds may end elsewhere (`reflectrl run --seeds 0-4` tells).")
    return sentences


def print_verdict(runs: Sequence[RunData]) -> None:
    """Print the verdict on ``runs``."""
    for sentence in verdict(runs):
        print_line(sentence)


def judged_rows(run: RunData) -> Rows | None:
    """Return the rows of a run that the verdict is about, of the test if it was played; ``None`` without RLFT's."""
    splits = judged_splits(run)
    return Rows(split="test" if "test" in splits else splits[0]) if splits else None


def judged_of(runs: Sequence[RunData]) -> Rows | None:
    """Return the rows in which several runs are compared: those that the first evaluated one is judged by."""
    return next(filter(None, map(judged_rows, runs)), None)


def judged_splits(run: RunData) -> list[str]:
    """Return the splits on which RLFT was evaluated with sampled actions."""
    return [row.split for row in run.own_rows if (row.policy, row.mode) == ("rlft", "sampled")]


def judged_row(run: RunData, policy: str, reflections: str | None = None) -> EvalRow | None:
    """Return the row of a policy that the verdict is about, by default with the recipe's own reflections."""
    wanted = judged_rows(run)
    return replace(wanted, reflections=reflections).of(run).get(policy) if wanted else None


def _estimates(group: Sequence[RunData], policy: str, reflections: str | None = None) -> list[Interval]:
    """Return the success of a policy in each run, over its tasks; none if a run lacks it."""
    found = [Interval.of(row.metrics) for run in group if (row := judged_row(run, policy, reflections))]
    return found if len(found) == len(group) else []


def _gain(group: Sequence[RunData], name: str) -> Iterator[str]:
    each = _estimates(group, "rlft")
    if not each:
        return
    rows = judged_rows(group[0])
    success = f"success on split {rows.split}" if rows and len(judged_splits(group[0])) > 1 else "success"
    before = _estimates(group, "sft")
    random = _estimates(group, "random")
    if way := tell_way(each, random, _estimates(group, "expert")):
        yield name + way
    if random and not change_over_runs(each, random).is_clear:
        reached, chance = (_mean_return(group, policy) for policy in ("rlft", "random"))
        yield f"{name}The mean return is {reached:+.3g}, that of random play {chance:+.3g}."
    if untrained := _estimates(group, "zero_shot", "none"):
        seeds = "" if len(group) == 1 else f", mean of {len(group)} runs"
        shown = over_runs(untrained)
        yield f"{name}Zero-shot, before any training and without reflections, {success} was {shown}{seeds}."
    if before or not way:
        yield name + tell_gain(each, before, success)
    if worst := tell_worst([one.mean for one in each], [run.name for run in group]):
        yield worst


def _mean_return(group: Sequence[RunData], policy: str) -> float:
    return fmean(row.metrics.episode_return for run in group if (row := judged_row(run, policy)))


def _why(group: Sequence[RunData], name: str) -> Iterator[str]:
    """Yield a sentence on each proved cause of a low success, of the worst run of a group."""
    judged = [(run, row) for run in group if (row := judged_row(run, "rlft"))]
    run, _ = min(judged, key=lambda pair: pair[1].metrics.success)
    of = f"{name}{run.name}: " if len(group) > 1 else name
    for cause in _causes(run):
        yield f"{of}Why: {cause.why}. Try: {cause.remedy}."


@lru_cache(maxsize=256)  # they are in the episodes, which a page that follows runs reads again only if they changed
def _causes(run: RunData) -> tuple[Cause, ...]:
    rows = {policy: row for policy in ("rlft", "random", "expert") if (row := judged_row(run, policy))}
    return tuple(causes(run, rows))


@lru_cache(maxsize=256)  # likewise
def _what_words_do(run: RunData) -> str | None:
    row = judged_row(run, "rlft")
    return what_words_do(run, row) if row else None


def _worth_of_reflections(groups: Mapping[str, Sequence[RunData]]) -> tuple[list[str], set[str]]:
    """Weigh each group with reflections against its twin without any, or else against its own blank reflections.

    Returns:
        The sentences, and the names of the twins whose low success they explain.

    """
    speaking = {name: group for name, group in groups.items() if group[0].reflector != "none"}
    sentences, explained = [], set()
    for name, group in speaking.items():
        each = _estimates(group, "rlft")
        if not each:
            continue
        start, reflecting = f"{name}: " * (len(speaking) > 1), over_runs(each)
        twins = _twins(group, groups)
        silent = [run for runs in twins.values() for run in runs]
        others = _estimates(silent, "rlft")
        if others:
            worth = reflecting.minus(over_runs(others))
            sentences.append(start + _worth(worth, f"{reflecting} trained with them, {over_runs(others)} without any"))
            if worth.is_clear and (prediction := _prediction(group, silent, paid=worth.mean > 0)):
                sentences.append(start + prediction)
            if worth.low > 0 and (why := _what_words_do(group[0])):
                sentences.append(start + why)
                explained |= set(twins)
        elif blank := _estimates(group, "rlft", "blank"):
            numbers = f"{reflecting} with their words, {over_runs(blank)} with blank ones"
            sentences.append(start + _dependence(change_over_runs(each, blank), numbers))
    return sentences, explained


def _prediction(group: Sequence[RunData], silent: Sequence[RunData], *, paid: bool) -> str:
    """Return the sentence on whether SFT's accuracies predicted that reflections paid, or cost; empty if unknown."""
    words, actions = _held_out(group, "reflector"), _held_out(silent, "policy")
    if words is None or actions is None:
        return ""
    predicted = "this" if (words > actions) == paid else "the opposite"
    return (
        f"SFT predicted {predicted}: in held-out rows, {100 * words:.0f} % of the reflector's texts were right, and "
        f"{100 * actions:.0f} % of the actions of the policy without any."
    )


def _held_out(group: Sequence[RunData], player: str) -> float | None:
    """Return the mean accuracy, in held-out rows, of the weights that SFT kept; ``None`` if a run lacks checks."""
    checks = [each for run in group if (each := run.sft.get(player))]
    return fmean(each[best_check({player: each})].accuracy for each in checks) if len(checks) == len(group) else None


def _twins(group: Sequence[RunData], groups: Mapping[str, Sequence[RunData]]) -> dict[str, Sequence[RunData]]:
    """Return the groups without reflections that differ from ``group``, which has some, in nothing else."""
    alike, silent = _without_player(group[0]), group[0].reflector == "none"
    return {
        name: other
        for name, other in groups.items()
        if not silent and other[0].reflector == "none" and _without_player(other[0]) == alike
    }


MAX_HEADLINES = 6
"""Maximum number of groups of runs with a headline; more are a table."""


@dataclass(frozen=True)
class Headline:
    """Success rates of a group of runs, over its runs and tasks."""

    group: str
    """Name of the group; empty where there is only one with reflections."""
    rates: tuple[tuple[str, Interval], ...]
    """What was played, and its success: after SFT, after RLFT, and without reflections."""


def headlines(runs: Sequence[RunData]) -> list[Headline]:
    """Return the headline of each group of evaluated runs; none for many. A group's twin stands in the group's own."""
    groups = group_runs([run for run in runs if judged_rows(run)])
    twins = {name: _twins(group, groups) for name, group in groups.items()}
    beside = {other for others in twins.values() for other in others}
    found = []
    for name, group in groups.items():
        if name in beside or not (each := _estimates(group, "rlft")):
            continue
        twin = _estimates([run for runs in twins[name].values() for run in runs], "rlft")
        rates = {
            "after SFT": _estimates(group, "sft"),
            "after RLFT": each,
            "trained without reflections": twin,
            "with blank reflections": [] if twin else _estimates(group, "rlft", "blank"),
        }
        found.append(Headline(name, tuple((what, over_runs(known)) for what, known in rates.items() if known)))
    if len(found) == 1:
        return [replace(found[0], group="")]
    return found if len(found) <= MAX_HEADLINES else []


def _worth(worth: Interval, numbers: str) -> str:
    if not worth.is_clear:
        return f"Reflections made no clear difference here ({worth.points}): {numbers}."
    return f"Reflections {'were worth' if worth.mean > 0 else 'cost'} {worth.points.lstrip('+-')} here: {numbers}."


def _dependence(words: Interval, numbers: str) -> str:
    """Say what reflections add to blank ones, which is not what training with reflections is worth."""
    blank = Interval(-words.mean, -words.high, -words.low)
    if not words.is_clear:
        return f"Blank reflections made no clear difference to this policy ({blank.points}): {numbers}."
    does, change = (
        ("depends on its reflections", words) if words.mean > 0 else ("does better with blank reflections", blank)
    )
    return f"The policy {does} ({change.points}): {numbers}. A run without a reflector shows what they are worth."


@lru_cache(maxsize=1024)
def _without_player(run: RunData) -> tuple[tuple[str, str], ...]:
    """Return the settings of a run, except those of the reflecting player and of how the evaluation is done."""
    return tuple(
        sorted(
            (key, repr(value))
            for key, value in run.settings.items()
            if key.startswith(_PLAYED) or not key.startswith(_OF_THE_PLAYER)
        )
    )


def _fall(run: RunData) -> Iterator[str]:
    going = any(time.name == "rlft" and not time.done for time in run.times)
    fall = None if going else largest_fall(run)
    if fall is not None and not fall.kept_best and fall.points >= LARGE_FALL:
        yield (
            f"{run.name} did not keep what it had learned: {fall.measured} was {100 * fall.best:.0f} % at iteration "
            f"{fall.iteration} and {100 * fall.last:.0f} % at the end. `rlft.validation` with `rlft.keep=best` keeps "
            "the best."
        )
