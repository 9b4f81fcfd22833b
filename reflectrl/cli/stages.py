"""The stages of a run as commands: gen-data, sft, rlft, eval, and run for all of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reflectrl.cli.completion import complete_recipe, complete_run_name
from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput
from reflectrl.core.profile import profiling

if TYPE_CHECKING:
    from reflectrl.config import Recipe

RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe",
        "-r",
        help="Shipped recipe (see 'reflectrl recipes ls') or YAML file.",
        autocompletion=complete_recipe,
    ),
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="Name of the run folder; default: the name of the recipe.", autocompletion=complete_run_name
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Changes to the recipe, e.g. rlft.gamma=0.9.")
]


class Players(StrEnum):
    """Players that ``sft`` trains."""

    reflector = "reflector"
    policy = "policy"
    both = "both"


class Batch(StrEnum):
    """Steps of a round through OpenAI's Batch mode."""

    submit = "submit"
    collect = "collect"


MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", help="Budget for chat models in this run folder, in USD; needs endpoint.price."),
]


def gen_data(
    recipe: RecipeOption,
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
    _stages(("gen-data",), recipe, runs, run, overrides, max_cost=max_cost, dry_run=dry_run, batch=batch)


def sft(
    recipe: RecipeOption,
    player: Annotated[Players, typer.Option(help="Players to train.")] = Players.both,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    overrides: Overrides = None,
) -> None:
    """Stage 1b: fine-tune the reflector and the policy on the rows."""
    players = ("reflector", "policy") if player is Players.both else (player.value,)
    _stages(("sft",), recipe, runs, run, overrides, players)


def rlft(
    recipe: RecipeOption,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    profile: Annotated[bool, typer.Option(help="Print the time spent in each part of an iteration.")] = False,
    overrides: Overrides = None,
) -> None:
    """Stage 2: train the policy by online RL, reflector frozen."""
    if not profile:
        _stages(("rlft",), recipe, runs, run, overrides, max_cost=max_cost)
        return
    with profiling() as measured:
        _stages(("rlft",), recipe, runs, run, overrides, max_cost=max_cost)
    from reflectrl.report.profile import print_profile

    print_profile(measured)


def evaluate(
    recipe: RecipeOption,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    overrides: Overrides = None,
) -> None:
    """Play the evaluation tasks with every policy of the recipe."""
    _stages(("eval",), recipe, runs, run, overrides, max_cost=max_cost)


def run(
    recipe: RecipeOption,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    overrides: Overrides = None,
) -> None:
    """All stages, then the report; finished stages are skipped."""
    folder = _stages(("gen-data", "sft", "rlft", "eval"), recipe, runs, run, overrides, max_cost=max_cost)
    from reflectrl.report import print_table, write_report

    print_table([folder])
    say(f"report: {write_report([folder], folder / 'report.html')}")


def _stages(
    stages: tuple[str, ...],
    recipe: str,
    runs: Path,
    run: str | None,
    overrides: list[str] | None,
    sft_players: tuple[str, ...] = ("reflector", "policy"),
    *,
    max_cost: float | None = None,
    dry_run: bool = False,
    batch: Batch | None = None,
) -> Path:
    """Check all input before anything heavy is imported, run the stages, and return the run folder."""
    from reflectrl.config import check_recipe, load_recipe

    checked = load_recipe(recipe, overrides or ())
    check_recipe(checked)
    folder = _run_folder(runs, run, checked)
    try:
        from reflectrl.data_gen.terms import Terms
        from reflectrl.pipeline import run_stages

        terms = Terms(max_cost, dry_run, None if batch is None else batch.value)
        run_stages(checked, folder, stages, sft_players=sft_players, terms=terms)
    except (KeyboardInterrupt, SystemExit) as stopped:  # SIGINT, SIGTERM
        warn(f"\nstopped; finished work is in {folder}. The same command continues from there.")
        code = stopped.code if isinstance(stopped, SystemExit) and isinstance(stopped.code, int) else 130
        raise typer.Exit(code) from None
    return folder


def _run_folder(runs: Path, run: str | None, recipe: Recipe) -> Path:
    name = recipe.name if run is None else run
    if name in ("", ".", "..") or Path(name).name != name:
        raise InvalidInput(f"the run name {name!r} was given; expected the name of one folder inside {runs}.")
    return runs / name
