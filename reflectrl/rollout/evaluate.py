"""Evaluation of a policy on a fixed list of episodes, with results that do not depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reflectrl.core import InvalidInput, NatLangEnv, Trajectory, WorkFailed
from reflectrl.core.seeds import derive_seed
from reflectrl.players import Policy, Seat
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout


def fixed_episodes(
    env: NatLangEnv,
    split: str,
    *,
    episodes: int | None,
    max_tasks: int | None,
    seed: int,
    prefixes: Sequence[str] = (),
) -> list[Episode]:
    """Return ``episodes`` tasks of ``split`` in turn (each once if ``None``), each with its own seed.

    Raises:
        InvalidInput: an unknown split, or one without a task whose id starts with one of ``prefixes``.

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
    return [Episode(tasks[i % len(tasks)], derive_seed(seed, "eval", split, i)) for i in range(count)]


def evaluate(
    envs: Sequence[NatLangEnv],
    episodes: Sequence[Episode],
    *,
    policy: Policy,
    seats: Sequence[Seat],
    layout: PromptFormat,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes``, as many side by side as there are ``envs``.

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
