"""``preflight``: what can be known before a command works: models, keys, the tracker's login, packages, experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reflectrl.config import Recipe
from reflectrl.config.endpoint import eval_role, open_account
from reflectrl.core import InvalidInput
from reflectrl.core.layout import CALLS, DATASET, POLICIES, STAGES
from reflectrl.data_gen.generate import Spending
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.pipeline.folder import RunFolder, is_main_process
from reflectrl.pipeline.reflectors import check_expert, check_reflectors


def preflight(recipe: Recipe, run: RunFolder, stages: Sequence[str], spending: Spending) -> None:
    """Check what ``stages`` will need, so that nothing is done or paid for in vain; the run folder is left as it is.

    A stage that is done needs nothing. Models of later stages are checked as well, since a run without them leads
    nowhere. Keys, logins and other runs are those of ``stages`` alone: a later command may run on another machine.

    Raises:
        InvalidInput: a model that is missing, incomplete or does not fit the recipe, a missing key, a price that a
            budget needs, a missing login or package, a run or an expert that the evaluation cannot use.
        WorkFailed: a model in a package cannot be fetched.

    """
    ahead = [stage for stage in stages if _has_work(recipe, run, stage)]
    if not ahead or spending.dry_run:
        return
    if "eval" in ahead:
        check_reflectors(recipe)
        chosen = recipe.budget is not None and not recipe.budget.states("eval.policies")  # chosen for the environment
        if not chosen or recipe.eval.controls:
            check_expert(recipe, run.path)
    if recipe.report_to != "none" and is_main_process():
        from reflectrl.pipeline.trackers import check_tracker

        check_tracker(recipe)
    _check_endpoints(recipe, run, ahead, spending.max_cost)
    if "rlft" in ahead and recipe.rlft and recipe.rlft.trainer:
        from reflectrl.pipeline.rlft import trainer_class

        trainer_class(recipe.rlft.trainer)
    _check_models(recipe, run, STAGES[STAGES.index(ahead[0]) :])


def _has_work(recipe: Recipe, run: RunFolder, stage: str) -> bool:
    """Return whether a stage has anything to do; only an evaluation is repeated because its inputs changed."""
    if not run.is_done(stage):
        return True
    try:
        run.check(recipe, stage)
    except InvalidInput:
        return stage == "eval"
    return stage == "eval" and bool(run.changed(stage))


def _check_endpoints(recipe: Recipe, run: RunFolder, stages: Sequence[str], max_cost: float | None) -> None:
    asked = {role: endpoint for stage in stages for role, endpoint in _asked(recipe, run, stage)}
    if not asked:
        return
    from reflectrl.endpoint.chat import ChatClient  # openai takes a second to import

    account = open_account(recipe, run.path, max_cost)
    for role, endpoint in asked.items():
        ChatClient(endpoint, Journal(run / CALLS / role, read_only=True), account)


def _asked(recipe: Recipe, run: RunFolder, stage: str) -> Iterator[tuple[str, Endpoint]]:
    """Yield role and endpoint of each chat model that a stage asks."""
    players, section, policies = recipe.players, recipe.dataset, set(recipe.eval.policies)
    trained = bool(policies & {"remote", *POLICIES.values()})  # planner and memory speak to these alone
    if stage == "gen-data":
        if section is not None and section.writer == "openai" and not (run / DATASET).is_dir():
            yield "writer", section.endpoint
        if recipe.data.teacher == "openai":
            yield "teacher", recipe.data.endpoint
    if stage == "rlft" and recipe.rlft:
        for role, judge in (("corrector", players.corrector), ("rater", players.rater)):
            if judge is not None and judge.player == "remote":
                yield role, judge.endpoint
    if stage == "eval":
        if "remote" in policies:
            yield "policy", players.policy.endpoint
        yield from ((eval_role(each.name), each.endpoint) for each in recipe.eval.reflectors if each.endpoint)
    planned = {"gen-data": recipe.sft.enabled, "rlft": recipe.rlft is not None, "eval": trained}.get(stage, False)
    if planned and players.planner is not None and players.planner.player == "remote":
        yield "planner", players.planner.endpoint
    reflected = {"rlft": recipe.rlft is not None, "eval": trained or "base" in policies}.get(stage, False)
    if reflected and players.reflector.player == "remote":
        yield "reflector", players.reflector.endpoint


def _check_models(recipe: Recipe, run: RunFolder, stages: Sequence[str]) -> None:
    """Check the bases of the players that are trained, and the models of the frozen ones that play in ``stages``."""
    players, memory = recipe.players, recipe.players.memory or recipe.eval.memory
    trained = [each for each in (recipe.model, recipe.reflector_model) if each is not None]
    if any(not each.name.startswith("builtin/") or each.lora for each in trained):  # else torch need not be imported
        _check_bases(recipe, run)
    judges = {"corrector": players.corrector, "rater": players.rater} if "rlft" in stages else {}
    for role, player in {"planner": players.planner, **judges}.items():
        if player is not None and player.player in ("local", "learned"):
            from reflectrl.models.load import check_base

            try:
                check_base(player.model)
            except InvalidInput as error:
                raise InvalidInput(f"players.{role}: {error}") from error
    if players.rater is not None and players.rater.player == "learned" and "rlft" in stages:
        from reflectrl.pipeline.judges import check_trained_as

        check_trained_as(players.rater)
    if memory is not None and memory.embedder == "minilm":
        from reflectrl.memory.language import minilm

        minilm()


def _check_bases(recipe: Recipe, run: RunFolder) -> None:
    from reflectrl.models.load import BUILTIN, check_base, check_labels
    from reflectrl.pipeline.compute import check_models
    from reflectrl.pipeline.models import RunModels

    sections, _ = check_models(recipe)
    without_tasks = recipe.model_copy(update={"dataset": None})  # gen-data makes them; menus are as long without
    for role, section in sections.items():
        if section.name != BUILTIN:  # which is made in sft, with the labels as tokens
            check_base(section)
            if role == "policy":
                check_labels(section, RunModels(without_tasks, run).labels)
