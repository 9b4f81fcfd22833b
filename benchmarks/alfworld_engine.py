"""Compare the ALFWorld engine with the stock TextWorld stack: the ALFWorld table of ``benchmarks/results/engine.md``.

    python benchmarks/alfworld_engine.py                          # some minutes, rewrites the table
    python benchmarks/alfworld_engine.py --games 6 --episodes 60  # a quick look, on stdout

Both play the same games with the same commands, alternating in one process. Processor time is measured, so other load
on the machine does not favour either. Every text and every list of commands is compared too; the first difference ends
the benchmark.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from arms import ENGINE, made_by, publish, table

from reflectrl.core import Task, WorkFailed
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.engine import Engine, Reply
from reflectrl.envs.alfworld.games import FAMILIES, Game, make_games
from reflectrl.envs.alfworld.translation import packed_translation

GAMES, REPEATS, STEPS = 24, 2, 15
"""Number of games in the race, repeats of each game, and commands per repeat."""
EPISODES, DIFFERENT = 1000, 100
"""Number of episodes of the memory test, and of different games: each is played once between two samples."""

FIRST = "a game for the first time on a machine: load and reset"
LATER = "a game that another process has translated: load and reset"
NEXT = "a game that this process has played before: load and reset"
SAME = "the same game again: reset"
STEP = "a step of random play"


@dataclass
class Times:
    """Processor seconds of the stock stack and of our engine, by operation."""

    stock: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ours: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Look:
    """Resources of the process after some episodes."""

    episodes: int
    megabytes: float
    processes: int
    files: int


@contextmanager
def own_folder(variable: str) -> Iterator[None]:
    """Point an environment variable at an empty temporary folder within the context."""
    before = os.environ.get(variable)
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        os.environ[variable] = folder
        try:
            yield
        finally:
            os.environ.pop(variable)
            if before is not None:
                os.environ[variable] = before


def stock_stack() -> Any:
    """Return TextWorld's environment in ALFWorld's wrappers.

    Importing alfworld creates the folder that ALFWORLD_DATA names, so the variable points at a temporary folder.
    """
    with own_folder("ALFWORLD_DATA"):
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs import PddlEnv
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    return AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))


def race(games: Sequence[Game], repeats: int, steps: int) -> Times:
    """Time both engines on the same games and commands, and compare their replies.

    Raises:
        WorkFailed: the replies differ.

    """
    stock, engine, times, rng = stock_stack(), Engine(), Times(), random.Random(0)
    for game in [game for _ in range(repeats) for game in games]:
        run(game, stock, engine, times, rng, steps)
    return times


def run(game: Game, stock: Any, engine: Engine, times: Times, rng: random.Random, steps: int) -> None:
    """Time one game with both engines and compare their replies."""
    data = {"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem}
    state = timed(times.stock[NEXT], lambda: (stock.load(data), stock.reset())[1])
    with own_folder("XDG_CACHE_HOME"):
        for what in (FIRST, LATER, NEXT):
            if what != NEXT:
                times.stock[what].append(times.stock[NEXT][-1])
                packed_translation.cache_clear()
            compare(game, "load", timed(times.ours[what], lambda: engine.load(game)), state)
    state = timed(times.stock[SAME], stock.reset)
    compare(game, "reset", timed(times.ours[SAME], engine.reset), state)
    for _ in range(steps):
        command = rng.choice(engine.snapshot().reply.commands)
        state, _, _ = timed(times.stock[STEP], partial(stock.step, command))
        compare(game, command, timed(times.ours[STEP], partial(engine.step, command)), state)


def timed(times: list[float], call: Callable[[], Any]) -> Any:
    """Return the result of ``call``, and add its seconds to ``times``."""
    start = time.process_time()
    answer = call()
    times.append(time.process_time() - start)
    return answer


def compare(game: Game, command: str, reply: Reply, state: Any) -> None:
    """Check that text, commands and success are identical to the byte.

    Raises:
        WorkFailed: they differ.

    """
    stock = state.feedback, state["admissible_commands"], state["won"]
    ours = reply.text, list(reply.commands), reply.won
    if ours != stock:
        raise WorkFailed(f"{game.name} after {command!r}: the stock stack says {stock!r}, ours {ours!r}.")


def watch_environment(env: AlfWorld, tasks: Sequence[Task], steps: int) -> Times:
    """Time the operations that the stock stack lacks or needs a planner for: the expert, and restoring a state."""
    times, rng = Times(), random.Random(0)
    for task in tasks:
        env.reset(options={"task": task})
        for _ in range(steps):
            timed(times.ours["the expert's command"], env.expert)
            here = timed(times.ours["a snapshot"], env.snapshot)
            env.step(rng.choice(env.observation.actions))
            timed(times.ours["back to it"], partial(env.restore, here))
            if env.step(rng.choice(env.observation.actions))[2]:
                break
    return times


def watch_memory(env: AlfWorld, tasks: Sequence[Task], episodes: int, every: int) -> Iterator[Look]:
    """Play random episodes, and yield the resources before the first and after every ``every`` episodes.

    Each episode is a reset to the next game and 5 to 15 random steps.
    """
    rng = random.Random(0)
    yield look(0)
    for episode in range(1, episodes + 1):
        env.reset(options={"task": tasks[episode % len(tasks)]})
        for _ in range(rng.randint(5, 15)):
            _, _, terminated, truncated, _ = env.step(rng.choice(env.observation.actions))
            if terminated or truncated:
                break
        if episode % every == 0:
            yield look(episode)


def look(episodes: int) -> Look:
    """Return the resources of this process and its children, from ``/proc``."""
    me = Path("/proc/self")
    children = [child for task in me.glob("task/*/children") for child in task.read_text(encoding="ascii").split()]
    counts = (Path(f"/proc/{id}/statm").read_text(encoding="ascii").split() for id in ("self", *children))
    megabytes = sum(int(resident) for _, resident, *_ in counts) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return Look(episodes, megabytes, 1 + len(children), len(list((me / "fd").iterdir())))


def report(race: Times, own: Times, looks: Sequence[Look], games: int) -> str:
    """Print what the environment adds and how memory grows, and return the table of both engines."""
    lines = [
        [what, thousandths(race.stock[what]), thousandths(race.ours[what]), faster(race, what)]
        for what in (FIRST, LATER, NEXT, SAME, STEP)
    ]
    own_lines = [[what, thousandths(seconds)] for what, seconds in own.ours.items()]
    heads = ["processor milliseconds: median (middle half)", "stock", "ours", "times as fast"]
    megabytes = ", ".join(f"{now.megabytes:.0f}" for now in looks)
    first, second, *_, last = looks
    print(
        f"{made_by('python benchmarks/alfworld_engine.py')}, both in one process and in turns, {games} games:\n"
        f"after each of {len(race.ours[STEP]):,} random steps both said the same and offered the same commands.\n\n"
        f"{table(['what the environment adds', 'ms'], own_lines)}\n\n"
        f"Resident megabytes before {last.episodes:,} episodes and after each {second.episodes}: {megabytes}.\n"
        f"Processes: {first.processes} before and {last.processes} after; open files: {first.files} and {last.files}.\n"
    )
    return f"{table(heads, lines)}\n"


def thousandths(seconds: Sequence[float]) -> str:
    """Format the median and the quartiles in milliseconds."""
    low, middle, high = (number(1e3 * part) for part in quantiles(seconds, n=4, method="inclusive"))
    return f"{middle} ({low} to {high})"


def faster(times: Times, what: str) -> str:
    """Format how many times as fast our engine is, from the medians."""
    return f"**{number(median(times.stock[what]) / median(times.ours[what]))}**"


def number(value: float) -> str:
    """Format a number with at least two significant digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main() -> None:
    """Measure both engines and memory, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=GAMES, help=f"of the race, in turn of {len(FAMILIES)} families")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    arguments = parser.parse_args()
    times = race(make_games("all", "train", arguments.games), REPEATS, STEPS)
    env = AlfWorld("alfworld:all", count=DIFFERENT)
    tasks = env.tasks("train")
    own = watch_environment(env, tasks[: arguments.games], STEPS)
    every = min(DIFFERENT, max(1, arguments.episodes // 10))
    looks = list(watch_memory(env, tasks, arguments.episodes, every))
    text = report(times, own, looks, arguments.games)
    print(text)
    if (arguments.games, arguments.episodes) == (GAMES, EPISODES):
        publish(ENGINE, "alfworld_engine", text)


if __name__ == "__main__":
    main()
