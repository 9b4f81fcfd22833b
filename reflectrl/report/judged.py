"""The audit of a reflector: its words in evaluated episodes against those of the environment's expert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean

from reflectrl.config import Recipe, load_saved_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput, NatLangEnv, Trajectory
from reflectrl.core.origin import Ledger
from reflectrl.core.run_files import RECIPE, sft_rows_file
from reflectrl.data_gen.rows import read_rows
from reflectrl.prompts import PromptFormat
from reflectrl.report.runs import read_runs
from reflectrl.report.tables import OUTDATED, print_line, print_rows
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import EvalRow, ReflectorShares, episodes_file
from reflectrl.rollout.turn import states_of
from reflectrl.seats.table import view

HEADS = (
    *("policy", "mode", "split", "steps", "right", "right, taught", "right, new"),
    *("good action, right", "good action, wrong", "success, never wrong", "success, once wrong"),
)
NOTE = (
    "Right: the state is described as the expert would, whatever is said about the last action. Taught: the prompt is "
    "one of the reflector's SFT rows. A good action is not a mistake by the environment's judgement, or the expert's. "
    "If reflections are often wrong, raise sft.reflector.steps or data.samples; eval.controls: [expert] shows what "
    "right ones are worth."
)
_VERDICT = re.compile(r"^(good|mistake(: [^.]*)?)\. ")
"""Judgement of the last action, with which the expert's reflections begin; the rest describes the state."""


@dataclass(frozen=True)
class JudgedStep:
    """One step of an evaluated episode."""

    taught: bool
    """True if the reflector's prompt is one of its SFT rows."""
    right: bool
    """True if the reflection equals the expert's, apart from case and spaces."""
    standing_right: bool
    """True if the reflection is right apart from its judgement of the last action."""
    good: bool
    """True if the action was no mistake, or if it was the expert's where the environment does not judge actions."""
    success: bool
    """True if the episode succeeded."""


@dataclass(frozen=True)
class ReflectorAudit:
    """Judged steps of one evaluated policy."""

    row: EvalRow
    """The policy's row of the results."""
    episodes: Sequence[Sequence[JudgedStep]]


def shares(episodes: Sequence[Sequence[JudgedStep]]) -> ReflectorShares:
    """Return the fractions of the judged steps, and of the episodes."""
    steps = list(chain.from_iterable(episodes))

    def share(values: Sequence[bool]) -> float | None:
        return fmean(values) if values else None

    return ReflectorShares(
        len(steps),
        share([step.standing_right for step in steps]),
        right_taught=share([step.standing_right for step in steps if step.taught]),
        right_new=share([step.standing_right for step in steps if not step.taught]),
        good_when_right=share([step.good for step in steps if step.standing_right]),
        good_when_wrong=share([step.good for step in steps if not step.standing_right]),
        success_never_wrong=share([each[0].success for each in episodes if _never_wrong(each)]),
        success_once_wrong=share([each[0].success for each in episodes if not _never_wrong(each)]),
    )


def _never_wrong(steps: Sequence[JudgedStep]) -> bool:
    return all(step.standing_right for step in steps)


def audit_reflector(run: Path) -> list[ReflectorAudit]:
    """Compare the reflections of a run's evaluated episodes with those of the environment's expert.

    Args:
        run: a run folder after `reflectrl eval`, whose reflector learned the expert's reflections.

    Raises:
        InvalidInput: no run folder, or one without evaluated episodes of a reflector that an expert taught; the last
            evaluation is not finished, and episodes may be of another environment than the recipe's; or a folder from
            elsewhere whose recipe asks for more than ``load_saved_recipe`` allows.

    """
    [found] = read_runs([run])
    rows = [row for row in found.own_rows if row.reflections == found.reflector in ("local", "server", "self")]
    if not rows:
        raise InvalidInput(
            f"{run} has no reflections to audit; expected a run after `reflectrl eval`, with a recipe that has "
            "players.reflector.player=local, server or self, such as dangerous_taxi/nano."
        )
    if found.outdated_rows:
        raise InvalidInput(f"{run}: {OUTDATED}.")
    recipe = load_saved_recipe(run / RECIPE)
    if recipe.data.teacher != "expert":
        raise InvalidInput(
            f"the reflector of {run} learned the words of a chat model (data.teacher={recipe.data.teacher}), which "
            "cannot be compared with the expert's; expected a run with data.teacher=expert."
        )
    taught = taught_prompts(recipe, run)
    ledger, splits = Ledger(run), len({row.split for row in found.rows})
    env = recipe_env(recipe, run, recipe.eval.env)
    try:
        audits = []
        for row in rows:
            header, episodes = read_trajectories(ledger.verify(episodes_file(row, splits)))
            judged = [list(judged_steps(env, header.prompt, episode, taught)) for episode in episodes]
            audits.append(ReflectorAudit(row, judged))
        return audits
    finally:
        env.close()


def taught_prompts(recipe: Recipe, run: Path) -> frozenset[str]:
    """Return the prompts of the reflector's SFT rows in a run folder; none where it has no rows."""
    known = run / sft_rows_file("reflector")
    rows = read_rows(known)[: recipe.sft.reflector.max_rows] if known.is_file() else []
    return frozenset(row.prompt.text for row in rows)


def judged_steps(
    env: NatLangEnv, layout: PromptFormat, episode: Trajectory, taught: frozenset[str]
) -> Iterator[JudgedStep]:
    """Replay an episode and judge each of its steps.

    Args:
        env: an environment as that of the episode.
        layout: the prompts' format.
        episode: an episode with a reflector.
        taught: prompts of the reflector's SFT rows.

    """
    env.reset(seed=episode.seed, options={"task": episode.task})
    hints = env.hints()
    for state, turn in zip(states_of(episode), episode.turns, strict=True):
        said, wanted = _normalised(turn.reflection), _normalised(hints.reflection)
        prompt = view("reflector", layout, state).prompt.text
        best, action = hints.action, turn.decision.action
        env.step(action)
        hints = env.hints(turn.reflection if layout.carry else None)
        yield JudgedStep(
            prompt in taught,
            said == wanted,
            without_verdict(said) == without_verdict(wanted),
            action == best if hints.mistaken is None else not hints.mistaken,
            episode.success,
        )


def _normalised(words: str | None) -> str:
    """Return the words in lower case, with single spaces."""
    return " ".join((words or "").lower().split())


def without_verdict(words: str) -> str:
    """Return normalised words without the judgement of the last action."""
    return _VERDICT.sub("", words)


def share_cells(row: EvalRow, judged: ReflectorShares) -> tuple[str, ...]:
    """Return a row of ``HEADS``."""
    steps, *fractions = astuple(judged)
    shown = ("n/a" if share is None else f"{share:.0%}" for share in fractions)
    return (row.policy, row.mode, row.split, f"{steps:,}", *shown)


def print_reflector(audits: Sequence[ReflectorAudit]) -> None:
    """Print a row for each evaluated policy, and what the columns mean."""
    print_rows(HEADS, [share_cells(audit.row, shares(audit.episodes)) for audit in audits], words=3)
    print_line("")
    print_line(NOTE)


def as_json(audits: Sequence[ReflectorAudit]) -> str:
    """Return the fractions as JSON, a list with an object for each policy; null for what is not defined."""
    return json.dumps(
        [
            {
                **{name: getattr(audit.row, name) for name in ("policy", "mode", "split")},
                **asdict(shares(audit.episodes)),
            }
            for audit in audits
        ],
        indent=2,
    )
