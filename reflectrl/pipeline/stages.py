"""The four stages, in order, over one run folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from reflectrl.config import Recipe
from reflectrl.config.spending import open_account
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.errors import need_one_of
from reflectrl.core.metric import tracked
from reflectrl.core.run_files import AGENT, BASE, BASE_REFLECTOR, DATASET, RESULTS, STAGES
from reflectrl.core.text import counted, first_line
from reflectrl.data_gen.generate import Spending, reflector_alone
from reflectrl.endpoint.account import Account, Usage
from reflectrl.pipeline.console import Reporter, labelled
from reflectrl.pipeline.folder import RunFolder, clocks, disk_errors
from reflectrl.pipeline.launch import check_agreement, is_main_process, process_count, wait_for_all
from reflectrl.pipeline.preflight import preflight
from reflectrl.pipeline.trackers import tracking
from reflectrl.rollout.results import read_results

if TYPE_CHECKING:  # torch takes seconds to import
    from reflectrl.pipeline.team import Team
    from reflectrl.training.learner import OnIteration
    from reflectrl.training.sft_examples import Player


@dataclass
class _Job:
    """A request for stages of a run."""

    recipe: Recipe
    run: RunFolder
    sft_players: Sequence[str]
    spending: Spending
    reporter: Reporter
    on_iteration: OnIteration | None = None
    began: float = 0.0
    """Reading of ``time.monotonic`` when the present stage began."""


def run_stages(
    recipe: Recipe,
    run_dir: Path,
    stages: Sequence[str],
    *,
    sft_players: Sequence[str] | None = None,
    spending: Spending | None = None,
    reporter: Reporter | None = None,
    on_iteration: OnIteration | None = None,
) -> Recipe:
    """Run ``stages`` of ``recipe`` in ``run_dir``: done stages are skipped, a stage that was killed continues.

    ``sft_players`` are the players that ``sft`` trains, both if absent; ``on_iteration`` is the trainer's.

    Returns:
        The recipe, with what was chosen by measurement if it has a ``budget``.

    Raises:
        InvalidInput: unknown stage, an earlier stage not done, a folder begun with other inputs or that another process
            works in, or anything that ``preflight`` refuses.
        WorkFailed: a stage failed; the same command continues from the last checkpoint.
    """
    if not stages:
        raise InvalidInput(f"no stage was given; expected some of {', '.join(STAGES)}.")
    if (run_dir / AGENT).is_file():
        raise InvalidInput(f"{run_dir} is an exported agent, which no stage works on; choose another --run.")
    for stage in stages:
        need_one_of("stage", stage, STAGES)
    spending = spending or Spending()
    if (spending.dry_run or spending.batch) and tuple(stages) != ("gen-data",):
        raise InvalidInput(
            f"a dry run or Batch mode was asked for with stages {list(stages)}; only gen-data has them: pass "
            "stages=('gen-data',)."
        )
    _see_one_gpu()
    preflight(recipe, RunFolder(run_dir), stages, spending)
    check_agreement(f"{run_dir.resolve()} {recipe.model_dump_json()}")
    reporter = reporter or Reporter() if is_main_process() else Reporter(Console(quiet=True))
    job = _Job(recipe, RunFolder(run_dir), sft_players or ("reflector", "policy"), spending, reporter, on_iteration)
    with job.run.locked(), disk_errors(run_dir):
        if recipe.budget is not None:
            from reflectrl.pipeline.auto import kept

            job.recipe = kept(recipe, job.run)
        for stage in stages:
            _run_stage(job, stage)
    return job.recipe


def _see_one_gpu() -> None:
    """Hide all GPUs but the first from a single process: Trainer would split its batches among those that it sees."""
    if process_count() == 1:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.partition(",")[0]


def _run_stage(job: _Job, stage: str) -> None:
    began = clocks()
    job.began = began[0]
    if job.recipe.budget is not None and not job.run.has_begun(stage):
        from reflectrl.pipeline.auto import chosen

        job.recipe = chosen(job.recipe, job.run, stage, lambda text: job.reporter.line(labelled(stage, text)))
    recipe, run = job.recipe, job.run
    nobody_trained = stage == "eval" and {*recipe.eval.policies} <= {"random", "expert"}
    for earlier in STAGES[: STAGES.index(stage)]:
        run.check(recipe, earlier)
        if nobody_trained:
            continue
        if earlier == "rlft" and recipe.rlft is None and not run.is_done(earlier):
            _run_stage(job, earlier)  # it has nothing to do, so it runs without a request
        needed = earlier != "rlft" or "rlft" in recipe.eval.policies
        # sft of one player at a time leaves the stage open until both exist
        if needed and not run.is_done(earlier):
            raise InvalidInput(
                f"stage {stage!r} of {run.path} needs {earlier!r}; run that stage first, with the same "
                "recipe and folder."
            )
    try:
        run.check(recipe, stage)
        same = stage != "eval" or not run.changed(stage)
    except InvalidInput:
        if stage != "eval":
            raise
        same = False
    if not same:
        job.reporter.line(labelled(stage, "inputs changed: evaluating again, in place of the earlier results"))
    elif deleted := run.deleted(stage):
        job.reporter.line(labelled(stage, f"{', '.join(deleted)} was deleted: making it again"))
        run.forget(stage)
    elif run.is_done(stage):
        job.reporter.line(labelled(stage, f"skipped: done before, {run.done_with(stage)}"))
        return
    elif changed := run.changed(stage):
        job.reporter.line(labelled(stage, f"continues with {', '.join(changed)} as changed since it was begun"))
    if stage == "gen-data" and is_main_process() and not run.has_begun(stage):
        shutil.rmtree(run / DATASET, ignore_errors=True)  # of a dry run, perhaps with another recipe
    if stage == "sft" and is_main_process() and not run.has_begun(stage):
        for base in (BASE, BASE_REFLECTOR):  # of an attempt that was refused, perhaps with another recipe
            shutil.rmtree(run / base, ignore_errors=True)
    wait_for_all()  # until all have seen what the main process changes now
    begun = contextlib.nullcontext() if job.spending.dry_run else run.begun(recipe, stage, anew=not same)
    with begun, run.timed(stage, began):  # a dry run begins nothing, so that the recipe may still change
        is_finished = _work(job, stage)
    if is_finished:
        run.finish(job.recipe, stage)
    wait_for_all()


def _work(job: _Job, stage: str) -> bool:
    if stage != "gen-data":
        from reflectrl.pipeline.compute import prepare_compute

        prepare_compute(job.recipe, job.run, stage, lambda text: job.reporter.line(labelled("compute", text)))
    with memory_errors(stage):
        return _WORK[stage](job)


@contextmanager
def memory_errors(stage: str) -> Iterator[None]:
    """Raise ``WorkFailed`` with the cure for torch's error that the memory of a GPU is used up."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch is not imported for its name
            raise
        smaller = {
            "sft": "sft.reflector.micro_batch_size and sft.policy.micro_batch_size (in another --run)",
            "rlft": "rlft.micro_batch_tokens or rlft.batch_size",
        }.get(stage, "eval.batch_size")
        raise WorkFailed(
            f"the memory of the device is used up in stage {stage!r} ({first_line(error)}); lower {smaller}; the same "
            "command continues from the last checkpoint."
        ) from error


def _gen_data(job: _Job) -> bool:
    from reflectrl.data_gen import generate

    report = job.reporter.line
    if not is_main_process():  # its calls run side by side in one process
        return True
    if process_count() > 1:
        report(labelled("gen-data", "works in the first process; the others wait"))
    if job.spending.dry_run or job.spending.batch:
        generate(job.recipe, job.run.path, spending=job.spending, tell=report)
        return False
    opened = tracking(job.recipe, job.run.path, "gen-data")  # a tracker that wants a login says so before the work
    with opened as sent, job.reporter.stage("gen-data") as advance:
        account = open_account(job.recipe, job.run.path, job.spending.max_cost)
        players = _teaching_players(job, account)
        seats = reflector_alone if players is None else players.teaching_seats
        summary = generate(
            job.recipe, job.run.path, advance, spending=job.spending, tell=report, seats=seats, account=account
        )
        if summary is None:  # only a dry run and Batch mode end before the rows
            return False
        asked = f"{summary.questions} questions, " if summary.questions else ""
        shown = f"{summary.demonstrated} of them demonstrated, " if summary.demonstrated else ""
        secret = f"; {summary.indiscreet} that revealed a secret left out" if summary.indiscreet else ""
        note = f"{asked}{counted(summary.samples, 'sample')}, {shown}{summary.negatives} of them negative{secret}"
        advance(summary.samples, summary.samples, note)
        sent.log(0, {f"data/{name}": getattr(summary, name) for name in ("samples", "demonstrated", "negatives")})
    _report_calls(job, summary.usage if players is None else summary.usage + players.usage, account.spent)
    return True


def _teaching_players(job: _Job, account: Account) -> Team | None:
    """Return the frozen players whose words SFT rows show; ``None`` if these are the reflector's alone, or unread."""
    players = job.recipe.players
    speaking = [kind for kind, _ in players.frozen if kind.role.speaks_before and not kind.taught]
    if not (speaking or players.own) or not job.recipe.sft.enabled:
        return None
    from reflectrl.pipeline.team import Team

    teaching = Team(job.recipe, job.run, account)
    teaching.prepare()  # a missing key or model is found now, not after the teacher's work
    return teaching


def _sft(job: _Job) -> bool:
    from reflectrl.pipeline.sft_stage import SFT_SHARE, check_taught, train_player, wanted_players

    wanted = wanted_players(job.recipe)
    chosen = [player for player in wanted if player == "both" or player in job.sft_players]  # both: one model
    if wanted and not chosen:
        raise InvalidInput(
            f"sft of {', '.join(job.sft_players)} was asked for, which recipe {job.recipe.name!r} does not train; it "
            f"trains: {', '.join(wanted)}."
        )
    for player in chosen:
        share = SFT_SHARE * ([*wanted].index(player) + 1) / len(wanted)
        until = job.run.due(job.recipe, "sft", job.began, share)  # what the reflector leaves is the policy's
        if job.recipe.budget is not None and not (job.run / wanted[player]).is_dir():
            check_taught(job.recipe, job.run, player)
            job.recipe = _bounded(job, player, until)
        with job.reporter.stage(f"sft {player}") as advance:
            train_player(job.recipe, job.run, player, advance, until)
    return all((job.run / folder).is_dir() for folder in wanted.values())


def _bounded(job: _Job, player: Player, until: float) -> Recipe:
    """Return the recipe with a bound of ``player``'s fine-tuning, as the run folder keeps it."""
    from reflectrl.pipeline.auto import bounded

    recipe = bounded(job.recipe, job.run, player, until, lambda text: job.reporter.line(labelled("sft", text)))
    if recipe != job.recipe:
        job.run.begin(recipe, "sft")
    return recipe


def _rlft(job: _Job) -> bool:
    from reflectrl.pipeline.rlft_stage import train_policy

    section = job.recipe.rlft
    if section is None:
        job.reporter.line(labelled("rlft", "not part of this recipe"))
        return True
    with job.reporter.stage("rlft") as advance:
        account = open_account(job.recipe, job.run.path, job.spending.max_cost, processes=process_count())
        until = job.run.due(job.recipe, "rlft", job.began)
        usage = train_policy(job.recipe, section, job.run, account, advance, job.on_iteration, until)
    _report_calls(job, usage, account.spent)
    return True


def _eval(job: _Job) -> bool:
    from reflectrl.pipeline.evaluate import run_eval

    with tracking(job.recipe, job.run.path, "eval") as sent, job.reporter.stage("eval") as advance:
        account = open_account(job.recipe, job.run.path, job.spending.max_cost)
        usage = run_eval(job.recipe, job.run, account, advance, job.reporter.line)
        if not is_main_process():
            return True
        for row in read_results(job.run / RESULTS):
            place = "/".join(filter(None, ("eval", row.policy, row.reflections, row.mode, row.split, row.group)))
            sent.log(0, {f"{place}/{name.rpartition('/')[2]}": value for name, value in tracked(row.metrics).items()})
    _report_calls(job, usage, account.spent)
    return True


def _report_calls(job: _Job, usage: Usage, spent: float) -> None:
    if usage.calls or usage.kept:
        job.reporter.line(labelled("calls", usage.sentence(spent)))


_WORK: Mapping[str, Callable[[_Job], bool]] = {
    "gen-data": _gen_data,
    "sft": _sft,
    "rlft": _rlft,
    "eval": _eval,
}
