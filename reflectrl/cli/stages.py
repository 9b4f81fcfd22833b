"""The stages of an experiment as commands: gen-data, sft, rlft, eval, and run for all of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput
from reflectrl.core.profile import profiling

if TYPE_CHECKING:
    from reflectrl.config import Recipe

RecipeOption = Annotated[
    str, typer.Option("--recipe", "-r", help="A shipped recipe (see 'reflectrl recipes ls') or a YAML file.")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder of all runs.")]
RunOption = Annotated[str | None, typer.Option("--run", help="Name of this run's folder; the recipe's name if absent.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Changes to the recipe, e.g. rlft.gamma=0.9.")
]


class Players(StrEnum):
    """Whom ``sft`` trains."""

    reflector = "reflector"
    policy = "policy"
    both = "both"


class Batch(StrEnum):
    """The two halves of a round through Batch mode."""

    submit = "submit"
    collect = "collect"


MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", help="US dollars that chat models may cost in this run folder; needs endpoint.price."),
]


def gen_data(
    recipe: RecipeOption,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be asked and may be paid.")] = False,
    batch: Annotated[
        Batch | None,
        typer.Option(help="OpenAI's Batch mode, half the price: hand the calls in; a day later, fetch the replies."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Stage 1a: let the teacher play and reflect; write its episodes and the SFT rows."""
    _stages(("gen-data",), recipe, runs, run, overrides, max_cost=max_cost, dry_run=dry_run, batch=batch)


def sft(
    recipe: RecipeOption,
    player: Annotated[Players, typer.Option(help="Whom to train.")] = Players.both,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    overrides: Overrides = None,
) -> None:
    """Stage 1b: supervised fine-tuning of the reflector and of the policy."""
    players = ("reflector", "policy") if player is Players.both else (player.value,)
    _stages(("sft",), recipe, runs, run, overrides, players)


def rlft(
    recipe: RecipeOption,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    profile: Annotated[bool, typer.Option(help="Print where the time of an iteration went.")] = False,
    overrides: Overrides = None,
) -> None:
    """Stage 2: online reinforcement learning of the policy, with the reflector frozen."""
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
    """Play the evaluation tasks with every policy that the recipe lists."""
    _stages(("eval",), recipe, runs, run, overrides, max_cost=max_cost)


def run(
    recipe: RecipeOption,
    runs: RunsOption = Path("runs"),
    run: RunOption = None,
    max_cost: MaxCost = None,
    overrides: Overrides = None,
) -> None:
    """All stages, then the report; what is done already is not done again."""
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
    """Check everything that was given before anything heavy is imported, then work; returns the run folder."""
    from reflectrl.config import check_recipe, load_recipe

    checked = load_recipe(recipe, overrides or ())
    check_recipe(checked)
    folder = _run_folder(runs, run, checked)
    try:
        from reflectrl.data_gen.terms import Terms
        from reflectrl.pipeline import run_stages

        terms = Terms(max_cost, dry_run, None if batch is None else batch.value)
        run_stages(checked, folder, stages, sft_players=sft_players, terms=terms)
    except (KeyboardInterrupt, SystemExit) as stopped:  # by SIGINT, by SIGTERM
        warn(f"\nstopped; what is done is in {folder}. The same command goes on from there.")
        code = stopped.code if isinstance(stopped, SystemExit) and isinstance(stopped.code, int) else 130
        raise typer.Exit(code) from None
    return folder


def _run_folder(runs: Path, run: str | None, recipe: Recipe) -> Path:
    name = recipe.name if run is None else run
    if name in ("", ".", "..") or Path(name).name != name:
        raise InvalidInput(f"the run name {name!r} was given; expected the name of one folder inside {runs}.")
    return runs / name
