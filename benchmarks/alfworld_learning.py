"""The ALFWorld table of learning in ``benchmarks/README.md``: every arm and seed through ``reflectrl run``.

    python benchmarks/alfworld_learning.py                       # trains what is missing in runs/, rewrites the table
    python benchmarks/alfworld_learning.py --arms no_reflection  # Reflect-RL and these arms only
    python benchmarks/alfworld_learning.py --seeds 0             # one seed only, table on stdout

Each run is an ordinary run folder of a shipped recipe, one process and one thread each, ``--jobs`` at a time; a run
that is there already is not trained again. (This file cannot be called alfworld.py: beside it, scripts would import it
instead of the package.)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from arms import (
    HERE,
    RUNS,
    Arm,
    env_steps,
    find,
    iterations,
    made_by,
    minutes,
    objectives,
    publish,
    spread,
    table,
    train_all,
)

from reflectrl.config import load_recipe

REFLECT = Arm("alfworld-reflect_rl", "alfworld/nano")
PLAIN = Arm("alfworld-no_reflection", "alfworld/nano_no_reflection")
UNTAUGHT = Arm("alfworld-rlft_only", "alfworld/nano_rlft_only")
SPOTLESS = Arm("alfworld-no_negatives", "alfworld/nano_no_negatives")
ARMS = {arm.name.removeprefix("alfworld-"): arm for arm in (PLAIN, UNTAUGHT, SPOTLESS)}
"""Arms beside Reflect-RL, in the order in which they are trained."""


def line(title: str, arm: Arm, seeds: Sequence[int], policy: str, reflections: str | None = None) -> list[str]:
    """One line of the table: success of every seed, mean and interval, greedy mean, steps, what training cost."""
    rows = [find(arm, seed, policy, reflections, "sampled") for seed in seeds]
    success = [row.metrics.success for row in rows]
    greedy, cost = "-", ["-", "-"]
    if reflections is None and policy in ("sft", "rlft"):
        greedy = f"{100 * fmean(find(arm, seed, policy, None, 'greedy').metrics.success for seed in seeds):.0f}"
    if reflections is None and policy == "rlft":
        took, played = (fmean(number(arm, seed) for seed in seeds) for number in (minutes, env_steps))
        cost = [f"{took:.1f}", f"{played:,.0f}"]
    steps = f"{fmean(row.metrics.length for row in rows):.1f}"
    return [title, *(f"{100 * value:.0f}" for value in success), spread(success), greedy, steps, *cost]


def report(seeds: Sequence[int], runs: Path, arms: Sequence[str]) -> str:
    """The table of Reflect-RL and ``arms``, with how it was made and what its games are."""
    reflect, plain, untaught, spotless = (replace(arm, runs=runs) for arm in (REFLECT, *ARMS.values()))
    title = "RLFT only (no SFT, no reflection)"
    if "rlft_only" in arms:
        title += f", {iterations(untaught, seeds[0])} iterations"
    lines = [
        line("random", reflect, seeds, "random"),
        *([line(title, untaught, seeds, "rlft")] if "rlft_only" in arms else []),
        *([line("SFT, without reflection", plain, seeds, "sft")] if "no_reflection" in arms else []),
        line("SFT, with reflection", reflect, seeds, "sft"),
        *([line("SFT + RLFT without reflection", plain, seeds, "rlft")] if "no_reflection" in arms else []),
        *([line("SFT + RLFT without negatives", spotless, seeds, "rlft")] if "no_negatives" in arms else []),
        line("**Reflect-RL**", reflect, seeds, "rlft"),
        line("its policy, reflections blank", reflect, seeds, "rlft", "blank"),
        line("its policy, reflections of other states", reflect, seeds, "rlft", "shuffled"),
        line("its policy, the expert's reflections", reflect, seeds, "rlft", "expert"),
        line("expert", reflect, seeds, "expert"),
    ]
    heads = ["", *(f"s{seed}" for seed in seeds), "success %", "greedy %", "steps", "minutes", "env steps"]
    row = find(reflect, seeds[0], "rlft", None, "sampled")
    options = load_recipe(str(reflect.folder(seeds[0]) / "recipe.yaml")).env.options
    command = " ".join(["python benchmarks/alfworld_learning.py", *(["--arms", *arms] if set(arms) != {*ARMS} else [])])
    return f"""{made_by(command)}, one thread a run.
{row.benchmark}: a tomato into the microwave, in
{len(options["scenes"])} kitchens that all splits share, {options["horizon"]} steps at most. The {row.tasks} test games,
the same for every seed, are in no SFT row and in no RLFT start; {row.metrics.episodes} sampled episodes a seed over
them. Columns s0.. are success in per cent for each seed; "success %" is the mean over seeds with a 95 % t interval over
seeds; "greedy" plays each game once with the most probable commands; steps are means over all sampled episodes; minutes
are processor minutes of SFT and RLFT together; env steps are those RLFT played.
{objectives(load_recipe(REFLECT.recipe))}

{table(heads, lines)}
"""


def main() -> None:
    """Train what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS], help="beside Reflect-RL")
    arguments = parser.parse_args()
    arms = [REFLECT, *(ARMS[name] for name in arguments.arms)]
    for together in (arms[:2], *([arm] for arm in arms[2:])):
        train_all(together, arguments.seeds, arguments.jobs)
    text = report(arguments.seeds, RUNS, arguments.arms)
    print(text)
    if len(arguments.seeds) == 5:
        publish(HERE / "README.md", "alfworld", text)


if __name__ == "__main__":
    main()
