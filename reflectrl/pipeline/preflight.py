"""``preflight``: what can be known before a command works: models, keys, the tracker's login, packages, experts."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.agent_file import exported_recipe, read_agent_file, without_server
from reflectrl.config.environment import recipe_env
from reflectrl.config.schema import SFTPlayerSection
from reflectrl.config.spending import eval_role, open_account
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import CALLS, DATASET, POLICIES, REFLECTOR, REFLECTOR_RLFT, STAGES
from reflectrl.data_gen.generate import Spending
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.launch import is_main_process, process_count
from reflectrl.seats.base import SERVER

POLICY_SERVER = "policy-server"
"""Role under which the server of the policy's texts is asked."""


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
        for section in recipe.eval.reflectors:
            if section.run is not None:
                reflector_recipe(section.name, Path(section.run), recipe)
        chosen = recipe.budget is not None and not recipe.budget.states("eval.policies")  # chosen for the environment
        if not chosen or recipe.eval.controls:
            check_expert(recipe, run.path)
    if is_main_process():
        from reflectrl.pipeline.trackers import check_trackers

        check_trackers(recipe)
    _check_endpoints(recipe, run, ahead, spending.max_cost)
    if "rlft" in ahead and recipe.rlft and recipe.rlft.trainer:
        from reflectrl.pipeline.rlft_stage import trainer_class

        trainer_class(recipe.rlft.trainer)
    if {"gen-data", "sft"} & {*ahead}:
        _check_shares(recipe)
    chooses = [stage for stage in ahead if stage != "eval"]
    if recipe.budget is not None and process_count() > 1 and chooses:
        raise InvalidInput(
            f"stage {chooses[0]!r} chooses settings by the pace of one process, but {process_count()} were started; "
            "run it without torchrun, or leave the recipe's budget out."
        )
    if "rlft" in ahead:
        _check_replies(recipe, run)
    _check_models(recipe, run, STAGES[STAGES.index(ahead[0]) :])


def _check_replies(recipe: Recipe, run: RunFolder) -> None:
    """Refuse fewer processes than have recorded replies, which would be asked for, and paid for, once more."""
    for kind, _ in recipe.players.frozen:
        recorded = [int(each.name.rpartition("-")[2]) for each in (run / CALLS).glob(f"{kind.role.name}-[0-9]*")]
        if recorded and max(recorded) >= process_count():
            raise InvalidInput(
                f"{max(recorded) + 1} processes have recorded replies of the {kind.role.name} in {run / CALLS}, but "
                f"{process_count()} would read them; continue with as many processes as before."
            )


def _check_shares(recipe: Recipe) -> None:
    """Refuse a batch of fine-tuning that the processes of a launch cannot share equally."""
    tuned: dict[str, SFTPlayerSection] = {"policy": recipe.sft.policy}
    if recipe.players.reflector.fine_tuned:
        tuned["reflector"] = recipe.sft.reflector
    for player, section in tuned.items() if recipe.sft.enabled else ():
        if section.batch_size % process_count():
            raise InvalidInput(
                f"sft.{player}.batch_size={section.batch_size} was given with {process_count()} processes, which share "
                "the rows of a step; set a multiple of their number."
            )


def _has_work(recipe: Recipe, run: RunFolder, stage: str) -> bool:
    """Return whether a stage has anything to do; only an evaluation is repeated because its inputs changed."""
    if not run.is_done(stage):
        return True
    try:
        run.check(recipe, stage)
    except InvalidInput:
        return stage == "eval"
    return stage == "eval" and bool(run.changed(stage))


def asks_endpoints(recipe: Recipe, run: RunFolder, stage: str) -> bool:
    """Return whether a stage asks chat models, whose calls run side by side in one process."""
    return any(True for _ in _asked(recipe, run, stage))


def _check_endpoints(recipe: Recipe, run: RunFolder, stages: Sequence[str], max_cost: float | None) -> None:
    asked = {role: endpoint for stage in stages for role, endpoint in _asked(recipe, run, stage)}
    if not asked:
        return
    from reflectrl.endpoint.client import ChatClient  # openai takes a second to import

    account = open_account(recipe, run.path, max_cost)
    for role, endpoint in asked.items():
        ChatClient(endpoint, Journal(run / CALLS / role, read_only=True), account)
    if any(seat.kind == SERVER for _, seat in recipe.players.frozen) or POLICY_SERVER in asked:
        _check_servers(recipe, run, asked)


def _check_servers(recipe: Recipe, run: RunFolder, asked: Collection[str]) -> None:
    """Check the servers of the roles ``asked`` whose models are there; a reflector is not before sft."""
    from reflectrl.lm.load import BUILTIN, without_weights  # torch takes seconds to import
    from reflectrl.pipeline.team import Team

    for kind, seat in recipe.players.frozen:
        role = kind.role.name
        if seat.kind == SERVER and role in asked and (role != "reflector" or (run / REFLECTOR).is_dir()):
            from reflectrl.seats.served import served

            served(seat, Team(recipe, run, replies="reuse"), role)
    if POLICY_SERVER in asked and recipe.model.name != BUILTIN:
        Team(recipe, run, replies="reuse").policy_server(without_weights(recipe.model.name, recipe.model))


def _asked(recipe: Recipe, run: RunFolder, stage: str) -> Iterator[tuple[str, Endpoint]]:
    """Yield role and endpoint of each chat model that a stage asks."""
    players, section, policies = recipe.players, recipe.dataset, set(recipe.eval.policies)
    trained = bool(policies & {"remote", *POLICIES.values()})  # planner and memory speak to these alone
    base = "base" in policies  # the reflector to this as well
    if stage == "gen-data":
        if section is not None and section.writer == "openai" and not (run / DATASET).is_dir():
            yield "writer", section.endpoint
        if recipe.data.teacher == "openai":
            yield "teacher", recipe.data.endpoint
    if stage == "rlft" and players.policy.server is not None:
        yield POLICY_SERVER, players.policy.server
    if stage == "eval":
        if "remote" in policies:
            yield "policy", players.policy.endpoint
        yield from ((eval_role(each.name), each.endpoint) for each in recipe.eval.reflectors if each.endpoint)
    for kind, seat in players.frozen:
        speaks = {"rlft": recipe.rlft is not None}
        if kind.role.speaks_before:
            speaks |= {"gen-data": recipe.sft.enabled and not kind.taught, "eval": trained or (kind.taught and base)}
        if kind.asks and seat.kind in ("remote", SERVER) and speaks.get(stage):
            yield kind.role.name, getattr(seat, "endpoint")  # noqa: B009 - not of every seat


def _check_models(recipe: Recipe, run: RunFolder, stages: Sequence[str]) -> None:
    """Check the bases of the players that are trained, and the models of the frozen ones that play in ``stages``."""
    trained = [each for each in (recipe.model, recipe.reflector_model) if each is not None]
    if any(not each.name.startswith("builtin/") or each.lora for each in trained):  # else torch need not be imported
        _check_bases(recipe, run)
    for kind, section in recipe.seated:
        if kind.role.speaks_before or "rlft" in stages:
            try:
                section.check_models()
            except InvalidInput as error:
                raise InvalidInput(f"players.{kind.role.name}: {error}") from error


def _check_bases(recipe: Recipe, run: RunFolder) -> None:
    from reflectrl.lm.load import BUILTIN, check_base, check_labels
    from reflectrl.pipeline.compute import check_models
    from reflectrl.pipeline.team import Team

    sections, _ = check_models(recipe)
    without_tasks = recipe.model_copy(update={"dataset": None})  # gen-data makes them; menus are as long without
    for role, section in sections.items():
        if section.name != BUILTIN:  # which is made in sft, with the labels as tokens
            check_base(section)
            if role == "policy":
                check_labels(section, Team(without_tasks, run).labels)


def reflector_recipe(name: str, folder: Path, recipe: Recipe) -> Recipe:
    """Return the recipe of the reflector in ``folder``, after a check that its prompts are those of ``recipe``.

    ``name`` is its name in ``eval.reflectors``, and ``recipe`` that of the policy which it advises.

    Raises:
        InvalidInput: no such folder, one without a reflector of its own, or one of another environment or prompt.
    """
    other = read_recipe(folder, given=None)
    after_rlft = other.players.reflector.trained and read_agent_file(folder) is None
    weights = folder / (REFLECTOR_RLFT if after_rlft else REFLECTOR)
    if not other.players.reflector.fine_tuned or not weights.is_dir():
        raise InvalidInput(
            f"eval.reflectors takes reflector {name!r} from {folder}, which has no fine-tuned one "
            f"(players.reflector.player is {other.players.reflector.player}); expected a run whose "
            f"`reflectrl {'rlft' if after_rlft else 'sft'}` has trained one, or an endpoint."
        )
    seen, shown = _prompt(other), _prompt(recipe)
    if seen != shown:
        raise InvalidInput(
            f"eval.reflectors takes reflector {name!r} from {folder}, which was trained on prompts of {seen}, but this "
            f"run's are of {shown}; choose a run with the same."
        )
    other = without_server(other)
    return other if read_agent_file(folder) is None else exported_recipe(other, folder)


def _prompt(recipe: Recipe) -> str:
    """Describe the settings of a reflector's prompts, which never show a menu."""
    layout = recipe.layout("")
    carried = " and carried words" if layout.carry else ""
    return f"{recipe.env.name!r} with instructions={recipe.prompt.instructions} and history={layout.history!r}{carried}"


def check_expert(recipe: Recipe, run: Path) -> None:
    """Refuse an evaluation by an expert who says nothing where the first task of a split begins.

    Tasks that gen-data makes are not checked.

    Raises:
        InvalidInput: the expert says nothing there.
    """
    asked = {"eval.policies": "expert" in recipe.eval.policies, "eval.controls": "expert" in recipe.eval.controls}
    if recipe.dataset or not any(asked.values()):
        return
    with contextlib.closing(recipe_env(recipe, run, recipe.eval.env)) as env:
        for split in recipe.eval.splits:
            task = env.split_tasks(split)[0]
            env.reset(seed=0, options={"task": task})
            hints = env.hints()
            said = {"eval.policies": hints.action, "eval.controls": hints.reflection}
            for key in (key for key, is_asked in asked.items() if is_asked and said[key] is None):
                method = "expert()" if key == "eval.policies" else "reflection()"
                raise InvalidInput(
                    f"{key} has 'expert', but the expert of environment {recipe.env.name!r} says nothing at the start "
                    f"of task {task.id!r}; write {method} for every state, or leave 'expert' out of {key}."
                )
