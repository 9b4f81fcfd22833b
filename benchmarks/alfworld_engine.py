"""Compare the ALFWorld engine with the stock TextWorld stack: the ALFWorld table of ``benchmarks/results/engine.md``.

    python benchmarks/alfworld_engine.py            # some minutes, rewrites the table
    python benchmarks/alfworld_engine.py --games 6  # a quick look, on stdout

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
from statistics import median, quantiles
from typing import Any

from arms import ENGINE, made_by, publish, table

from reflectrl.core import WorkFailed
from reflectrl.envs.alfworld.engine import Engine, Reply
from reflectrl.envs.alfworld.games import FAMILIES, Game, make_games
from reflectrl.envs.alfworld.translation import packed_translation

GAMES, REPEATS, STEPS = 24, 2, 15
"""Number of games in the race, repeats of each game, and commands per repeat."""

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


def report(times: Times) -> str:
    """Return the table of both engines."""
    lines = [
        [what, thousandths(times.stock[what]), thousandths(times.ours[what]), faster(times, what)]
        for what in (FIRST, LATER, NEXT, SAME, STEP)
    ]
    return table(["processor milliseconds: median (middle half)", "stock", "ours", "times as fast"], lines)


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
    """Race both engines, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=GAMES, help=f"of the race, in turn of {len(FAMILIES)} families")
    games = parser.parse_args().games
    text = report(race(make_games("all", "train", games), REPEATS, STEPS))
    print(
        f"{made_by('python benchmarks/alfworld_engine.py')}, both in one process and in turns, {games} games\n\n{text}"
    )
    if games == GAMES:
        publish(ENGINE, "alfworld_engine", f"{text}\n")


if __name__ == "__main__":
    main()
