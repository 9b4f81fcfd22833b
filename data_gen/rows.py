"""SFT rows: samples, each one taught step, as the prompts and completions on which the two players are fine-tuned.

The prompts come from ``PromptFormat`` alone, as in rollouts and evaluation. They are stored in parts, so that a prompt
that is too long for the model is truncated in training as it is at play.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from reflectrl.core import Hints, InvalidInput, Observation, Task, Trajectory
from reflectrl.core.files import read_bytes
from reflectrl.core.jsonl import decode, write_jsonl
from reflectrl.core.seeds import draw
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.chats import answer_text
from reflectrl.prompts.format import AFTER_THOUGHT, THOUGHTS, ActionMode
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import State
from reflectrl.rollout.record import (
    Header,
    append_records,
    parse_with_images,
    read_records,
    without_images,
    write_records,
)
from reflectrl.seats.table import Seat, menu_view, view

FORMAT = "reflectrl-samples"
_SHOW = ("observation",)


@dataclass(frozen=True)
class Sample:
    """Reflection and action of a teacher in one state. It holds public text only: no hint, no spoiler."""

    task: Task
    seed: int
    past: tuple[str, ...]
    """All actions that led to the state; the last one of a negative sample is the wrong one."""
    observation: Observation
    menu: tuple[str, ...]
    """The actions in the order in which they are shown."""
    reflection: str
    action: str
    """The teacher's choice, one of ``menu``; in a noisy step, another action is played."""
    negative: bool
    """True for a state reached by a deliberately wrong action (section 4.2)."""
    visited: tuple[Observation, ...] = ()
    """(t,) states in which the actions of ``past`` were chosen, without pictures and actions; empty where no prompt
    shows them."""
    rewards: tuple[float, ...] = ()
    """(t,) rewards of the environment for the actions of ``past``; empty where no prompt shows them."""

    previous: str = ""
    """Reflection of the step before, which a reflector that carries its words reads; empty where there is none."""
    correctable: bool = False
    """True if the reflection follows from the state alone, so that a wrong one of the step before can be corrected."""

    @property
    def state(self) -> State:
        """The state without anybody's words."""
        return State(
            self.observation,
            self.past,
            self.seed,
            visited=self.visited,
            rewards=self.rewards,
            before={"reflector": self.previous} if self.past else {},
        )


def past_states(visited: Iterable[Observation]) -> tuple[Observation, ...]:
    """Return past states as samples hold them, with the text only."""
    return tuple(replace(each.final, images=()) for each in visited)


@dataclass(frozen=True)
class TeacherEpisode:
    """One teacher episode."""

    number: int
    trajectory: Trajectory
    samples: tuple[Sample, ...]
    """Samples in the order of play; states where a held-out task starts are left out."""
    held_out: int
    """Number of samples left out because a held-out task starts in their state."""
    indiscreet: int = 0
    """Number of samples left out because the reflection says a secret that its prompt does not show."""
    rejected: bool = False
    """True if the episode ended because a call to the teacher was rejected."""


def write_samples(path: Path, header: Header, samples: Iterable[Sample]) -> None:
    """Write a file of samples, all of it or nothing; their images are stored beside it."""
    write_records(path, FORMAT, header, samples, _SHOW)


def append_samples(path: Path, header: Header, samples: Iterable[Sample]) -> None:
    """Add samples to a file, or begin one with ``header``; their images are stored beside it."""
    append_records(path, FORMAT, header, samples, _SHOW)


def read_samples(path: Path) -> tuple[Header, list[Sample]]:
    """Read a file of samples.

    Raises:
        InvalidInput: another format or version, a bad line, or an image that is missing or damaged; names the file.
    """
    return read_records(path, FORMAT, Sample, _SHOW)


Words = Mapping[str, str]


def words_in_view(
    samples: Sequence[Sample], seats: Sequence[Seat], layout: PromptFormat, taught: Sequence[Trajectory]
) -> tuple[list[Words], list[Words]]:
    """Ask the frozen players about the state of each sample, as they are asked at play.

    Args:
        samples: the taught steps; their reflections are the reflector's words.
        seats: the frozen players in the order in which they speak; the reflector's seat only marks its position.
        layout: layout of the prompts.
        taught: the teacher's episodes; samples of other episodes, from demonstrations, get no plan.

    Returns:
        For each sample, the words in view of its reflector, and those in view of its policy.
    """
    episodes = {(each.task.id, each.seed): each for each in taught}
    states = [
        replace(
            each.state,
            before={**each.state.before, **_before(each, episodes.get((each.task.id, each.seed)), layout)},
            task_id=each.task.id,
            task_type=each.task.group,
        )
        for each in samples
    ]
    heard: list[Words] = [{} for _ in states]
    for seat in seats:
        if seat.role == "reflector":
            heard = [state.said for state in states]
            said: list[str | None] = [sample.reflection for sample in samples]
        elif seat.when == "episode_start":
            said = _plans(seat, states, layout, taught)
        else:
            said = list(_say(seat, states, layout))
        states = [
            state if words is None else replace(state, said={**state.said, seat.role: words})
            for state, words in zip(states, said, strict=True)
        ]
    return heard, [state.said for state in states]


def _before(sample: Sample, episode: Trajectory | None, layout: PromptFormat) -> Words:
    """Return the thought of the step before, which a memory may take as its key: there, the teacher's reflection.

    A policy that writes no thoughts has none at play either.
    """
    step = len(sample.past) - 1
    if layout.action_mode not in THOUGHTS or episode is None or not 0 <= step < len(episode.turns):
        return {}
    return {"policy": episode.turns[step].reflection or ""}


def _plans(seat: Seat, states: Sequence[State], layout: PromptFormat, taught: Sequence[Trajectory]) -> list[str | None]:
    """Return the plan of each state's episode, made in its first state; ``None`` for an episode not ``taught``.

    The expert's plan is the teacher's reflection in that state.
    """
    starts = {(each.task.id, each.seed): each.turns[0] for each in taught if each.turns}
    first: dict[tuple[str, int], State] = {}
    for state in states:
        if (turn := starts.get((state.task_id, state.seed))) is not None:
            hints = Hints(reflection=turn.reflection)
            key = state.task_id, state.seed
            first[key] = replace(state, observation=turn.observation, past=(), visited=(), rewards=(), hints=hints)
    plans = dict(zip(first, _say(seat, list(first.values()), layout), strict=True))
    return [plans.get((state.task_id, state.seed)) for state in states]


def _say(seat: Seat, states: Sequence[State], layout: PromptFormat) -> list[str]:
    privileged = isinstance(seat.player, ReadsHints)
    views = [view(seat.role, layout, state, hints=privileged) for state in states]
    draws = [draw(state.seed, len(state.past), seat.role) for state in states]
    return [utterance.text for utterance in seat.player.say(views, draws)]


_HOLDERS = ("prompt",)
WRONG_NOTES = 0.5
"""Fraction of the negative samples that allow it whose reflector reads a wrong reflection of the step before."""


@dataclass(frozen=True)
class Row:
    """One example of supervised fine-tuning."""

    player: Literal["reflector", "policy"]
    """Player that is trained on the row."""
    prompt: Prompt
    """Prompt, in the parts that decide what is truncated; a policy's has a menu."""
    completion: str
    """Text to be learned: a reflection, or a label of the menu; in an environment without menus, the action."""
    task: str
    step: int
    """Number of actions played before this step."""
    negative: bool
    """True if the sample shows a mistake and its correction."""
    thought: str = ""
    """Thought that the policy writes before its answer; empty for a policy that answers at once."""
    seed: int = 0
    """Seed of the episode; rows with equal task and seed are of one episode."""

    def written(self, mode: ActionMode) -> str:
        """Return the text after the prompt, for a player with this action mode."""
        if self.prompt.menu is None or mode == "enumerated":
            return self.completion
        if mode == "thought_choice":
            return self.thought + AFTER_THOUGHT + self.completion
        return f" {answer_text(mode, self.thought, self.action)}"

    @property
    def action(self) -> str:
        """Action of a policy's row."""
        menu = self.prompt.menu
        return menu.actions[menu.labels.index(self.completion)] if menu and menu.actions else self.completion


def reflector_row(sample: Sample, layout: PromptFormat, said: Words) -> Row:
    """Return the reflector's row of ``sample``: its state and words ``said`` by others, completed by its reflection."""
    prompt = view("reflector", layout, replace(sample.state, said=said)).prompt
    completion = layout.completion(sample.reflection)
    return Row("reflector", prompt, completion, sample.task.id, len(sample.past), sample.negative, seed=sample.seed)


def policy_row(sample: Sample, layout: PromptFormat, said: Words) -> Row:
    """Return the policy's row of ``sample``: state, words ``said`` by others and menu, completed by one label.

    A policy that thinks before it acts is taught the reflector's words as its thought.
    """
    menu = layout.relabelled(sample.menu, sample.observation, sample.seed)
    prompt = menu_view("policy", layout, replace(sample.state, said=said), menu).prompt
    answer = menu.labels[menu.place_of(sample.action)] if menu.actions else sample.action
    thought = layout.completion(sample.reflection) if layout.action_mode in THOUGHTS else ""
    return Row("policy", prompt, answer, sample.task.id, len(sample.past), sample.negative, thought, sample.seed)


def with_unreliable_reflections(samples: Sequence[Sample], fraction: float, rng: random.Random) -> list[Sample]:
    """Blank the reflections of ``fraction`` of the samples or, as often, exchange them for another sample's.

    A policy that is trained on them learns to act where the reflector is wrong.
    """
    words = [sample.reflection for sample in samples]
    return [
        replace(sample, reflection=rng.choice(("", rng.choice(words)))) if rng.random() < fraction else sample
        for sample in samples
    ]


def with_misread_states(samples: Sequence[Sample], fraction: float, rng: random.Random) -> list[Sample]:
    """Give ``fraction`` of the samples reflection and action of another one, if they can play that action.

    A policy that is trained on them sometimes misreads the state in its thought, and acts on what it thought.
    """
    found = []
    for sample in samples:
        other = rng.choice(samples) if rng.random() < fraction else sample
        misread = replace(sample, reflection=other.reflection, action=other.action)
        found.append(misread if not sample.menu or other.action in sample.menu else sample)
    return found


def with_wrong_notes(samples: Sequence[Sample], rng: random.Random) -> list[Sample]:
    """Give half of the negative samples that allow it another sample's reflection as the one of the step before.

    A reflector that carries its words is so taught to correct a wrong note by what the state shows.
    """
    return [
        replace(sample, previous=rng.choice(samples).reflection)
        if sample.correctable and rng.random() < WRONG_NOTES
        else sample
        for sample in samples
    ]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, all or none, for ``datasets.load_dataset("json")``; their images are stored beside the file."""
    write_jsonl(path, (without_images(row, path, _HOLDERS) for row in rows))


def read_rows(path: Path, count: int | None = None) -> list[Row]:
    """Read a file of rows, the first ``count`` of them if it is given.

    Raises:
        InvalidInput: no rows, a missing or mistyped field, a policy's row without a menu, a menu with other labels than
            actions, a completion that is not a label of it, or an image that is missing; names file and line.
    """
    lines = parse_with_images(read_bytes(path, "a file of JSON lines"), path, _HOLDERS)
    rows = [_read(value, where) for where, value in islice(lines, count)]
    if not rows:
        raise InvalidInput(f"{path} has no rows; run gen-data with more data.samples.")
    return rows


def _read(value: object, where: str) -> Row:
    row = decode(Row, value, where)
    menu = row.prompt.menu
    if (row.player == "policy") != (menu is not None):
        raise InvalidInput(f"{where} is a row of the {row.player}; expected a menu in a policy's row, and in no other.")
    if menu and (len(menu.labels), len(menu.common_labels)) != (len(menu.actions), len(menu.common)):
        raise InvalidInput(f"{where} has a menu of other labels than actions; expected one each: write the row again.")
    if menu and menu.labels and row.completion not in menu.labels:
        raise InvalidInput(f"{where} completes with {row.completion!r}; expected one of its labels {menu.labels}.")
    return row
