"""Causes of a low success that the files of a run prove, each with its number and the setting that addresses it.

A cause is named only beyond its threshold below and, but for three that ``causes`` lists, where RLFT ended far from
what is possible. The order of ``KNOWN`` is that of what follows from what: text that does not tell what to do, then
what teaching left out, then what training lacked, then how it shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean

from reflectrl.config.schema import MIN_ITERATIONS
from reflectrl.report.evidence import LEAST, Evidence, ambiguous_share, coverage, last_quarters, place_of
from reflectrl.report.gain import Interval
from reflectrl.report.runs import RunData
from reflectrl.report.series import steady_success
from reflectrl.rollout.results import EvalRow

MOST = 3
"""Maximum number of causes that are named."""
FAR = 0.1
"""Minimum distance of the success rate from the expert's, or from the threshold, at which there is something to say."""
LEAST_JUDGED = 20
"""Minimum number of judged reflections; games of three steps have 40 in an evaluation."""
UNTAUGHT_STARTS = 0.05
"""Maximum number of rows that show a beginning, as a fraction of the tasks in the rows."""
AMBIGUOUS = 0.15
"""Minimum share of pairs of rows with the same text that ask for different actions."""
CUT = 0.2
"""Minimum share of cut prompts."""
IMITATED, HARDEST = 0.85, 0.5
"""Maximum share of held-out expert actions that the policy imitates, and of those of one kind."""
RIGHT = 0.75
"""Maximum share of right reflections, in new states where there are any."""
MISLED = 0.1
"""Minimum difference between good actions after right and after wrong reflections."""
UNREWARDED = 0.8
"""Minimum share of the iterations, from the first one on, without any success."""
COLLAPSED = 0.05
"""Maximum entropy, as a fraction of that of the first iterations."""
SOLVED = 0.9
"""Success rate in training from which a low entropy does no harm."""
COVERED = 0.5
"""Maximum share of the visited states that the teacher's rows show."""
REPEATED = 0.05
"""Minimum share of the policy's or the expert's states that these rows show: measured numbers are new in any number."""
MEMORISED = 0.15
"""Minimum distance of success in the last quarter of training from that in the tasks of the evaluation."""
RISE = 0.03
"""Minimum rise of success from the third to the last quarter of the last lesson."""
EXPLAINED = 0.1
"""Maximum share of the variance of returns that the value head explains in a group of tasks."""
REPEATED_ROWS = 4
"""Number of rows for each prompt among them, from which more rows would hardly show others."""
OUT_OF_TIME = 0.5
"""Minimum share of the episodes that the horizon ends."""


@dataclass(frozen=True)
class Cause:
    """A cause of a low success."""

    name: str
    why: str
    """Clause with the measured number, without a full stop."""
    remedy: str
    """Clause with the settings that address it, without a full stop."""


def causes(run: RunData, rows: Mapping[str, EvalRow]) -> list[Cause]:
    """Return at most ``MOST`` proved causes of a low success, the first ones first; none where success is not low.

    Where nobody knows what is possible, only tasks that were memorised and a training that ended too early are named.

    Args:
        run: the run.
        rows: its judged rows by policy: ``rlft`` and, where they played, ``random`` and ``expert``.
    """
    low = _is_low(run, rows)
    if low is False:
        return []
    evidence = Evidence(run, rows)
    return [cause for find in (KNOWN if low else (_memorised, _short, _rising)) if (cause := find(evidence))][:MOST]


def _is_low(run: RunData, rows: Mapping[str, EvalRow]) -> bool | None:
    """Return whether RLFT ended far from the expert, else from the threshold, else near random; ``None`` if unknown."""
    after = Interval.of(rows["rlft"].metrics)
    if "expert" in rows:
        gap = Interval.of(rows["expert"].metrics).minus(after)
        return gap.low > 0 and gap.mean > FAR
    curriculum = run.settings.get("rlft.lessons")
    last = curriculum[-1] if isinstance(curriculum, list) and curriculum else None
    threshold = last.get("success_threshold") if isinstance(last, dict) else None
    if isinstance(threshold, int | float):
        return after.high < threshold and threshold - after.mean > FAR
    if after.mean >= 1 - FAR or "random" not in rows:
        return False
    return True if after.minus(Interval.of(rows["random"].metrics)).low <= 0 else None


def what_words_do(run: RunData, row: EvalRow) -> str | None:
    """Return why words that were worth something were needed, as a sentence; ``None`` if the run's files do not tell.

    Args:
        run: a run whose success is clearly higher with reflections than without.
        row: its judged row.
    """
    of = Evidence(run, {"rlft": row})
    ambiguity, audit = ambiguous_share(of, place_of), row.audit
    if ambiguity is None or _cut(of) is not None:
        return None
    if ambiguity >= AMBIGUOUS:
        hidden = f"equal states ask for different actions in {_percent(ambiguity)} of the cases"
        told = f"Why: {hidden}; the words carry what the state no longer shows."
        return told if of.setting("players.reflector.carry") is True else None
    if audit is None or audit.right is None:
        return None
    right, where = (audit.right, "states") if audit.right_new is None else (audit.right_new, "new states")
    if right < RIGHT:
        return None
    return (
        "Why: the state tells what to do, but a policy without words did not learn to work it out in its one token; "
        f"the words, right in {_percent(right)} of {where}, do it step by step."
    )


def _untaught_starts(of: Evidence) -> Cause | None:
    """Training rows leave out how a game begins."""
    rows = of.policy_rows
    begun, tasks = sum(not row.step for row in rows), len({row.task for row in rows})
    if len(rows) < LEAST or begun >= UNTAUGHT_STARTS * tasks:
        return None
    return Cause(
        "starts",
        f"{begun:,} of {len(rows):,} training rows show how a game begins, as rows that look like a held-out start are "
        "left out",
        "`observable = False` in the environment's class, if equal texts can mean different tasks",
    )


def _ambiguous(of: Evidence) -> Cause | None:
    """The prompt does not tell what to do."""
    # the reflector's prompt is the state without the teacher's words
    differing = ambiguous_share(of, lambda prompt: prompt)
    if differing is None or differing < AMBIGUOUS:
        return None
    return Cause(
        "ambiguous",
        f"training rows with the same text ask for different actions in {_percent(differing)} of the cases, so "
        "the prompt does not tell what to do",
        _remembering(of),
    )


def _remembering(of: Evidence) -> str:
    ways = []
    if of.setting("prompt.history.show") != "transitions":
        ways.append("`prompt.history.show=transitions`")
    if of.run.reflector in ("local", "server") and of.setting("players.reflector.carry") is not True:
        ways.append("`players.reflector.carry=true`")
    text = "a text that tells what decides"
    ways.append(f"or {text}" if ways else f"{text}, or an expert that knows no more than a player")
    return ", ".join(ways)


def _cut(of: Evidence) -> Cause | None:
    """Prompts are cut."""
    share = of.row.cut_prompts
    if share is None or share < CUT:
        return None
    return Cause(
        "cut",
        f"the policy's prompt was cut in {_percent(share)} of the steps, to {of.setting('model.max_length')} tokens",
        "a larger `model.max_length`, or shorter texts",
    )


def _not_imitated(of: Evidence) -> Cause | None:
    """The policy does not imitate the expert."""
    best = min(of.run.sft.get("policy", ()), key=lambda check: check.held_out_loss, default=None)
    if best is None or (best.accuracy >= IMITATED and best.hardest_accuracy >= HARDEST):
        return None
    if _ambiguous(of):  # then no player can
        return None
    kind = f", {_percent(best.hardest_accuracy)} of those of the kind {best.hardest!r}" if best.hardest else ""
    return Cause(
        "imitation",
        f"SFT imitates {_percent(best.accuracy)} of the expert's actions in held-out episodes{kind}",
        f"{_longer(of, 'policy')}more of {'`sft.policy.steps` or ' if _bounded(of, 'policy') else ''}{_shown(of)}"
        f"{_wider(of)}",
    )


def _longer(of: Evidence, player: str) -> str:
    """Return a larger budget, where this is what has bounded a player's SFT."""
    chosen = of.setting(f"budget.chosen.sft.{player}.steps")
    return "more `budget.minutes`, " if chosen and of.run.sft.get(player) and _bounded(of, player) else ""


def _bounded(of: Evidence, player: str) -> bool:
    """Return whether a player's SFT did not end at a plateau."""
    checks = of.run.sft.get(player, ())
    return not checks or checks[-1].ended != "plateau"


def _shown(of: Evidence) -> str:
    """Return what would show further states: more rows, or more tasks where rows repeat."""
    rows = of.reflector_rows
    few = len(rows) <= REPEATED_ROWS * len({row.prompt for row in rows})
    return "`data.samples`" if few else "the environment's training tasks"


def _builtin(of: Evidence) -> bool:
    return str(of.setting("model.name")).startswith("builtin/")


def _wider(of: Evidence) -> str:
    pretrained = of.setting("model.builtin.pretrained") is True  # which a wider one is not
    return ", or a larger `model.builtin.width`" if _builtin(of) and not pretrained else ""


def _wrong_reflections(of: Evidence) -> Cause | None:
    """Reflections are wrong, and are followed."""
    audit = of.row.audit
    if audit is None or audit.right is None or audit.steps < LEAST_JUDGED:
        return None
    new, good, misled = audit.right_new, audit.good_when_right, audit.good_when_wrong
    right, where = (audit.right, "") if new is None else (new, " in new states")
    if right > RIGHT or (good is not None and misled is not None and good - misled < MISLED):
        return None
    follows = ""
    if good is not None and misled is not None:
        follows = f"; the next action is good after {_percent(good)} of right ones and {_percent(misled)} of wrong ones"
    pieces = " or other `model.builtin.pieces`" if _builtin(of) else ""
    return Cause(
        "reflections",
        f"reflections are right{where} in {_percent(right)} of the steps{follows}",
        f"{_longer(of, 'reflector')}more of {'`sft.reflector.steps` or ' if _bounded(of, 'reflector') else ''}"
        f"{_shown(of)}{_wider(of)}{pieces}, or a policy without words (`players.reflector.player=none`)",
    )


def _unrewarded(of: Evidence) -> Cause | None:
    """Nothing is rewarded."""
    points = of.run.points
    first = next((place for place, point in enumerate(points) if point.success > 0), len(points))
    episodes = first * of.run.episodes
    if episodes < LEAST or first < UNREWARDED * len(points) or any(each.episode_return > 0 for each in points[:first]):
        return None
    which = "none of the" if first == len(points) else "none of the first"
    return Cause(
        "reward",
        f"{which} {episodes:,} training episodes succeeded or had a return above 0, so there was nothing to reinforce",
        "`novelty` in `rlft.rewards`, `data.demonstrations`, or a curriculum of easier tasks (`rlft.lessons`)",
    )


def _collapsed(of: Evidence) -> Cause | None:
    """The policy has stopped exploring."""
    points = of.run.points
    if len(points) < 5:
        return None
    limit = COLLAPSED * fmean(point.entropy for point in points[:3])
    high = [place for place, point in enumerate(points) if not point.entropy < limit]
    if not high or high[-1] >= len(points) - 2:
        return None
    begun, success = points[high[-1] + 1], steady_success(of.run)[-1][1]
    if success >= SOLVED:
        return None
    return Cause(
        "entropy",
        f"the policy's entropy was below {_percent(COLLAPSED)} of its start from iteration {begun.iteration} on, at a "
        f"training success of {_percent(begun.success)}",
        "`rlft.terms.entropy={kind: target, target: 0.3}`, which keeps the policy exploring (with `unit: nats` where "
        "actions are written)",
    )


def _uncovered(of: Evidence) -> Cause | None:
    """The policy visits states that the teacher's rows do not show."""
    known = {place_of(row.prompt) for row in of.reflector_rows}
    share, steps = coverage(known, *of.played("rlft"))
    if not known or steps < LEAST or share > COVERED:
        return None
    own, compared = coverage(known, *of.played("expert"))
    if compared and max(share, own) < REPEATED:
        return None
    strays = compared > 0 and own - share > 1 - COVERED
    beside = f" and {_percent(own)} of the expert's" if compared else ""
    return Cause(
        "coverage",
        f"the teacher's rows show {_percent(share)} of the states that the policy visits{beside}",
        f"more of `{'data.noise' if strays else 'data.samples'}` or `{'data.samples' if strays else 'data.noise'}`",
    )


def _memorised(of: Evidence) -> Cause | None:
    """The policy knows its tasks rather than the game."""
    if (found := last_quarters(of)) is None:
        return None
    trained, tested = found[2], Interval.of(of.row.metrics)
    ahead = trained.minus(tested)
    if ahead.low <= 0 or ahead.mean < MEMORISED:
        return None
    return Cause(
        "memorised",
        f"success at the end of training was {_percent(trained.mean)} in its tasks and is {_percent(tested.mean)} in "
        "new ones, so the policy knows its tasks rather than the game",
        "more training tasks (thousands, if they are generated), or less of what tells a task from others in its texts",
    )


def _short(of: Evidence) -> Cause | None:
    """The minutes leave hardly any play."""
    count, bounded = len(of.run.points), of.setting("budget.chosen.rlft.lessons.0.iterations")
    if not 0 < count <= MIN_ITERATIONS or not bounded or of.run.points[-1].ended not in ("iterations", "minutes"):
        return None
    return Cause("short", f"the minutes left no time for more than {count} iterations of RLFT", "more `budget.minutes`")


def _rising(of: Evidence) -> Cause | None:
    """Training ends too early."""
    if (found := last_quarters(of)) is None:
        return None
    quarter, before, after = found
    rise = after.minus(before)
    if rise.low <= 0 or rise.mean < RISE or after.mean >= SOLVED:
        return None
    return Cause(
        "rising",
        f"training success was still rising when training ended, from {_percent(before.mean)} to "
        f"{_percent(after.mean)} over the last {2 * quarter} iterations",
        "more `rlft.lessons[].iterations`, or a larger budget",
    )


def _blind_values(of: Evidence) -> Cause | None:
    """The value head explains nothing."""
    if of.setting("rlft.advantage.kind") != "gae" or of.setting("rlft.rewards.env") in (None, 0) or _short(of):
        return None
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for episode in of.recorded():
        ahead = 0.0
        for turn in reversed(episode.turns):
            rewards = ((of.setting(f"rlft.rewards.{name}") or 0.0) * each for name, each in turn.rewards.items())
            ahead = sum(rewards) + of.run.gamma * ahead
            pairs[episode.task.group].append((turn.decision.value, ahead))
    explained = {group: _explained(each) for group, each in pairs.items() if len(each) >= LEAST}
    known = {group: share for group, share in explained.items() if share is not None}
    group = min(known, key=lambda name: known[name], default=None)
    if group is None or known[group] > EXPLAINED:
        return None
    which = f" of group {group!r}" if group else ""
    return Cause(
        "values",
        f"the value head explains {_percent(known[group])} of the variance of the returns{which}",
        "a larger `rlft.advantage.value.learning_rate` or `value.coef`, or `rlft.advantage.kind=batch`",
    )


def _explained(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the squared correlation of values and returns, whatever their scales; ``None`` for equal returns."""
    values, returns = zip(*pairs, strict=True)
    if max(returns) == min(returns):
        return None
    try:
        return max(0.0, correlation(values, returns)) ** 2
    except StatisticsError:  # one value everywhere
        return 0.0


def _out_of_time(of: Evidence) -> Cause | None:
    """Episodes run out of time."""
    _, played = of.played("rlft")
    ended = sum(each.truncated and not each.success for each in played)
    if len(played) < LEAST or ended < OUT_OF_TIME * len(played):
        return None
    horizon = max(len(each.turns) for each in played if each.truncated)
    return Cause(
        "horizon",
        f"the horizon of {horizon} steps ends {_percent(ended / len(played))} of the episodes",
        "a larger `env.options.horizon`, where the environment has this option, or rewards for progress",
    )


KNOWN: Sequence[Callable[[Evidence], Cause | None]] = (
    *(_untaught_starts, _ambiguous, _cut),
    *(_not_imitated, _wrong_reflections),
    *(_unrewarded, _collapsed),
    *(_uncovered, _memorised, _short, _rising, _blind_values, _out_of_time),
)
"""Functions that find a cause; the first line of each one's docstring is the cause in short."""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
