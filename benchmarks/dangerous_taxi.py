"""The DangerousTaxi tables of ``benchmarks/README.md``: every arm and seed through ``reflectrl run``, then one summary.

    python benchmarks/dangerous_taxi.py            # trains what is missing in benchmarks/runs, rewrites the tables
    python benchmarks/dangerous_taxi.py --seeds 0  # one seed only, tables on stdout
    python benchmarks/dangerous_taxi.py --short    # the README's table: pickup, with and without reflection

Each run is an ordinary run folder of a shipped recipe, one process and one thread each, ``--jobs`` at a time; a run
that is there already is not trained again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from arms import (
    HERE,
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
from reflectrl.envs.dangerous_taxi.env import UNSEEN, UNSEEN_DESTINATION
from reflectrl.envs.dangerous_taxi.world import LANDMARKS
from reflectrl.pipeline.folder import RunFolder

READMES = (HERE / "README.md", HERE.parent / "README.md")

REFLECT = Arm("reflect_rl", "dangerous_taxi/nano")
PLAIN = Arm("no_reflection", "dangerous_taxi/nano_no_reflection")
UNTAUGHT = Arm("rlft_only", "dangerous_taxi/nano_rlft_only")
PAPER = Arm("paper_objective", "dangerous_taxi/nano_paper_objective")
RIDES = (
    Arm("ride_direct", "dangerous_taxi/nano_full"),
    Arm("ride_curriculum", "dangerous_taxi/nano_full_curriculum"),
)


def equal_minutes(seeds: Sequence[int]) -> Arm:
    """The arm without reflection, with as many iterations as the minutes of Reflect-RL would have bought it."""
    done = iterations(PLAIN, seeds[0])
    spare = statistics.fmean(minutes(REFLECT, seed) - minutes(PLAIN, seed) for seed in seeds)
    per_iteration = statistics.fmean(RunFolder(PLAIN.folder(seed)).cpu_seconds("rlft") for seed in seeds) / 60 / done
    count = done + max(0, round(spare / per_iteration))
    return Arm(f"no_reflection_{count}_iterations", PLAIN.recipe, (f"rlft.stages.0.iterations={count}",))


def line(
    title: str, arm: Arm, seeds: Sequence[int], policy: str, reflections: str | None = None, split: str = "test"
) -> list[str]:
    """One line of a table: success of every seed, mean and interval, greedy mean, return, minutes."""
    rows = [find(arm, seed, policy, reflections, "sampled", split) for seed in seeds]
    success = [row.metrics.success for row in rows]
    greedy = "-"
    if reflections is None and policy in ("sft", "rlft"):
        greedy = (
            f"{100 * statistics.fmean(find(arm, s, policy, None, 'greedy', split).metrics.success for s in seeds):.0f}"
        )
    cells = [title, *(f"{100 * value:.0f}" for value in success), spread(success), greedy]
    cells.append(f"{statistics.fmean(row.metrics.episode_return for row in rows):+.2f}")
    trained = policy == "rlft" and reflections is None and split == "test"
    cells.append(f"{statistics.fmean(minutes(arm, seed) for seed in seeds):.1f}" if trained else "-")
    cells.append(f"{statistics.fmean(env_steps(arm, seed) for seed in seeds):,.0f}" if trained else "-")
    return cells


def report(seeds: Sequence[int], budget: Arm) -> str:
    """Both tables, with how they were made."""
    pickup = [
        line("random", REFLECT, seeds, "random"),
        line("RLFT only (no SFT, no reflection)", UNTAUGHT, seeds, "rlft"),
        line("SFT, without reflection", PLAIN, seeds, "sft"),
        line("SFT, with reflection", REFLECT, seeds, "sft"),
        line("SFT + RLFT without reflection, equal iterations", PLAIN, seeds, "rlft"),
        line("SFT + RLFT without reflection, equal minutes", budget, seeds, "rlft"),
        line("**Reflect-RL**", REFLECT, seeds, "rlft"),
        line("its policy, reflections blank", REFLECT, seeds, "rlft", "blank"),
        line("its policy, reflections of other states", REFLECT, seeds, "rlft", "shuffled"),
        line("its policy, the expert's reflections", REFLECT, seeds, "rlft", "expert"),
        line("SFT, without label smoothing", PAPER, seeds, "sft"),
        line("Reflect-RL with the paper's objective", PAPER, seeds, "rlft"),
        line("expert", REFLECT, seeds, "expert"),
        line("SFT, with reflection; unseen destination", REFLECT, seeds, "sft", split=UNSEEN),
        line("**Reflect-RL**; unseen destination", REFLECT, seeds, "rlft", split=UNSEEN),
    ]
    rides = [
        line("random", RIDES[0], seeds, "random"),
        line("SFT", RIDES[0], seeds, "sft"),
        line("Reflect-RL, no curriculum", RIDES[0], seeds, "rlft"),
        line("Reflect-RL, pickup first", RIDES[1], seeds, "rlft"),
        line("expert", RIDES[0], seeds, "expert"),
    ]
    heads = ["", *(f"s{seed}" for seed in seeds), "success %", "greedy %", "return", "minutes", "env steps"]
    tested, unseen = (find(REFLECT, seeds[0], "rlft", None, "sampled", split) for split in ("test", UNSEEN))
    made = made_by("python benchmarks/dangerous_taxi.py")
    return f"""{made}, two runs side by side, one thread each. Test starts are in no SFT row and in
no RLFT start, but training episodes pass through them: these rows measure unseen starts. Rows "unseen destination"
measure unseen states: no training ride goes to {LANDMARKS[UNSEEN_DESTINATION]}. {tested.metrics.episodes} sampled
episodes a seed over the {tested.tasks} test starts, and as many over the {unseen.tasks} starts of {UNSEEN}.
Columns s0.. are success in per cent for each seed;
"success %" is the mean over seeds with a 95 % t interval over seeds; "greedy" plays each start once with the most
probable action; minutes are processor minutes of SFT and RLFT together; env steps are those RLFT played.
"Equal minutes" is {iterations(budget, seeds[0])} iterations, what Reflect-RL's extra minutes buy at the pace of the
equal-iterations row, which was trained beside it; rows trained at another time ran at another pace.
{objectives(load_recipe(REFLECT.recipe))}

### Pickup

{table(heads, pickup)}

### The whole ride (pickup, then dropoff)

{table(heads, rides)}
"""


def short_line(title: str, arm: Arm, seeds: Sequence[int], policy: str, split: str) -> list[str]:
    """One line of the short table: success of every seed, mean and interval, worst seed, greedy mean."""
    sampled, greedy = (
        [find(arm, seed, policy, None, mode, split).metrics.success for seed in seeds] for mode in ("sampled", "greedy")
    )
    *each, worst, most_probable = (f"{100 * value:.0f}" for value in (*sampled, min(sampled), statistics.fmean(greedy)))
    return [title, *each, spread(sampled), worst, most_probable]


def short_report(seeds: Sequence[int]) -> str:
    """Pickup with and without reflection, on both held-out splits."""
    lines = [
        short_line(f"{title}{where}", arm, seeds, policy, split)
        for split, where in (("test", ""), (UNSEEN, "; unseen destination"))
        for title, arm, policy in (
            ("SFT, without reflection", PLAIN, "sft"),
            ("SFT, with reflection", REFLECT, "sft"),
            ("SFT + RLFT without reflection", PLAIN, "rlft"),
            ("**Reflect-RL**", REFLECT, "rlft"),
        )
    ]
    heads = ["", *(f"s{seed}" for seed in seeds), "success %", "worst %", "greedy %"]
    tested, unseen = (find(REFLECT, seeds[0], "rlft", None, "sampled", split) for split in ("test", UNSEEN))
    command = f"python benchmarks/dangerous_taxi.py --short --seeds {' '.join(map(str, seeds))}"
    return f"""{made_by(command)}, one thread a run.
{tested.metrics.episodes} sampled episodes a seed over the {tested.tasks} test starts, from which no training episode
begins but through which some pass, and as many over the {unseen.tasks} starts of rides to
{LANDMARKS[UNSEEN_DESTINATION]}, of which training visits no state.
Columns s0.. are success in per cent for each seed; "success %" is the mean over seeds with a 95 % t interval;
"greedy" plays each start once with the most probable action.
{objectives(load_recipe(REFLECT.recipe))}

{table(heads, lines)}
"""


def main() -> None:
    """Train what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="the README's table only")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    train_all([REFLECT, PLAIN], seeds, arguments.jobs)
    if arguments.short:
        text = short_report(seeds)
        print(text)
        for readme in READMES:
            publish(readme, "dangerous_taxi_short", text)
        return
    budget = equal_minutes(seeds)
    train_all([*RIDES, budget, UNTAUGHT, PAPER], seeds, arguments.jobs)
    text = report(seeds, budget)
    print(text)
    if len(seeds) == 5:
        publish(READMES[0], "dangerous_taxi", text)


if __name__ == "__main__":
    main()
