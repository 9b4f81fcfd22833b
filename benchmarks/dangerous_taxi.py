"""The DangerousTaxi tables of ``benchmarks/README.md``: every arm and seed through ``reflectrl run``, then one summary.

    python benchmarks/dangerous_taxi.py            # trains what is missing in benchmarks/runs, rewrites the tables
    python benchmarks/dangerous_taxi.py --seeds 0  # one seed only, tables on stdout

Each run is an ordinary run folder of a shipped recipe, one process and one thread each, ``--jobs`` at a time; a run
that is there already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from reflectrl.pipeline.folder import RunFolder
from reflectrl.rollout.results import EvalRow, read_results

HERE = Path(__file__).parent
RUNS = HERE / "runs"
READMES = (HERE / "README.md", HERE.parent / "README.md")
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Two-sided 95 % quantile of Student's t, by number of seeds."""


@dataclass(frozen=True)
class Arm:
    """One line of a table before seeds: a recipe, and what differs from it."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()

    def folder(self, seed: int) -> Path:
        """Where the arm's run of a seed lies."""
        return RUNS / f"{self.name}-seed{seed}"


REFLECT = Arm("reflect_rl", "dangerous_taxi/nano")
PLAIN = Arm("no_reflection", "dangerous_taxi/nano_no_reflection")
UNTAUGHT = Arm("rlft_only", "dangerous_taxi/nano_rlft_only")
RIDES = (
    Arm("ride_direct", "dangerous_taxi/nano_full"),
    Arm("ride_curriculum", "dangerous_taxi/nano_full_curriculum"),
)


def train(arm: Arm, seed: int) -> None:
    """Run one arm with one seed, unless it is done; its output goes to a log beside the runs."""
    if (arm.folder(seed) / "eval.jsonl").is_file():
        return
    command = [sys.executable, "-m", "reflectrl", "run", "--recipe", arm.recipe, "--runs", str(RUNS)]
    command += ["--run", arm.folder(seed).name, f"seed={seed}", *arm.overrides]
    RUNS.mkdir(exist_ok=True)
    with (RUNS / f"{arm.folder(seed).name}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(f"{arm.name} seed {seed}: done", file=sys.stderr)


def train_all(arms: Sequence[Arm], seeds: Sequence[int], jobs: int) -> None:
    """Run all arms and seeds, ``jobs`` at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda pair: train(*pair), [(arm, seed) for seed in seeds for arm in arms]))


def minutes(arm: Arm, seed: int) -> float:
    """Processor minutes of training a run, both stages, on one thread."""
    run = RunFolder(arm.folder(seed))
    return (run.cpu_seconds("sft") + run.cpu_seconds("rlft")) / 60


def equal_minutes(seeds: Sequence[int]) -> Arm:
    """The arm without reflection, with as many iterations as the minutes of Reflect-RL would have bought it."""
    done = iterations(PLAIN, seeds[0])
    spare = statistics.fmean(minutes(REFLECT, seed) - minutes(PLAIN, seed) for seed in seeds)
    per_iteration = statistics.fmean(RunFolder(PLAIN.folder(seed)).cpu_seconds("rlft") for seed in seeds) / 60 / done
    count = done + max(0, round(spare / per_iteration))
    return Arm("no_reflection_equal_minutes", PLAIN.recipe, (f"rlft.stages.0.iterations={count}",))


def find(arm: Arm, seed: int, policy: str, reflections: str | None, mode: str) -> EvalRow:
    """One row of a run's evaluation; ``reflections=None`` is the recipe's own."""
    rows = read_results(arm.folder(seed) / "eval.jsonl")
    controls = {"blank", "shuffled", "expert"}
    return next(
        row
        for row in rows
        if (row.policy, row.mode) == (policy, mode)
        and (row.reflections == reflections if reflections else row.reflections not in controls)
    )


def spread(values: Sequence[float]) -> str:
    """Mean and 95 % interval over seeds, in per cent."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{100 * mean:.0f}"
    half = T95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"**{100 * mean:.0f}** ± {100 * half:.0f}"


def line(title: str, arm: Arm, seeds: Sequence[int], policy: str, reflections: str | None = None) -> str:
    """One line of a table: success of every seed, mean and interval, greedy mean, return, minutes."""
    rows = [find(arm, seed, policy, reflections, "sampled") for seed in seeds]
    success = [row.metrics.success for row in rows]
    greedy = "-"
    if reflections is None and policy in ("sft", "rlft"):
        greedy = f"{100 * statistics.fmean(find(arm, s, policy, None, 'greedy').metrics.success for s in seeds):.0f}"
    cells = [title, *(f"{100 * value:.0f}" for value in success), spread(success), greedy]
    cells.append(f"{statistics.fmean(row.metrics.episode_return for row in rows):+.2f}")
    trained = policy == "rlft" and reflections is None
    cells.append(f"{statistics.fmean(minutes(arm, seed) for seed in seeds):.1f}" if trained else "-")
    cells.append(f"{statistics.fmean(env_steps(arm, seed) for seed in seeds):,.0f}" if trained else "-")
    return f"| {' | '.join(cells)} |"


def iterations(arm: Arm, seed: int) -> int:
    """Iterations that RLFT took."""
    return len((arm.folder(seed) / "metrics.jsonl").read_text().splitlines())


def env_steps(arm: Arm, seed: int) -> int:
    """Environment steps that RLFT played."""
    last = (arm.folder(seed) / "metrics.jsonl").read_text().splitlines()[-1]
    return int(json.loads(last)["env_steps"])


def table(lines: Sequence[str], seeds: Sequence[int]) -> str:
    """Lines with their heading."""
    heads = ["", *(f"s{seed}" for seed in seeds), "success %", "greedy %", "return", "minutes", "env steps"]
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines])


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
        line("expert", REFLECT, seeds, "expert"),
    ]
    rides = [
        line("random", RIDES[0], seeds, "random"),
        line("SFT", RIDES[0], seeds, "sft"),
        line("Reflect-RL, no curriculum", RIDES[0], seeds, "rlft"),
        line("Reflect-RL, pickup first", RIDES[1], seeds, "rlft"),
        line("expert", RIDES[0], seeds, "expert"),
    ]
    episodes = find(REFLECT, seeds[0], "rlft", None, "sampled").metrics.episodes
    return f"""Made on {date.today()} by `python benchmarks/dangerous_taxi.py` on {os.cpu_count()} cores
({platform.machine()}), two runs side by side, one thread each. Test starts are in no SFT row and in no RLFT start;
{episodes} sampled episodes a seed over the 60 test starts. Columns s0.. are success in per cent for each seed;
"success %" is the mean over seeds with a 95 % t interval over seeds; "greedy" plays each start once with the most
probable action; minutes are processor minutes of SFT and RLFT together; env steps are those RLFT played.
"Equal minutes" is {iterations(budget, seeds[0])} iterations, what Reflect-RL's extra minutes buy at the pace of the
equal-iterations row, which was trained beside it; rows trained at another time ran at another pace.

### Pickup

{table(pickup, seeds)}

### The whole ride (pickup, then dropoff)

{table(rides, seeds)}
"""


def main() -> None:
    """Train what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    seeds = arguments.seeds
    train_all([REFLECT, PLAIN], seeds, arguments.jobs)
    budget = equal_minutes(seeds)
    train_all([*RIDES, budget, UNTAUGHT], seeds, arguments.jobs)
    text = report(seeds, budget)
    print(text)
    if len(seeds) == 5:
        for readme in READMES:
            before, mark, rest = readme.read_text(encoding="utf-8").partition("<!-- dangerous_taxi -->\n")
            _, end, after = rest.partition("<!-- end -->")
            readme.write_text(f"{before}{mark}{text}{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
