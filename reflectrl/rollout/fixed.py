"""Evaluation of a policy on a fixed list of episodes, with results that do not depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory, WorkFailed
from reflectrl.core.registry import Env, make_envs
from reflectrl.core.seeds import derive_seed
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Policy
from reflectrl.rollout import Episode, EpisodeMetrics, episode_metrics, rollout
from reflectrl.seats.table import Seat, acting


def fixed_episodes(
    env: NatLangEnv,
    split: str,
    *,
    episodes: int | None,
    max_tasks: int | None,
    seed: int,
    prefixes: Sequence[str] = (),
) -> list[Episode]:
    """Return ``episodes`` episodes of the tasks of ``split`` in turn (each task once if ``None``), with fixed seeds.

    Raises:
        InvalidInput: an unknown or empty split, or one without a task whose id starts with one of ``prefixes``.

    """
    tasks = list(env.split_tasks(split))
    if prefixes:
        examples = ", ".join(repr(task.id) for task in tasks[:3])
        tasks = [task for task in tasks if task.id.startswith(tuple(prefixes))]
        if not tasks:
            raise InvalidInput(
                f"no task of split {split} has an id that starts with {' or '.join(map(repr, prefixes))}; they are "
                f"called {examples}, ..."
            )
    tasks = tasks[:max_tasks]
    count = len(tasks) if episodes is None else episodes
    return _in_turn(tasks, count, split, seed)


def play_all(
    envs: Sequence[NatLangEnv],
    episodes: Sequence[Episode],
    *,
    policy: Policy,
    seats: Sequence[Seat],
    layout: PromptFormat,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes``, as many in parallel as there are ``envs``; return their trajectories.

    Raises:
        WorkFailed: an episode was dropped, so the results would not be comparable.

    """
    played = rollout(envs, episodes, policy=policy, seats=seats, layout=layout, on_episode=on_episode)
    if len(played) < len(episodes):
        finished = {(trajectory.task.id, trajectory.seed) for trajectory in played}
        dropped = [episode.task.id for episode in episodes if (episode.task.id, episode.seed) not in finished]
        raise WorkFailed(
            f"the environment failed in {len(dropped)} of {len(episodes)} episodes, of the tasks "
            f"{', '.join(dict.fromkeys(dropped))}; an evaluation needs all: play with on_failure replay."
        )
    return played


class Players(Protocol):
    """Policy and frozen players that play together: an ``Agent``, or a ``ReflectRLTrainer`` with its current policy."""

    @property
    def policy(self) -> Policy:
        """Policy that chooses the actions."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Frozen players, with their roles."""

    @property
    def layout(self) -> PromptFormat:
        """Layout of the players' prompts."""


def evaluate(
    team: Players,
    env: Env,
    tasks: str | Sequence[Task] = "test",
    *,
    options: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    batch_size: int = 16,
    seed: int = 0,
) -> EpisodeMetrics:
    """Play tasks in turn; return success rate, return and length, with the uncertainty of the success rate.

    Args:
        team: the players, e.g. ``load_agent("runs/taxi")``.
        env: registered name of an environment, or its class, or a function that takes its options.
        tasks: name of a split, or the tasks themselves.
        options: options of the environment.
        episodes: number of episodes; each task once if absent.
        batch_size: number of episodes played in parallel.
        seed: seed of every random draw.

    Raises:
        InvalidInput: an environment, split or state that cannot be played, or there is nothing to play.
        WorkFailed: the environment or a chat endpoint failed.

    """
    envs = make_envs(env, options or {}, batch_size)
    try:
        chosen = list(envs[0].split_tasks(tasks) if isinstance(tasks, str) else tasks)
        split = tasks if isinstance(tasks, str) else "given"
        to_play = _in_turn(chosen, len(chosen) if episodes is None else episodes, split, seed)
        return episode_metrics(
            play_all(envs, to_play, policy=team.policy, seats=acting(team.seats), layout=team.layout)
        )
    finally:
        for each in envs:
            each.close()


def _in_turn(tasks: Sequence[Task], count: int, split: str, seed: int) -> list[Episode]:
    """Return ``count`` episodes of the tasks in turn, each with its own seed; raises ``InvalidInput`` if none."""
    if not tasks or count < 1:
        raise InvalidInput(
            f"there is nothing to play: {count} episodes of {len(tasks)} tasks (split {split}); expected one or more."
        )
    return [Episode(tasks[i % len(tasks)], derive_seed(seed, "eval", split, i)) for i in range(count)]
