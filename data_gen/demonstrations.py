"""Demonstrations: episodes of any player, kept as samples for gen-data.

Only successful episodes are kept, since each of their steps will be imitated. A reflector can learn only from samples
with a reflection; those of players that do not reflect have none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.core import (
    NO_MENU,
    Choice,
    Decision,
    InvalidInput,
    NatLangEnv,
    Trajectory,
    Turn,
    Utterance,
    WorkFailed,
)
from reflectrl.core.files import check_output
from reflectrl.core.jsonl import drop_unfinished_line, dump_line
from reflectrl.core.promises import wrong_observation
from reflectrl.data_gen.rows import FORMAT, Sample, append_samples, past_states, read_samples
from reflectrl.prompts.chats import read_reflection
from reflectrl.rollout.record import Header


@dataclass(frozen=True)
class Demonstration:
    """One sample of a file."""

    path: Path
    line: int
    options: Mapping[str, object]
    """Options of the environment that it was played with."""
    sample: Sample

    @property
    def where(self) -> str:
        """File and line of the sample."""
        return f"{self.path}, line {self.line}"


@dataclass(frozen=True)
class Demonstrated:
    """Samples of demonstrations that may become rows."""

    samples: tuple[Sample, ...] = ()
    held_out: int = 0
    """Number of samples left out: those of held-out tasks, or of states in which one starts."""

    def sentence(self, missing: int) -> str:
        """Describe the samples for the user; ``missing`` more are to come from the teacher."""
        left_out = f"; {self.held_out} show held-out tasks and are left out" if self.held_out else ""
        rest = f"the teacher adds {missing}" if missing else "no teacher is asked"
        return f"demonstrations: {len(self.samples)} samples{left_out}; {rest}"


def check_place(path: Path, header: Header) -> None:
    """Check that episodes can be saved in ``path``: a new file, or one of the same environment and options.

    Raises:
        InvalidInput: the file has another environment or other options.
    """
    check_output(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        ours = file.read(100).startswith(f'{{"format": "{FORMAT}"'.encode())
    if not ours:
        raise InvalidInput(f"{path} holds something else than episodes; choose another file for them.")
    drop_unfinished_line(path)
    found, _ = read_samples(path)
    options = json.loads(dump_line(header.options, path))
    if (found.env, found.options) != (header.env, options):
        there, here = (
            f"{name!r} with {', '.join(f'{key}={value!r}' for key, value in given.items()) or 'no options'}"
            for name, given in ((found.env, found.options), (header.env, options))
        )
        raise InvalidInput(f"{path} holds episodes of {there}; these are of {here}: choose another file.")


def samples_of(trajectory: Trajectory) -> list[Sample]:
    """Return the steps of an episode as samples."""
    visited = past_states(turn.observation for turn in trajectory.turns)
    return [
        Sample(
            task=trajectory.task,
            seed=trajectory.seed,
            past=trajectory.actions[:step],
            observation=turn.observation,
            menu=turn.menu,
            reflection=read_reflection(turn.reflection or ""),
            action=turn.decision.action,
            negative=False,
            visited=visited[:step],
            rewards=trajectory.rewards[:step],
            previous=read_reflection(trajectory.turns[step - 1].reflection or "") if step else "",
        )
        for step, turn in enumerate(trajectory.turns)
    ]


def without_menus(sample: Sample) -> Sample:
    """Return a sample as one of an environment without menus, in which a policy writes the same action."""
    return replace(sample, menu=(), observation=replace(sample.observation, actions=(), common=()))


def episodes_of(samples: Iterable[Sample]) -> list[Trajectory]:
    """Return the episodes whose steps are samples; their last steps, whose rewards samples do not hold, have 0.

    A sample that does not go on from the one before begins an episode.
    """
    episodes: list[list[Sample]] = []
    for sample in samples:
        if not episodes or sample.past != (*episodes[-1][-1].past, episodes[-1][-1].action):
            episodes.append([])
        episodes[-1].append(sample)
    return [_trajectory(steps) for steps in episodes]


def _trajectory(steps: Sequence[Sample]) -> Trajectory:
    rewards = [sum(step.rewards[-1:]) for step in steps[1:]] + [0.0]
    turns = tuple(
        Turn(
            observation=step.observation,
            menu=step.menu,
            said={"reflector": Utterance(step.reflection)} if step.reflection else {},
            decision=Decision(step.action, 0.0, 0.0, Choice(step.menu.index(step.action) if step.menu else NO_MENU)),
            rewards={"env": reward},
        )
        for step, reward in zip(steps, rewards, strict=True)
    )
    return Trajectory(steps[0].task, steps[0].seed, turns, terminated=True, truncated=False, success=True)


def save_episode(path: Path, header: Header, trajectory: Trajectory) -> int:
    """Add a successful episode to ``path``; return the number of its samples, which are then on the disk.

    Raises:
        WorkFailed: the file cannot be written.
    """
    if not trajectory.success:
        return 0
    samples = samples_of(trajectory)
    try:
        append_samples(path, header, samples)
    except OSError as error:
        raise WorkFailed(
            f"{path} cannot be written ({error.strerror}), so the last episode is lost; those before it are there."
        ) from error
    return len(samples)


def read_demonstrations(recipe: Recipe) -> list[Demonstration]:
    """Return the samples of the files that ``data.demonstrations`` names, in their order.

    Raises:
        InvalidInput: a file that is not there, of another environment, or with a line that is not a legal step.
    """
    return [found for file in recipe.data.demonstrations or () for found in _read(Path(file), recipe)]


def _read(path: Path, recipe: Recipe) -> list[Demonstration]:
    name = recipe.env.name
    try:
        missing = not path.is_file()
    except OSError:  # a name that is too long, or a folder without permission
        missing = True
    if missing:
        played = shlex.join([name, *(f"{key}={_yaml(value)}" for key, value in recipe.env.options.items())])
        raise InvalidInput(
            f"data.demonstrations names {str(path)!r}, which is not a file; make it with `reflectrl play {played} "
            f"--expert --episodes 40 --save {shlex.quote(str(path))}`, or play yourself: leave out --expert."
        )
    header, samples = read_samples(path)
    if header.env != name:
        raise InvalidInput(
            f"{path}, line 1 names the environment {header.env!r}; expected {name!r}, as in the recipe: choose another "
            "file of data.demonstrations."
        )
    found = [Demonstration(path, line, header.options, sample) for line, sample in enumerate(samples, start=2)]
    for where, sample in ((each.where, each.sample) for each in found):
        if sorted(sample.menu) != sorted(sample.observation.actions):
            raise InvalidInput(f"{where} has another menu than the actions of its state; remove the line.")
        if sample.menu and sample.action not in sample.menu:
            raise InvalidInput(f"{where} plays {sample.action!r}, which is not in its menu; remove the line.")
        shown = recipe.prompt.history
        wanted = {"visited": shown.show == "transitions", "rewards": shown.reward}
        for name in (name for name, is_read in wanted.items() if is_read):
            if len(getattr(sample, name)) != len(sample.past):
                raise InvalidInput(
                    f"{where} has {len(getattr(sample, name))} {name} for {len(sample.past)} past actions, but prompts "
                    "show one for each (prompt.history): play the episodes again with `reflectrl play --save`."
                )
    return found


def check_reflections(given: Sequence[Demonstration], recipe: Recipe) -> None:
    """Check that a reflector which is to be trained has something to learn from each sample.

    Raises:
        InvalidInput: a sample has no reflection.
    """
    silent = [found for found in given if not found.sample.reflection]
    if silent and recipe.sft.enabled and recipe.players.reflector.player in ("local", "server", "self"):
        raise InvalidInput(
            f"{silent[0].where} has no reflection, and the reflector of the recipe is to learn from it; play the "
            "episodes with --expert or yourself, or set players.reflector.player=none."
        )


def other_options(given: Sequence[Demonstration], recipe: Recipe) -> Iterator[str]:
    """Describe each file that was played with other options of the environment than the recipe's."""
    ours = json.loads(json.dumps(recipe.env.options))
    for path, theirs in {each.path: each.options for each in given}.items():
        differing = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        there, here = (
            ", ".join(f"{key}={_yaml(options[key])}" if key in options else f"the default {key}" for key in differing)
            for options in (theirs, ours)
        )
        if differing:
            yield f"demonstrations of {path} were played with {there}; the recipe has {here}"


def choose_demonstrations(
    given: Sequence[Demonstration], env: NatLangEnv, starts: frozenset[tuple[str, ...]]
) -> Demonstrated:
    """Return the samples to learn from, without those of held-out tasks or of states that show one of their ``starts``.

    Episodes that were played with menus also teach policies of an environment without.

    Raises:
        InvalidInput: a state that ``env`` could not show.
    """
    if not given:
        return Demonstrated()
    held_out = {task.id for split in env.splits if split != "train" for task in env.any_tasks(split)}
    samples = []
    for where, sample in ((found.where, found.sample) for found in given):
        if not env.max_actions:
            sample = without_menus(sample)
        if (wrong := wrong_observation(sample.observation, env.max_actions, ended=False)) is not None:
            raise InvalidInput(f"{where} cannot be learned from: it {wrong}; remove the line.")
        if sample.task.id not in held_out and sample.observation.shown not in starts:
            samples.append(sample)
    return Demonstrated(tuple(samples), len(given) - len(samples))


def _yaml(value: object) -> str:
    """Return a value as the command line takes it: JSON is YAML."""
    return value if isinstance(value, str) else json.dumps(value)
