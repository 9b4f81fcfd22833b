"""``play``: any registered environment, played by a person, its expert, chance, or the players of a run."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.config.agent_file import read_agent_file
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory, Turn, make_env
from reflectrl.core.origin import Ledger
from reflectrl.core.run_files import DATASET
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.demonstrations import check_place, save_episode
from reflectrl.pipeline.folder import read_recipe
from reflectrl.prompts import History, PromptFormat
from reflectrl.prompts.players import Player, Policy
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import Header
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import Seat, reflecting

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Game:
    """An environment and its players."""

    env: NatLangEnv
    header: Header
    """First line of a record of its episodes: name and options of the environment, layout of the prompts."""
    who: str
    """Name of the player, for the person who watches."""
    policy: Policy
    seats: tuple[Seat, ...]

    def labels(self, turn: Turn, seed: int) -> Sequence[str]:
        """Return the labels of the actions of a turn's menu, in an episode with ``seed``."""
        return self.header.prompt.relabelled(turn.menu, turn.observation, seed).labels

    def check_demonstrations(self, episodes: Sequence[Episode], file: Path) -> None:
        """Check that the episodes can serve as demonstrations, and that ``file`` can hold them.

        Raises:
            InvalidInput: a task is held out, or the file is of other episodes or cannot be written.
        """
        train = {task.id for task in self.env.split_tasks("train")}
        if odd := [episode.task.id for episode in episodes if episode.task.id not in train]:
            raise InvalidInput(
                f"episodes were to be saved for others to learn from, but task {odd[0]!r} is held out for evaluation; "
                "choose a task of the split 'train'."
            )
        check_place(file, self.header)

    def save(self, trajectory: Trajectory, file: Path) -> int:
        """Add an episode to a file of demonstrations, if it succeeded; return the number of its samples."""
        return save_episode(file, self.header, trajectory)


def person(name: str, options: Options, *, hints: bool = False, reflects: bool = False) -> Game:
    """Return a game that a person plays at the keyboard.

    With ``hints``, the expert's reflection is shown; a person who ``reflects`` is asked for reflections, and the
    expert's is a suggestion.
    """
    from reflectrl.seats.others import HumanPolicy, HumanReflector

    policy = HumanPolicy()
    reflector = HumanReflector(policy) if reflects else ExpertReflector() if hints else None
    return _game(name, options, "you", policy, reflector, history=0)


def expert(name: str, options: Options) -> Game:
    """Return a game that the environment's own expert plays."""
    return _game(name, options, "expert", ExpertPolicy(), ExpertReflector())


def chance(name: str, options: Options) -> Game:
    """Return a game in which actions are drawn uniformly from the legal ones."""
    return _game(name, options, "random", RandomPolicy(), None)


def _game(
    name: str,
    options: Options,
    who: str,
    policy: Policy,
    reflector: Player | None,
    history: int | History = PromptFormat.history,
) -> Game:
    env = make_env(name, **options)
    header = Header(name, options, PromptFormat(env.instructions, history=history, carry=env.carries))
    return Game(env, header, who, policy, reflecting(reflector))


def trained(
    run: Path,
    name: str | None,
    options: Options,
    *,
    policy: str | None = None,
    greedy: bool | None = None,
    hosts: Collection[str] = (),
) -> Game:
    """Return a game of the players of a run or exported agent, in its own environment, which may be given by ``name``.

    ``options`` override those of the run; ``policy`` and ``greedy`` are as in ``load_agent``. ``hosts`` are servers
    that the players of a folder from elsewhere may send states to.

    Raises:
        InvalidInput: no such folder, one without that policy, one of another environment, options with which menus
            are longer than those of the run, or a folder from elsewhere that asks for more than was allowed.
    """
    recipe = read_recipe(run, hosts=hosts, given=options if read_agent_file(run) is not None else ())
    if name not in (None, recipe.env.name):
        raise InvalidInput(
            f"{run} was trained on {recipe.env.name!r}, and {name!r} is to be played; leave the environment out, or "
            "choose another --run."
        )
    if recipe.dataset is not None:
        if read_agent_file(run) is not None:
            raise InvalidInput(
                f"{run} is an exported agent, which does not hold the questions of its run; give the run folder, or "
                "use `reflectrl explore --run` or `reflectrl serve`."
            )
        Ledger(run).verify(DATASET)
    env = recipe_env(recipe, run, options)
    from reflectrl.pipeline.agent import load_agent  # torch takes seconds to import

    agent = load_agent(run, policy=policy, greedy=greedy, allow_hosts=hosts)
    if env.max_actions > agent.max_actions:
        raise InvalidInput(
            f"menus of {recipe.env.name!r} with these options have up to {env.max_actions} actions, but {agent.who} "
            f"knows labels for {agent.max_actions}; choose options with shorter menus."
        )
    header = Header(recipe.env.name, {**recipe.env.options, **options}, recipe.layout(env.instructions))
    return Game(env, header, f"{agent.who}, {agent.way_to_play}", agent.policy, agent.seats)


def choose_episodes(
    env: NatLangEnv, *, task: str | None = None, split: str | None = None, count: int = 1, seed: int = 0
) -> list[Episode]:
    """Return episodes of ``task``, of any split, or of tasks of ``split`` (train if absent), shuffled by ``seed``.

    Raises:
        InvalidInput: no such task or split.
    """
    if task is not None:
        tasks = [_task(env, task, env.splits if split is None else (split,))]
    else:
        tasks = list(env.split_tasks(split or "train"))
        random.Random(f"{seed} tasks to play").shuffle(tasks)
    return [Episode(tasks[number % len(tasks)], derive_seed(seed, "play", number)) for number in range(count)]


def _task(env: NatLangEnv, wanted: str, splits: tuple[str, ...]) -> Task:
    tasks = {task.id: task for split in splits for task in env.any_tasks(split)}
    if wanted not in tasks:
        near = difflib.get_close_matches(wanted, tasks, n=5, cutoff=0.0)
        where = f"{env.name!r}" if splits == env.splits else f"split {splits[0]!r} of {env.name!r}"
        raise InvalidInput(
            f"task {wanted!r} is none of the {len(tasks)} of {where}; the nearest are {', '.join(near) or 'none'}."
        )
    return tasks[wanted]


def check_expert(env: NatLangEnv, episode: Episode) -> None:
    """Check that the environment has an expert.

    Raises:
        InvalidInput: there is no expert.
    """
    env.reset(seed=episode.seed, options={"task": episode.task})
    if env.hints().reflection is None:
        raise InvalidInput(
            f"environment {env.name!r} has no expert: its expert() and reflection() say nothing; play without."
        )


def play_episode(game: Game, episode: Episode, show: Callable[[Turn], None]) -> Trajectory:
    """Play one episode; ``show`` is called with each step once it is played.

    Raises:
        InvalidInput: a state that is too long for a local model.
        PlayerLeft: the person at the keyboard stopped playing.
        WorkFailed: the environment or a chat endpoint failed.
    """
    layout = game.header.prompt
    return rollout([game.env], [episode], policy=game.policy, seats=game.seats, layout=layout, on_turn=show)[0]
