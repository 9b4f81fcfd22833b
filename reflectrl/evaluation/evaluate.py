"""A policy's success on a fixed list of episodes; the same numbers whatever the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reflectrl.core import NatLangEnv, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.players import Policy, Reflector
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout


def fixed_episodes(
    env: NatLangEnv, split: str, *, episodes: int | None, max_tasks: int | None, seed: int
) -> list[Episode]:
    """The tasks of ``split`` in turn, ``episodes`` of them (each task once when ``None``), each with its own seed."""
    tasks = list(env.split_tasks(split))[:max_tasks]
    count = len(tasks) if episodes is None else episodes
    return [Episode(tasks[i % len(tasks)], derive_seed(seed, "eval", split, i)) for i in range(count)]


def evaluate(
    make: Callable[[], NatLangEnv],
    episodes: Sequence[Episode],
    *,
    policy: Policy,
    reflector: Reflector | None,
    layout: PromptFormat,
    batch_size: int,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes``, ``batch_size`` side by side."""
    envs = [make() for _ in range(min(batch_size, len(episodes)))]
    return rollout(envs, episodes, policy=policy, reflector=reflector, layout=layout, on_episode=on_episode)
