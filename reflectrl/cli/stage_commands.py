"""The stages of a run as commands: gen-data, sft, rlft, eval, and run for all of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reflectrl.cli.shared import ENV_NAMES, Overrides, RecipeOption, TextOrJson, complete_recipe, complete_run_name
from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.files import check_output, write_output
from reflectrl.core.profile import profiling
from reflectrl.core.run_files import STAGES

if TYPE_CHECKING:
    from reflectrl.config import Recipe
    from reflectrl.pipeline.run import Run
    from reflectrl.pipeline.tune import Tried


StageRecipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        help="Shipped recipe (see 'reflectrl recipes ls') or YAML file; default: the recipe of the folder of --run.",
        autocompletion=complete_recipe,
    ),
]
ArmOption = Annotated[
    str | None, typer.Option("--arm", metavar="NAME", help="Variant of the recipe, one of the 'arms' in its file.")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="Name of the run folder; default: the name of the recipe.", autocompletion=complete_run_name
    ),
]
Player = Literal["reflector", "policy"]
Batch = Literal["submit", "collect"]
SHOWN_TRIALS = 10
"""Number of trials in the table of ``tune``."""
MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", help="Budget for chat models in this run folder, in USD; needs endpoint.price."),
]
Minutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Time for all stages together, from which settings follow that the recipe leaves open."),
]


def gen_data(
    recipe: StageRecipe = None,
    arm: ArmOption = None,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the expected calls and their cost.")] = False,
    batch: Annotated[
        Batch | None,
        typer.Option(
            help="OpenAI's Batch mode at half the price: submit the calls, and collect the replies within a day."
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Stage 1a: write the teacher's episodes and the SFT rows."""
    if dry_run and batch is not None:
        raise InvalidInput("--dry-run and --batch were given, but the estimate is of single calls; leave one out.")
    _stages(("gen-data",), recipe, runs, run, overrides, arm=arm, max_cost=max_cost, dry_run=dry_run, batch=batch)


def sft(
    recipe: StageRecipe = None,
    arm: ArmOption = None,
    player: Annotated[Literal["reflector", "policy", "both"], typer.Option(help="Players to train.")] = "both",
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    overrides: Overrides = None,
) -> None:
    """Stage 1b: fine-tune the reflector and the policy on the rows."""
    _stages(("sft",), recipe, runs, run, overrides, arm=arm, players=None if player == "both" else (player,))


def rlft(
    recipe: StageRecipe = None,
    arm: ArmOption = None,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    profile: Annotated[bool, typer.Option(help="Print the time spent in each part of an iteration.")] = False,
    overrides: Overrides = None,
) -> None:
    """Stage 2: train the policy by online RL, reflector frozen."""
    if not profile:
        _stages(("rlft",), recipe, runs, run, overrides, arm=arm, max_cost=max_cost)
        return
    with profiling() as measured:
        _stages(("rlft",), recipe, runs, run, overrides, arm=arm, max_cost=max_cost)
    from reflectrl.report.tables import print_profile

    print_profile(measured)


def evaluate(
    recipe: StageRecipe = None,
    arm: ArmOption = None,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    overrides: Overrides = None,
) -> None:
    """Play the evaluation tasks with every policy of the recipe."""
    _stages(("eval",), recipe, runs, run, overrides, arm=arm, max_cost=max_cost)


def run(
    recipe: StageRecipe = None,
    arm: ArmOption = None,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    minutes: Minutes = None,
    seeds: Annotated[
        str | None, typer.Option(help="Several seeds, such as 0-9 or 0,3,5: a run folder and a process each.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Several values of a recipe key, with every seed; may be repeated."),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(metavar="all|A,B", help="The recipe and all of its arms, or some, with every seed, compared."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, with --seeds, --grid or --arms.")] = 1,
    launcher: Annotated[
        Literal["here", "print", "slurm"],
        typer.Option(help="Start these runs here, or print their commands: one a line, or a job array for sbatch."),
    ] = "here",
    until: Annotated[
        Literal["gen-data", "sft", "rlft", "eval"], typer.Option(help="Last stage; the report follows eval.")
    ] = "eval",
    overrides: Overrides = None,
) -> None:
    """All stages, then the report; finished stages are skipped."""
    overrides = [*(overrides or ()), *([] if minutes is None else [f"budget.minutes={minutes:g}"])]
    if seeds or grid or arms:
        if until != "eval":
            raise InvalidInput(f"--until {until} was given for several runs, which are compared; leave it out.")
        if recipe is None:
            raise InvalidInput("--seeds, --grid or --arms was given without --recipe; say which recipe to run.")
        _sweep(
            recipe,
            runs,
            run,
            overrides,
            arm=arm,
            arms=arms,
            seeds=seeds,
            grid=grid or [],
            jobs=jobs,
            launcher=launcher,
            max_cost=max_cost,
        )
        return
    if launcher != "here":
        raise InvalidInput(
            f"--launcher {launcher} was given for a single run; expected --seeds, --grid or --arms with it."
        )
    if jobs > 1:
        raise InvalidInput(f"--jobs {jobs} was given for a single run; expected --seeds, --grid or --arms with it.")
    done = _stages(STAGES[: STAGES.index(until) + 1], recipe, runs, run, overrides, arm=arm, max_cost=max_cost)
    if until == "eval":
        _report(done)


def tune(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="Shipped recipe or YAML file.", autocompletion=complete_recipe),
    ],
    space: Annotated[
        list[str],
        typer.Option(metavar="KEY=LOW..HIGH[:log]|KEY=A,B", help="Values of a recipe key to try; may be repeated."),
    ],
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in all, earlier ones included.")] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time in this process.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the trials; default: runs/RECIPE-tune.")] = None,
    arm: ArmOption = None,
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", help="Budget for chat models for each trial, in USD; needs endpoint.price."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Search settings with Optuna, by success on split validation; trials that fall behind are ended early."""
    if find_spec("optuna") is None:
        raise InvalidInput("tune needs Optuna, which is not installed; run pip install 'reflectrl[tune]'.")
    from reflectrl.config import load_recipe
    from reflectrl.pipeline import tune as searching
    from reflectrl.pipeline.console import Reporter

    read = [searching.read_space(each) for each in space]
    keys = [key for key, _ in read]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise InvalidInput(f"{twice} is set twice by --space; give it once.")
    folder = out or Path("runs") / f"{load_recipe(recipe, overrides or (), arm=arm).name}-tune"
    search = searching.Search(folder, recipe, dict(read), overrides or (), arm)
    extra = [] if max_cost is None else ["--max-cost", str(max_cost)]
    try:
        tried = searching.tune(search, trials=trials, jobs=jobs, reporter=Reporter(), extra=extra)
    except (KeyboardInterrupt, SystemExit) as stopped:
        raise _stopped(stopped, folder) from None
    if tried[0].end == "complete":
        _show_trials(tried, folder, keys)
    if failed := [each.run.log for each in tried if each.end == "fail"]:
        others = " and of the other failed trials' logs" if len(failed) > 1 else ""
        raise WorkFailed(
            f"{len(failed)} of {len(tried)} trials failed; see the end of {failed[0]}{others}. The same command "
            "continues them."
        )


def _show_trials(tried: Sequence[Tried], folder: Path, keys: Sequence[str]) -> None:
    """Print a table of the best trials, and commands for the best one."""
    from reflectrl.report.tables import print_rows

    best = tried[0]
    shown = [
        (each.run.folder.name, each.end, "" if each.success is None else f"{each.success:.1%}")
        + tuple(f"{value:.4g}" if isinstance(value, float) else str(value) for value in each.settings.values())
        for each in tried[:SHOWN_TRIALS]
    ]
    print_rows(("trial", "end", "validation", *keys), shown, words=2)
    say(f"evaluate the best: reflectrl run --runs {shlex.quote(str(folder))} --run {best.run.folder.name}")
    say(f"train it again: {shlex.join(['reflectrl', *best.run.words(folder / 'best')])}")


def train(
    env: Annotated[str, typer.Argument(metavar="ENV", help=ENV_NAMES)],
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all stages together.")] = 15.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    runs: RunsOption = Path("runs"),
    run: Annotated[
        str | None, typer.Option("--run", help="Name of the run folder; default: ENV, from its last colon on.")
    ] = None,
    max_cost: MaxCost = None,
    overrides: Overrides = None,
) -> None:
    """All stages on an environment of yours, with settings chosen by measurement, then the report."""
    from reflectrl.core.registry import env_class

    name = env_class(env).name if ":" not in env else env.rpartition(":")[2]
    recipe = {"name": name, "seed": seed, "budget": {"minutes": minutes}, "env": {"name": env}}
    _report(_stages(STAGES, recipe, runs, run, overrides, max_cost=max_cost))


def _report(done: Run) -> None:
    from reflectrl.pipeline.launch import is_main_process

    if is_main_process():
        say(f"report: {done.report()}")


def _sweep(
    recipe: str,
    runs: Path,
    run: str | None,
    overrides: list[str],
    *,
    arm: str | None,
    arms: str | None,
    seeds: str | None,
    grid: list[str],
    jobs: int,
    launcher: Literal["here", "print", "slurm"],
    max_cost: float | None,
) -> None:
    """Check the recipe of every run before the first begins, run them, and print their comparison."""
    from reflectrl.config import arm_names, load_recipe
    from reflectrl.pipeline import sweep
    from reflectrl.pipeline.console import Reporter
    from reflectrl.report.compare import compare, print_comparison
    from reflectrl.report.runs import read_runs
    from reflectrl.report.verdict import judged_of

    if launcher == "print" and jobs > 1:
        raise InvalidInput(f"--jobs {jobs} was given with --launcher print, which runs nothing; leave it out.")
    if arm is not None and arms is not None:
        raise InvalidInput(f"--arm {arm} and --arms {arms} were given; leave one out.")
    base = load_recipe(recipe, overrides)
    name = _run_folder(runs, run, base).name
    numbers = sweep.read_seeds(seeds) if seeds else (base.seed,)
    shared = overrides if seeds else [each for each in overrides if not each.startswith("seed=")]  # base.seed has it
    chosen = [arm] if arms is None else [None, *(arm_names(recipe) if arms == "all" else arms.split(","))]
    planned = sweep.plan_runs(runs, name, recipe, numbers, list(map(sweep.read_values, grid)), shared, arms=chosen)
    waiting = sweep.unfinished(planned)
    reporter = Reporter()
    if len(waiting) < len(planned):
        reporter.line(f"{len(planned) - len(waiting)} of {len(planned)} runs are done already")
    extra = [] if max_cost is None else ["--max-cost", str(max_cost)]
    if launcher != "here":
        if waiting:
            say(sweep.commands_text(waiting, launcher, jobs, extra))
        return
    try:
        sweep.run_all(waiting, jobs=jobs, reporter=reporter, extra=extra)
    except (KeyboardInterrupt, SystemExit) as stopped:
        raise _stopped(stopped, runs) from None
    done = read_runs([each.folder for each in planned])
    if rows := judged_of(done):
        summaries, remarks = compare(done, rows)
        for sentence in remarks:
            warn(sentence)
        print_comparison(summaries)


def claims(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with claims.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A claim to test, by default all; may be repeated.")
    ] = None,
    runs: RunsOption = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    output: Annotated[Literal["text", "markdown"], typer.Option("--format", help="Form of the table.")] = "text",
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Also draw the differences that were measured.")
    ] = None,
) -> None:
    """Make the runs that a file of claims needs, and say which claims hold; finished runs are skipped."""
    from reflectrl.pipeline.claims import HEADS, judge, plan_claims, read_claims, waiting_runs
    from reflectrl.pipeline.console import Reporter
    from reflectrl.pipeline.sweep import run_all
    from reflectrl.report.forest import forest
    from reflectrl.report.tables import markdown_table, print_rows

    if figure is not None:
        check_output(figure)
    pairs = plan_claims(read_claims(file, only or ()), runs)
    waiting = waiting_runs(pairs)
    stopped: KeyboardInterrupt | SystemExit | WorkFailed | None = None
    try:
        run_all(waiting, jobs=jobs, reporter=Reporter())
    except (KeyboardInterrupt, SystemExit, WorkFailed) as error:  # the other runs have something to say
        stopped = error
    findings = [judge(pair) for pair in pairs]
    cells = [finding.cells() for finding in findings]
    if figure is not None:
        if rows := [row for finding in findings if (row := finding.row) is not None]:
            write_output(figure, forest(rows, "Differences of success in percentage points, with their 95 % intervals"))
        else:
            warn(f"{figure} was not drawn: no claim has enough runs yet.")
    if output == "markdown":
        say(markdown_table(HEADS, cells))
    else:
        print_rows(HEADS, cells, words=2)
    if isinstance(stopped, WorkFailed):
        raise stopped
    if stopped is not None:
        raise _stopped(stopped, runs)


def _stopped(stopped: KeyboardInterrupt | SystemExit, folder: Path) -> typer.Exit:
    """Tell the user how to continue after SIGINT or SIGTERM; return the end of the command."""
    kept = f"finished work is in {folder}. The same command continues from there."
    warn(f"\nstopped; {kept if folder.exists() else 'nothing was written.'}")
    return typer.Exit(stopped.code if isinstance(stopped, SystemExit) and isinstance(stopped.code, int) else 130)


def _stages(
    stages: tuple[str, ...],
    recipe: str | Mapping[str, object] | None,
    runs: Path,
    run: str | None,
    overrides: list[str] | None,
    *,
    arm: str | None = None,
    players: tuple[Player, ...] | None = None,
    max_cost: float | None = None,
    dry_run: bool = False,
    batch: Batch | None = None,
) -> Run:
    """Check all input before anything heavy is imported, and run the stages."""
    from reflectrl.config import load_recipe, load_saved_recipe
    from reflectrl.core.run_files import RECIPE
    from reflectrl.pipeline.run import Run

    if recipe is None and run is None:
        words = [word for word in overrides or () if "=" not in word]
        guess = f"; did you mean --recipe {words[0]}?" if words else ""
        raise InvalidInput(
            "neither --recipe nor --run was given; give --recipe to begin a run, or --run to continue one with the "
            f"recipe of its folder{guess or '.'}"
        )
    checked = load_recipe(recipe or load_saved_recipe(runs / str(run) / RECIPE), overrides or (), arm=arm)
    folder = _run_folder(runs, run, checked)
    here = Run(folder, checked)
    try:
        here.run(stages, players=players, max_cost=max_cost, dry_run=dry_run, batch=batch)
    except (KeyboardInterrupt, SystemExit) as stopped:  # SIGINT, SIGTERM
        raise _stopped(stopped, folder) from None
    return here


def _run_folder(runs: Path, run: str | None, recipe: Recipe) -> Path:
    name = recipe.name if run is None else run
    if name in ("", ".", "..") or Path(name).name != name:
        raise InvalidInput(f"the run name {name!r} was given; expected the name of one folder inside {runs}.")
    return runs / name


def estimate(
    recipe: RecipeOption,
    output: TextOrJson = "text",
    overrides: Overrides = None,
) -> None:
    """Run every stage shortly with the real models, and say how long the whole recipe takes on this machine."""
    from reflectrl.config import load_recipe
    from reflectrl.core.jsonl import encode
    from reflectrl.pipeline.estimate import estimate as measure

    found = measure(load_recipe(recipe, overrides or ()))
    say(json.dumps(encode(found), indent=2) if output == "json" else found.text)
