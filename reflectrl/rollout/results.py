"""Results: rows of an evaluation (``eval.jsonl``) and of trials (``trials.jsonl``), and validations of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import decode, read_jsonl, write_jsonl
from reflectrl.core.run_files import VALIDATED, eval_episodes_file
from reflectrl.rollout.iteration import EpisodeMetrics, episode_metrics, wilson_interval


@dataclass(frozen=True)
class ReflectorShares:
    """Fractions of steps and of episodes in an audit of a reflector; ``None`` for a fraction of none."""

    steps: int
    """Number of steps judged."""
    right: float | None
    """Steps whose reflection describes the state as the expert would."""
    right_taught: float | None
    """The same of the steps whose prompt is one of the reflector's SFT rows."""
    right_new: float | None
    """The same of the other steps."""
    good_when_right: float | None
    """Steps with a right reflection whose action is not a mistake."""
    good_when_wrong: float | None
    """The same of the steps with a wrong one."""
    success_never_wrong: float | None
    """Episodes with right reflections only that succeed."""
    success_once_wrong: float | None
    """The same of the other episodes."""


@dataclass(frozen=True)
class EvalRow:
    """One row of the results: the players, how actions were chosen, and the metrics."""

    policy: str
    """Name of the policy as in ``eval.policies``: ``random``, ``zero_shot``, ``base``, ``sft``, ``rlft``, ``expert`` or
    ``remote``."""
    reflections: str
    """Source of the reflections: the recipe's player, ``none``, a control (``blank``, ``shuffled``, ``expert``), or the
    name of one of ``eval.reflectors``."""
    mode: str
    """Choice of actions: ``sampled`` or ``greedy``."""
    split: str
    tasks: int
    """Number of distinct tasks played."""
    benchmark: str
    """Description of the task set by the environment; empty where its name suffices."""
    metrics: EpisodeMetrics
    group: str = ""
    """Prefix of task ids to which the row is restricted; empty for all tasks played."""
    chosen: tuple[str, ...] = ()
    """Prefixes of task ids to which the evaluation was restricted; empty for all tasks of the split."""
    like_training: int = 0
    """Number of the tasks played that begin like a training task: they look the same at first. At most 48 training
    tasks are compared."""
    cut_prompts: float | None = None
    """Fraction of the policy's prompts that were cut to fit ``model.max_length``; ``None`` for a policy without a local
    model, and for a group."""
    audit: ReflectorShares | None = None
    """Audit of the reflector in some of the episodes; ``None`` where no expert taught one, and for a group."""


def summarise(
    policy: str, reflections: str, mode: str, split: str, trajectories: Sequence[Trajectory], group: str = ""
) -> EvalRow:
    """Return the row of one policy's episodes, restricted to a ``group`` of tasks if given, without a benchmark."""
    played = [trajectory for trajectory in trajectories if trajectory.task.id.startswith(group)]
    tasks = len({trajectory.task.id for trajectory in played})
    return EvalRow(policy, reflections, mode, split, tasks, "", episode_metrics(played), group)


def begin_alike(rows: Sequence[EvalRow]) -> dict[str, str]:
    """Return for each split with tasks that begin like training tasks how many do: ``3 of 20 tasks begin like ...``."""
    most: dict[str, EvalRow] = {}
    for row in rows:
        if row.like_training and not row.group:
            most[row.split] = max(row, most.get(row.split, row), key=lambda each: each.like_training)
    return {
        split: f"{row.like_training} of {row.tasks} tasks begin like a training task" for split, row in most.items()
    }


def episodes_file(row: EvalRow, splits: int) -> str:
    """Return the name of the file with the episodes of ``row``, in an evaluation of ``splits`` splits."""
    return eval_episodes_file(row.policy, row.reflections, row.mode, row.split if splits > 1 else None)


def write_results(path: Path, rows: Sequence[EvalRow]) -> None:
    """Write the rows of an evaluation, completely or not at all."""
    write_jsonl(path, rows)


def read_results(path: Path) -> list[EvalRow]:
    """Read the rows of an evaluation.

    Raises:
        InvalidInput: no such file, or an invalid line.
    """
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist; run `reflectrl eval` for that run first.")
    return [decode(EvalRow, value, where) for where, value in read_jsonl(path)]


CLEAR = 0.05
"""Least difference between two success rates of a validation that is more than noise."""


@dataclass(frozen=True)
class Validated:
    """Result of a validation."""

    sampled: float
    """Success rate with sampled actions."""
    greedy: float | None
    """Success rate of the same episodes with the most probable actions; ``None`` if they were not played so."""
    episode_return: float
    """Mean undiscounted return with sampled actions."""
    episodes: int
    iterations: int
    """Number of iterations of RLFT that had trained these weights; 0 for the weights that it began with."""

    @property
    def rank(self) -> tuple[float, float]:
        """What the best weights have most of: success and then return, both with sampled actions."""
        return self.sampled, self.episode_return

    @property
    def differs(self) -> bool:
        """True if the two ways to play differ by more than ``CLEAR``."""
        return self.greedy is not None and abs(self.sampled - self.greedy) > CLEAR

    @property
    def plays_greedily(self) -> bool:
        """False if sampled actions were clearly better, so that the policy is to be played with them."""
        return not (self.greedy is not None and self.differs and self.sampled > self.greedy)

    @property
    def rates(self) -> str:
        """The success rates in words."""
        greedy = "greedy not played" if self.greedy is None else f"{100 * self.greedy:.0f} % greedy"
        return f"validation {100 * self.sampled:.0f} % sampled, {greedy}"


def write_validated(folder: Path, validated: Validated) -> None:
    """Write the result beside the weights in ``folder``."""
    write_jsonl(folder / VALIDATED, [validated])


def read_validated(folder: Path) -> Validated | None:
    """Return the result beside the weights in ``folder``; ``None`` without one, as of SFT.

    Raises:
        InvalidInput: the file is damaged.
    """
    path = folder / VALIDATED
    lines = read_jsonl(path) if path.is_file() else ()
    return next((decode(Validated, value, where) for where, value in lines), None)


def way_to_play(*, greedy: bool, validated: Validated | None) -> str:
    """Return how a policy is played and, if it is known, why, for people: 'sampled actions (validation ...)'."""
    how = "the most probable actions" if greedy else "sampled actions"
    return how if validated is None else f"{how} ({validated.rates})"


@dataclass(frozen=True)
class TrialRow:
    """Results of one trial of a policy, which plays each task of a split once."""

    policy: str
    reflections: str
    """Source of the reflections: the recipe's player, or ``none``."""
    split: str
    memory: bool
    """Whether the trials have a memory; false for the control, which repeats the tasks without one."""
    trial: int
    """Number of the trial, from 1."""
    remembered: int
    """Number of past episodes in memory during this trial; 0 without a memory."""
    metrics: EpisodeMetrics
    """Metrics of this trial alone."""
    solved: float
    """Fraction of the tasks that this trial or an earlier one solved, which the paper calls success."""
    solved_low: float
    """Lower end of the 95 % Wilson interval of ``solved``, over tasks."""
    solved_high: float
    """Upper end of the 95 % Wilson interval of ``solved``."""
    group: str = ""
    """Beginning of the ids of the tasks that count; empty for all."""


def trial_row(
    policy: str,
    reflections: str,
    split: str,
    trials: Sequence[Sequence[Trajectory]],
    *,
    memory: bool,
    remembered: int,
    group: str = "",
) -> TrialRow:
    """Return the row of the last of ``trials``, with the fraction of tasks that all of ``trials`` together solved.

    Only tasks count whose id starts with ``group``, of which there is at least one.
    """
    last = [trajectory for trajectory in trials[-1] if trajectory.task.id.startswith(group)]
    solved = {trajectory.task.id for played in trials for trajectory in played if trajectory.success}
    tasks = {trajectory.task.id for trajectory in last}
    rate = len(solved & tasks) / len(tasks)
    low, high = wilson_interval(rate, len(tasks))
    return TrialRow(
        policy,
        reflections,
        split,
        memory,
        len(trials),
        remembered,
        episode_metrics(last),
        rate,
        low,
        high,
        group,
    )


def read_trials(path: Path) -> list[TrialRow]:
    """Read the rows of trials; raise ``InvalidInput`` on an invalid line."""
    return [decode(TrialRow, value, where) for where, value in read_jsonl(path)]
