"""What the files of a run tell about what was taught, what was played and how training went."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from statistics import fmean
from typing import Any

from reflectrl.core import InvalidInput, Observation, Trajectory
from reflectrl.core.origin import Ledger
from reflectrl.core.run_files import recorded_iterations, sft_rows_file, training_episodes_file
from reflectrl.data_gen.rows import Row, read_rows
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.views import State
from reflectrl.report.gain import Interval
from reflectrl.report.runs import RunData
from reflectrl.report.series import lessons
from reflectrl.rollout.iteration import wilson_interval
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import EvalRow, episodes_file
from reflectrl.seats.table import view

LEAST = 50
"""Minimum number of rows, steps or episodes behind a share."""


class Evidence:
    """What the files of a run tell; a file that is absent or of another version tells nothing."""

    def __init__(self, run: RunData, rows: Mapping[str, EvalRow]) -> None:
        self.run = run
        self.row = rows["rlft"]
        self._rows = rows
        self._ledger = Ledger(run.path)

    def setting(self, key: str) -> Any:
        """Return a setting of the recipe by its dotted key, if it has one."""
        return self.run.settings.get(key)

    def taught(self, player: str) -> list[Row]:
        """Rows of a player that SFT was given; none where random actions stood in for a teacher."""
        if self.setting("data.teacher") == "random":
            return []
        name = sft_rows_file(player)
        with suppress(InvalidInput):
            return read_rows(self._ledger.verify(name)) if (self.run.path / name).is_file() else []
        return []

    @cached_property
    def reflector_rows(self) -> list[Row]:
        """Rows that the reflector was taught; where none is, those that it would be."""
        return self.taught("reflector")

    @cached_property
    def policy_rows(self) -> list[Row]:
        """Rows that the policy was taught."""
        return self.taught("policy")

    def _episodes(self, name: str) -> tuple[PromptFormat | None, list[Trajectory]]:
        with suppress(InvalidInput):
            if (self.run.path / name).is_file():
                header, played = read_trajectories(self._ledger.verify(name))
                return header.prompt, played
        return None, []

    def played(self, policy: str) -> tuple[PromptFormat | None, list[Trajectory]]:
        """Layout and episodes of a judged row."""
        if policy not in self._rows:
            return None, []
        return self._episodes(episodes_file(self._rows[policy], len({row.split for row in self.run.rows})))

    def recorded(self) -> Iterator[Trajectory]:
        """Episodes that the last quarter of the iterations with recorded ones recorded."""
        numbers = recorded_iterations(self.run.path)
        for number in numbers[-max(1, len(numbers) // 4) :]:
            yield from self._episodes(training_episodes_file(number))[1]


def ambiguous_share(of: Evidence, shown: Callable[[Prompt], Hashable]) -> float | None:
    """Return the share of pairs of rows that show the same and ask for different actions; ``None`` if few are equal.

    ``shown`` tells what of the reflector's prompt is compared.
    """
    if len(of.reflector_rows) != len(of.policy_rows):
        return None
    wanted: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for told, row in zip(of.reflector_rows, of.policy_rows, strict=True):
        if menu := row.prompt.menu:
            wanted[shown(told.prompt), frozenset(menu.actions)][row.action] += 1
    compared = [counts for counts in wanted.values() if counts.total() > 1]
    rows = sum(counts.total() for counts in compared)
    if rows < max(LEAST, len(of.policy_rows) // 10):
        return None
    # for each row, the share of the other rows with its text that ask for another action
    differing = sum(
        count * (counts.total() - count) / (counts.total() - 1) for counts in compared for count in counts.values()
    )
    return differing / rows


def place_of(prompt: Prompt) -> Hashable:
    """Return what a prompt shows of the state alone."""
    return prompt.head, prompt.state, prompt.images


def coverage(known: set[Hashable], layout: PromptFormat | None, played: Sequence[Trajectory]) -> tuple[float, int]:
    """Return the share of visited states that are known, and the number of steps."""
    if layout is None:
        return 0.0, 0
    seen: Counter[Observation] = Counter(turn.observation for each in played for turn in each.turns)
    found = (count for each, count in seen.items() if place_of(view("reflector", layout, State(each)).prompt) in known)
    return sum(found) / max(1, seen.total()), seen.total()


def last_quarters(of: Evidence) -> tuple[int, Interval, Interval] | None:
    """Return the iterations of a quarter of the last lesson, and success in its last but one and in its last."""
    if not of.run.points:
        return None
    _, places = lessons(of.run.points)[-1]
    quarter = len(places) // 4
    if not quarter or quarter * of.run.episodes < LEAST:
        return None
    before, after = (
        Interval(mean, *wilson_interval(mean, quarter * of.run.episodes))
        for begin in (places.stop - 2 * quarter, places.stop - quarter)
        for mean in [min(1.0, max(0.0, fmean(point.success for point in of.run.points[begin : begin + quarter])))]
    )
    return quarter, before, after
