"""A policy's success on a fixed list of episodes; the same numbers whatever the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import InvalidInput, NatLangEnv, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.players import Policy, Reflector
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, EpisodeMetrics, episode_metrics, rollout
from reflectrl.rollout.jsonl import decode, read_jsonl, write_jsonl


@dataclass(frozen=True)
class EvalRow:
    """One row of a table: who played, how, and what came out."""

    policy: str
    """``random``, ``base``, ``sft``, ``rlft``, ``expert`` or ``remote``."""
    reflections: str
    """Who reflected: the recipe's player, ``none``, or a control (``blank``, ``shuffled``, ``expert``)."""
    mode: str
    """``sampled`` or ``greedy``."""
    split: str
    tasks: int
    """Different tasks played."""
    metrics: EpisodeMetrics


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


def row(policy: str, reflections: str, mode: str, split: str, trajectories: Sequence[Trajectory]) -> EvalRow:
    """Summarise one policy's episodes."""
    tasks = len({trajectory.task.id for trajectory in trajectories})
    return EvalRow(policy, reflections, mode, split, tasks, episode_metrics(trajectories))


def write_rows(path: Path, rows: Sequence[EvalRow]) -> None:
    """Write an evaluation, all of it or nothing."""
    write_jsonl(path, rows)


def read_rows(path: Path) -> list[EvalRow]:
    """Read an evaluation.

    Raises:
        InvalidInput: no such file, or a bad line.

    """
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist; run `reflectrl eval` for that run first.")
    return [decode(EvalRow, value, where) for where, value in read_jsonl(path)]
