"""Measure the steps per second of 64 environments played at random: in this process, and in one and two workers.

    python benchmarks/worker_pool.py

Prints the median of several rounds in steps per second, with the rounds of all three in turn, and the load of the
machine. ALFWorld needs its extra: pip install 'reflectrl[alfworld]'.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from reflectrl.core import NatLangEnv, make_env
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import RandomPolicy
from reflectrl.workers.pool import WorkerPool

ENVS: dict[str, dict[str, Any]] = {
    "dangerous_taxi": {"stage": "full", "horizon": 15},
    "alfworld": {"count": 4, "scenes": [14], "horizon": 15},
}
COUNT = 64


def speed(envs: Sequence[NatLangEnv]) -> float:
    """Return the steps per second over one episode of each environment."""
    tasks = envs[0].tasks("train")
    episodes = [Episode(tasks[number % len(tasks)], number) for number in range(COUNT)]
    start = time.perf_counter()
    played = rollout(envs, episodes, policy=RandomPolicy(), seats=[], layout=PromptFormat())
    return sum(len(trajectory.turns) for trajectory in played) / (time.perf_counter() - start)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed episodes of each environment")
    counted = parser.parse_args().rounds
    print("| environment | in this process | 1 worker | 2 workers | load |\n|---|---|---|---|---|")
    for name, options in ENVS.items():
        with ExitStack() as pools:
            kinds: list[Sequence[NatLangEnv]] = [[make_env(name, **options) for _ in range(COUNT)]]
            for workers in (1, 2):
                kinds.append(pools.enter_context(WorkerPool(workers)).make(name, options, COUNT))
            rounds = [[speed(envs) for envs in kinds] for _ in range(counted + 1)][1:]  # the first is a warm-up
        speeds = [f"{median(each):.0f}" for each in zip(*rounds, strict=True)]
        print(f"| {name} | {' | '.join(speeds)} | {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
