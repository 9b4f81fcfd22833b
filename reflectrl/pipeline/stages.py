"""The four stages, in order, over one run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, nearest
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.folder import STAGES, RunFolder

SFT_PLAYERS = ("reflector", "policy")


def run_stages(
    recipe: Recipe,
    run_dir: Path,
    stages: Sequence[str],
    *,
    sft_players: Sequence[str] = SFT_PLAYERS,
    reporter: Reporter | None = None,
) -> None:
    """Run ``stages`` of ``recipe`` in ``run_dir``: done stages are skipped, a stage that was killed goes on.

    Raises:
        InvalidInput: unknown stage, an earlier stage not done, a folder begun with other inputs, or several
            processes for another stage than rlft.
        WorkFailed: something broke at work; the same command goes on from the last checkpoint.

    """
    for stage in stages:
        if stage not in STAGES:
            raise InvalidInput(f"stage {stage!r} is unknown; {nearest(stage, STAGES)}")
    reporter = reporter or Reporter()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and tuple(stages) != ("rlft",):
        raise InvalidInput(
            f"stages {list(stages)} were started in several processes; only rlft takes them: run the others without "
            "torchrun."
        )
    run = RunFolder(run_dir)
    with run.locked():
        for stage in stages:
            _run_stage(recipe, run, stage, sft_players, reporter)


def _run_stage(recipe: Recipe, run: RunFolder, stage: str, sft_players: Sequence[str], reporter: Reporter) -> None:
    for earlier in STAGES[: STAGES.index(stage)]:
        run.check(recipe, earlier)
        # sft of one player at a time leaves the stage open until both are there
        if not run.is_done(earlier):
            raise InvalidInput(f"stage {stage!r} of {run.path} needs {earlier!r}; run `reflectrl {earlier}` first.")
    try:
        run.check(recipe, stage)
    except InvalidInput:
        if stage != "eval":
            raise
        reporter.line("eval               inputs changed: evaluating again")
        run.forget(stage)
    if run.is_done(stage):
        reporter.line(f"{stage:<18} skipped: done before, same inputs")
        return
    run.begin(recipe, stage)
    wall, cpu = time.monotonic(), time.process_time()
    if _WORK[stage](recipe, run, sft_players, reporter):
        run.finish(recipe, stage, wall_seconds=time.monotonic() - wall, cpu_seconds=time.process_time() - cpu)


def _gen_data(recipe: Recipe, run: RunFolder, _: Sequence[str], reporter: Reporter) -> bool:
    from reflectrl.data_gen import generate

    with reporter.stage("gen-data") as advance:
        summary = generate(recipe, run.path, advance)
        asked = f"{summary.questions} questions, " if summary.questions else ""
        note = f"{asked}{summary.samples} samples, {summary.negatives} of them negative"
        advance(summary.samples, summary.samples, note)
    return True


def _sft(recipe: Recipe, run: RunFolder, players: Sequence[str], reporter: Reporter) -> bool:
    from reflectrl.pipeline.finetune import finetune, wanted_players

    for player in wanted_players(recipe):
        if player == "both" or player in players:  # the single player is one model
            with reporter.stage(f"sft {player}") as advance:
                finetune(recipe, run, player, advance)
    return all((run / folder).is_dir() for folder in wanted_players(recipe).values())


def _rlft(recipe: Recipe, run: RunFolder, _: Sequence[str], reporter: Reporter) -> bool:
    from reflectrl.pipeline.reinforce import reinforce

    if recipe.rlft is None:
        reporter.line("rlft               not part of this recipe")
        return True
    with reporter.stage("rlft") as advance:
        reinforce(recipe, run, advance)
    return True


def _eval(recipe: Recipe, run: RunFolder, _: Sequence[str], reporter: Reporter) -> bool:
    from reflectrl.pipeline.judge import judge

    with reporter.stage("eval") as advance:
        judge(recipe, run, advance)
    return True


_WORK: Mapping[str, Callable[[Recipe, RunFolder, Sequence[str], Reporter], bool]] = {
    "gen-data": _gen_data,
    "sft": _sft,
    "rlft": _rlft,
    "eval": _eval,
}
