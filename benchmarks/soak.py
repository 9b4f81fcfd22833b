"""Measure how memory, files, threads, processes and speed change over thousands of iterations.

    python benchmarks/soak.py taxi                   # all stages of dangerous_taxi/nano, with 2,000 iterations of RLFT
    python benchmarks/soak.py alfworld               # 1,000 episodes at random, in two worker processes
    python benchmarks/soak.py taxi --iterations 100  # a quick look, in which the caches are not full yet

Up to a hundred samples are taken, and written to --out as JSON lines. The first half may be a warm-up, in which caches
of reflections and tokens fill, so memory is judged by a line through the second half. Exits with 1 if memory grows, if
there are more files, threads or processes at 100 % of the work than at 10 %, or if something is left behind. The drift
of the speed is printed too, but decides nothing, because it is only meaningful on an idle machine.

ALFWorld needs its extra: pip install 'reflectrl[alfworld]'.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

import psutil
from arms import made_by, table

from reflectrl.config import load_recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.core.seeds import derive_seed
from reflectrl.pipeline.console import Advance, Reporter
from reflectrl.pipeline.stages import run_stages
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, begin_ahead, rollout
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.rollout.worker import Local, Pending
from reflectrl.seats.others import RandomPolicy

SAMPLES = 100
GROWTH = 5.0
"""Accepted growth in megabytes per process and 1,000 iterations or episodes; malloc's free lists vary too."""
DRIFT = 0.1
"""Largest relative change of the time of an iteration from the second to the last fifth of samples that is steady."""

TAXI = ("rlft.episodes=16",)
"""Overrides of the recipe besides the iterations: a quarter of its episodes per iteration."""
ALFWORLD = ("env.workers=2", "env.options.count=50", "env.options.horizon=15")
TOGETHER, SIDE_BY_SIDE = 20, 8
"""Number of episodes of a rollout, and of environments."""


@dataclass(frozen=True)
class Sample:
    """Resources after a part of the work."""

    done: int
    """Number of iterations or episodes so far."""
    own_mb: float
    """Resident memory of this process in megabytes."""
    workers_mb: float
    """Resident memory of its descendants in megabytes."""
    files: int
    """Number of open files of this process and its descendants."""
    threads: int
    """Number of threads of this process and its descendants."""
    processes: int
    """Number of descendants of this process."""
    objects: int
    """Number of Python objects of this process that its garbage collector tracks."""
    disk_mb: float
    """Size of the run folder in megabytes."""
    wall_ms: float
    """Mean wall time of an iteration or episode since the previous sample, without the time of sampling."""
    cpu_ms: float
    """Mean processor time of an iteration or episode in all processes, since the previous sample."""
    step_ms: float
    """Mean processor time of an environment step in all processes, since the previous sample."""


class Watch:
    """Samples of the resources of this process and its descendants, about a hundred during the work."""

    def __init__(self, folder: Path, out: Path, total: int) -> None:
        self.during: list[Sample] = []
        self._folder = folder
        self._out = out
        self._every = max(1, total // SAMPLES)
        self._last = self._steps = 0
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("", encoding="utf-8")
        self._clock, self._processor = time.perf_counter(), _seconds()
        self.before = self._sample(0, 0)

    def look(self, done: int, steps: Callable[[], int]) -> None:
        """Take a sample if it is time, after ``done`` iterations or episodes and ``steps()`` environment steps."""
        if done - self._last >= self._every:
            self.during.append(self._sample(done, steps()))

    def after(self) -> Sample:
        """Return a sample of what is left after everything was closed."""
        return self._sample(self._last, self._steps)

    def _sample(self, done: int, steps: int) -> Sample:
        wall = time.perf_counter() - self._clock
        found = processes()
        alive = [figures for process in found if (figures := measured(process)) is not None]
        own, *workers = alive
        count, played = max(1, done - self._last), max(1, steps - self._steps)
        used = max(0.0, sum(each.seconds for each in alive) - self._processor)  # without processes that have ended
        gc.collect()  # after memory was measured: uncollected garbage counts as memory, not as objects
        sample = Sample(
            done=done,
            own_mb=round(own.megabytes, 2),
            workers_mb=round(sum(each.megabytes for each in workers), 2),
            files=sum(each.files for each in alive),
            threads=sum(each.threads for each in alive),
            processes=len(found) - 1,
            objects=len(gc.get_objects()),
            disk_mb=round(sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file()) / 1e6, 3),
            wall_ms=round(1e3 * wall / count, 2),
            cpu_ms=round(1e3 * used / count, 2),
            step_ms=round(1e3 * used / played, 3),
        )
        with self._out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(sample)) + "\n")
        self._last, self._steps = done, steps
        self._processor, self._clock = _seconds(), time.perf_counter()
        return sample


class Figures(NamedTuple):
    """Resources of one process."""

    megabytes: float
    seconds: float
    """Processor seconds of all threads so far."""
    files: int
    threads: int


def processes() -> list[psutil.Process]:
    """Return this process and its descendants, including zombies."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def measured(process: psutil.Process) -> Figures | None:
    """Return the resources of a process; ``None`` if it is gone."""
    with suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        memory = process.memory_info().rss / 1e6
        return Figures(memory, used.user + used.system, process.num_fds(), process.num_threads())
    return None


def _seconds() -> float:
    return sum(figures.seconds for process in processes() if (figures := measured(process)))


# ---- the work --------------------------------------------------------------------------------------------------------


class _Told(Reporter):
    """A reporter that passes the progress of RLFT to a function instead of showing it."""

    def __init__(self, advance: Advance) -> None:
        super().__init__()
        self._advance = advance

    @contextmanager
    def stage(self, name: str) -> Iterator[Advance]:
        """Yield the function for progress, and show no bar."""
        yield self._advance
        self.line(f"{name:<18} done")


def taxi(folder: Path, out: Path, iterations: int, seed: int, overrides: Sequence[str] = ()) -> Watch:
    """Run the data, SFT and RLFT stages of the recipe as ``reflectrl run`` does, with checkpoints and records."""
    lessons = f"rlft.lessons=[{{name: pickup, iterations: {iterations}}}]"
    recipe = load_recipe("dangerous_taxi/nano", [f"seed={seed}", *TAXI, lessons, *overrides])
    watch = Watch(folder, out, iterations)

    def steps() -> int:
        last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        return int(json.loads(last)["env_steps"])

    run_stages(recipe, folder, ("gen-data", "sft"))
    run_stages(recipe, folder, ("rlft",), reporter=_Told(lambda done, _, __: watch.look(done, steps)))
    return watch


def alfworld(folder: Path, out: Path, count: int, seed: int) -> Watch:
    """Play games at random in worker processes; as in RLFT, episodes are begun ahead and some are recorded."""
    recipe = load_recipe("alfworld/families", [f"seed={seed}", *ALFWORLD])
    layout, policy, played = PromptFormat(), RandomPolicy(), 0
    header = Header(recipe.env.name, dict(recipe.env.options), layout)
    watch = Watch(folder, out, count)
    (folder / "trajectories").mkdir(parents=True)
    with RecipeEnvs(recipe, folder) as pool:
        envs = pool.make({}, SIDE_BY_SIDE)
        tasks = envs[0].tasks("train")
        episodes = [Episode(tasks[n % len(tasks)], derive_seed(seed, "episode", n)) for n in range(count)]
        begun: list[Pending | Local] = []
        for start in range(0, count, TOGETHER):
            done = start + len(episodes[start : start + TOGETHER])
            now = rollout(envs, episodes[start:done], policy=policy, seats=(), layout=layout, begun=begun)
            begun = begin_ahead(envs, episodes[done : done + TOGETHER])
            played += sum(len(trajectory.turns) for trajectory in now)
            write_trajectories(folder / "trajectories" / f"{start:05d}.jsonl", header, now[:8])
            watch.look(done, lambda played=played: played)  # type: ignore[misc]
        for env in envs:
            env.close()
    return watch


# ---- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of the table: a figure early, in the middle and at the end of the work."""

    what: str
    values: tuple[float, float, float]
    change: str
    verdict: str
    passed: bool = True


def judge(before: Sample, during: Sequence[Sample], after: Sample) -> list[Row]:
    """Return the rows of all figures; those that decide have a verdict."""
    points = [at(during, share) for share in (0.1, 0.5, 1.0)]
    later = during[len(during) // 2 :]
    rows, workers = [], max(1, points[1].processes)
    for name, what, most in (
        ("own_mb", "memory, MB", GROWTH),
        ("workers_mb", "memory of worker processes, MB", GROWTH * workers),
    ):
        grows = slope(later, name)
        passed = grows <= most
        rows.append(_row(points, name, what, f"{grows:+.2f} per 1,000", "flat" if passed else "GROWS", passed))
    for name, what in (("files", "open files"), ("threads", "threads"), ("processes", "worker processes")):
        first, _, last = (int(getattr(point, name)) for point in points)
        rows.append(_row(points, name, what, f"{last - first:+d}", "same" if last <= first else "MORE", last <= first))
    for name, what in (("objects", "Python objects"), ("disk_mb", "run folder, MB")):
        rows.append(_row(points, name, what, f"{slope(later, name):+,.1f} per 1,000", "-"))
    for name, what in (("wall_ms", "wall ms"), ("cpu_ms", "processor ms"), ("step_ms", "processor ms a step")):
        rows.append(_pace(during, name, what))
    for name, what in (("files", "files left open"), ("processes", "processes left")):
        then, now = getattr(before, name), getattr(after, name)
        rows.append(Row(what, (then, 0, now), f"{now - then:+d}", "none" if now <= then else "LEFT", now <= then))
    return rows


def at(samples: Sequence[Sample], share: float) -> Sample:
    """Return the first sample after a share of the work."""
    return next(sample for sample in samples if sample.done >= share * samples[-1].done)


def slope(samples: Sequence[Sample], name: str) -> float:
    """Return the growth per 1,000 iterations or episodes, by least squares."""
    return 1e3 * linear_regression([s.done for s in samples], [float(getattr(s, name)) for s in samples]).slope


def _row(points: Sequence[Sample], name: str, what: str, change: str, verdict: str, passed: bool = True) -> Row:
    first, middle, last = (float(getattr(point, name)) for point in points)
    return Row(what, (first, middle, last), change, verdict, passed)


def _pace(during: Sequence[Sample], name: str, what: str) -> Row:
    fifths = [during[n * len(during) // 5 : (n + 1) * len(during) // 5] for n in (1, 2, 4)]
    first, middle, last = (median(float(getattr(sample, name)) for sample in fifth) for fifth in fifths)
    drift = last / first - 1
    return Row(what, (first, middle, last), f"{drift:+.1%}", "steady" if abs(drift) <= DRIFT else "drifts")


def report(rows: Sequence[Row], command: str, what: str) -> str:
    """Return the table and its explanation."""
    heads = ["", "at 10 %", "at 50 %", "at 100 %", "change", "verdict"]
    lines = [[row.what, *(f"{value:,.10g}" for value in row.values), row.change, row.verdict] for row in rows]
    return (
        f"{made_by(command)}: {what}.\n"
        "Memory is judged by a line through the second half of the samples. Times are of an iteration or episode:\n"
        "medians of the second, third and last fifth of the samples, which decide nothing, because they need an idle\n"
        f"machine (load at the end: {os.getloadavg()[0]:.1f}).\n\n"
        f"{table(heads, lines)}\n"
    )


def main() -> int:
    """Do the work, take samples, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("taxi", "alfworld"))
    parser.add_argument("--iterations", type=int, default=2000, help="of taxi")
    parser.add_argument("--episodes", type=int, default=1000, help="of alfworld")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the samples (benchmarks/runs/soak-<work>.jsonl)")
    given = parser.parse_args()
    if min(given.iterations, given.episodes) < SAMPLES:
        parser.error(f"expected {SAMPLES} iterations or episodes or more, to have something to compare")
    out = given.out or Path(__file__).parent / "runs" / f"soak-{given.work}.jsonl"
    with tempfile.TemporaryDirectory(prefix="reflectrl-soak-") as place:
        if given.work == "taxi":
            watch = taxi(Path(place, "run"), out, given.iterations, given.seed)
            what = f"{given.iterations:,} iterations of `dangerous_taxi/nano`, {' '.join(TAXI)}, seed {given.seed}"
        else:
            watch = alfworld(Path(place, "run"), out, given.episodes, given.seed)
            what = f"{given.episodes:,} random episodes of `alfworld/families`, {' '.join(ALFWORLD)}, seed {given.seed}"
        rows = judge(watch.before, watch.during, watch.after())
    print(report(rows, f"python benchmarks/soak.py {given.work}", what))
    return int(not all(row.passed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
