"""Show how RLFT forgets groups of tasks: the weakest and best run of ``dangerous_taxi/nano``, as first shipped and now.

    python benchmarks/learner.py    # trains four runs as first shipped, then writes benchmarks/learner.md and its plots

The runs of the present recipe are the reference runs of ``python benchmarks/learning.py taxi --ablations``.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from arms import HERE, RUNS, Arm, made_by, plan, publish, table
from learning import ablated_runs, commits, machines, rows_of

from reflectrl.config.advantage import rewards_to_go
from reflectrl.core import Trajectory
from reflectrl.core.layout import training_episodes_file
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.sweep import run_all, unfinished
from reflectrl.report.runs import Run, read_runs
from reflectrl.report.series import measurements, running_mean
from reflectrl.rollout.record import read_trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHIPPED = Arm(
    "as_shipped",
    "as shipped first",
    "dangerous_taxi/nano",
    (
        *(
            "data.samples=1000",
            "sft.reflector.steps=600",
            "sft.policy.max_rows=300",
            "sft.policy.steps=300",
            "sft.policy.label_smoothing=0.05",
            "rlft.stages=[{name: pickup, iterations: 80}]",
        ),
        *(
            "rlft.task_priority=0",
            "rlft.update.num_iterations=3",
            "rlft.update.num_minibatches=1",
            "rlft.learning_rate=7e-4",
        ),
        *("rlft.update.target_kl=null", "rlft.replay=null"),
        "rlft.terms.entropy.coef=0.15",
        "rlft.gamma=0.9",
        *("rlft.advantage.gae_lambda=1", "rlft.advantage.center=false", "rlft.advantage.bootstrap_truncated=true"),
        *("rlft.validation=null", "rlft.keep=last"),
        *("eval.controls=[]", "eval.greedy=false", "eval.policies=[sft,rlft]"),
    ),
    "80-83",
)
IMAGES = HERE.parent / "docs" / "images"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, which colour-blind readers can tell apart."""
WINDOW = 10
"""Number of iterations in a running mean, and in an interval over which value errors are averaged."""
FORGOTTEN = 0.2
"""A group counts as forgotten if its success ends by more than this below its own best."""
FIRST = 3
"""Number of first iterations whose KL divergence is in the table."""
Curve = Sequence[tuple[float, float]]
"""Points of a line: (iteration, value)."""


@dataclass(frozen=True)
class Shown:
    """A run that is shown in the figures."""

    title: str
    run: Run
    success: float
    """Success rate of the trained policy on the test tasks, sampled."""


def success_of(run: Run, policy: str = "rlft") -> float:
    """Return the sampled success rate of a run's policy on the test tasks."""
    (row,) = rows_of([run], policy, "own", "sampled", "test")
    return row.metrics.success


def weakest_and_best(title: str, runs: Sequence[Run]) -> list[Shown]:
    """Return the weakest and the best run of an arm."""
    ordered = sorted(runs, key=success_of)
    ends = (("weakest", ordered[0]), ("best", ordered[-1]))
    return [Shown(f"{title}, {which}: {100 * success_of(run):.0f} %", run, success_of(run)) for which, run in ends]


def success_by_group(run: Run) -> dict[str, Curve]:
    """Return the running mean of the training success of each group of tasks, and of all tasks."""
    groups = sorted({group for point in run.points for group in point.success_by_group})
    curves = {}
    for name, field in (*((group, f"success/{group}") for group in groups), ("all", "success")):
        pairs = measurements(run.points, field)
        points = [point for point, _ in pairs]
        means = running_mean(points, [value for _, value in pairs], WINDOW)
        curves[name] = [(point.iteration, mean) for point, mean in zip(points, means, strict=True)]
    return curves


def value_error(episode: Trajectory, gamma: float) -> list[float]:
    """Return the value head's estimate at each step minus the discounted return from there."""
    *rewards, last = episode.rewards
    returns = rewards_to_go([*rewards, last + gamma * episode.last_value], gamma).tolist()
    return [turn.decision.value - found for turn, found in zip(episode.turns, returns, strict=True)]


def value_error_by_group(run: Run) -> dict[str, Curve]:
    """Return the mean value error of each group's recorded steps, by interval of iterations."""
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for point in run.points:
        path = run.path / training_episodes_file(point.iteration)
        for episode in read_trajectories(path)[1] if path.is_file() else ():
            interval = point.iteration // WINDOW
            errors[episode.task.group, interval].extend(value_error(episode, run.gamma))
    return {
        group: [
            (interval * WINDOW, fmean(errors[group, interval])) for name, interval in sorted(errors) if name == group
        ]
        for group in sorted({group for group, _ in errors})
    }


def forgotten(run: Run) -> list[str]:
    """Return the groups whose training success ended well below their own best."""
    curves = success_by_group(run).items()
    whole = {name: [mean for _, mean in curve][WINDOW - 1 :] for name, curve in curves if name != "all"}
    return [name for name, means in whole.items() if means and max(means) - means[-1] > FORGOTTEN]


def draw(shown: Sequence[Shown], folder: Path) -> list[Path]:
    """Draw the three figures and return their files."""
    import matplotlib.style
    from matplotlib.figure import Figure

    files = []
    with matplotlib.style.context("default"):
        for name, curves, label in (
            ("learner-groups", success_by_group, "training success"),
            ("learner-values", value_error_by_group, "value minus return"),
        ):
            figure = Figure(figsize=(9, 5.5), layout="constrained")
            panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
            for axes, each in zip(panels, shown, strict=True):
                _lines(axes, each.title, label, curves(each.run))
            files.append(_save(figure, folder / f"{name}.png"))
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        for axes, (field, label) in zip(
            figure.subplots(1, 2), (("kl", "KL an iteration, nats"), ("entropy", "entropy, nats")), strict=True
        ):
            lines = {
                each.title: [(point.iteration, value) for point, value in measurements(each.run.points, field)]
                for each in shown
            }
            _lines(axes, "", label, lines)
            if field == "kl":
                axes.set_yscale("log")
        files.append(_save(figure, folder / "learner-updates.png"))
    return files


def _lines(axes: Axes, title: str, label: str, curves: Mapping[str, Curve]) -> None:
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        style = {"linestyle": "--", "color": "#000000"} if name == "all" else {"color": colour}
        axes.plot([x for x, _ in curve], [y for _, y in curve], label=name, linewidth=1.2, **style)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("iteration")
    axes.set_ylabel(label)
    axes.grid(axis="y", linewidth=0.4, color="#DDDDDD")
    axes.legend(fontsize=7, frameon=False)


def _save(figure: object, path: Path) -> Path:
    figure.savefig(path, dpi=110, metadata={"Software": None})  # type: ignore[attr-defined]
    return path


def report(before: Sequence[Run], after: Sequence[Run], images: Path, command: str) -> str:
    """Draw the figures, and return the text with the tables."""
    sides = (("as shipped first", before), ("now", after))
    shown = [each for title, runs in sides for each in weakest_and_best(title, runs)]
    files = draw(shown, images)
    groups = [group for group in success_by_group(shown[0].run) if group != "all"]
    lines = []
    for each in shown:
        last = {name: curve[-1][1] for name, curve in success_by_group(each.run).items()}
        errors = value_error_by_group(each.run)
        points = each.run.points
        lines.append(
            [
                each.title,
                f"{100 * success_of(each.run, 'sft'):.0f}",
                *(f"{100 * last[group]:.0f}" for group in groups),
                *(f"{errors[group][-1][1]:+.2f}" if group in errors else "-" for group in groups),
                " ".join(f"{point.kl:.2f}" for point in points[:FIRST]),
                f"{points[0].entropy:.2f} to {points[-1].entropy:.2f}",
            ]
        )
    over = [
        [
            title,
            str(len(runs)),
            f"{100 * fmean(map(success_of, runs)):.0f}",
            f"{100 * min(map(success_of, runs)):.0f}",
            f"{sum(len(forgotten(run)) for run in runs)} of {len(groups) * len(runs)}",
        ]
        for title, runs in sides
    ]
    heads = ("", "SFT %", *(f"{group} %" for group in groups), *(f"value error, {group}" for group in groups))
    links = [f"![{path.stem}]({Path('..', 'docs', 'images', path.name)})" for path in files]
    return f"""{made_by(command, machines([*before, *after]), commits([*before, *after]))}, one thread a run.
"As shipped first" has seeds {SHIPPED.seeds} with one instruction set, "now" the runs with reflection of
`python benchmarks/learning.py taxi --ablations`.
A group is forgotten where its training success, as the mean of {WINDOW} iterations, ended more than
{100 * FORGOTTEN:.0f} points below its own best.

{table(("", "runs", "mean %", "worst %", "forgotten groups"), over)}

The weakest and the best run of each: training success of each group in the last {WINDOW} iterations, the error of the
value head in them (its estimate minus the discounted return, in the recorded episodes), KL divergence of the first
{FIRST} iterations, and the entropy in nats of the first and the last.

{table((*heads, "first KL", "entropy"), lines)}

{chr(10).join(links)}
"""


def main() -> None:
    """Train the missing runs of the recipe as first shipped, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", help="such as 10-13; those of the published page by default, which others are not")
    parser.add_argument("--runs", type=Path, default=RUNS / "learning", help="folder of the run folders")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the plots")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the recipes, for a quick look")
    given = parser.parse_intermixed_args()
    planned = plan("taxi", [SHIPPED], given.seeds, given.runs, given.overrides)
    run_all(unfinished(planned), jobs=given.jobs, reporter=Reporter())
    before = read_runs([run.folder for run in planned])
    after = read_runs(ablated_runs("taxi", given.runs, given.seeds, given.overrides))
    text = report(before, after, given.images, "python benchmarks/learner.py")
    print(text)
    if not given.seeds and not given.overrides:
        publish(HERE / "learner.md", "learner", text)


if __name__ == "__main__":
    main()
