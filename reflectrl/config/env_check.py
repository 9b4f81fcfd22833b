"""What a recipe's parts do to each other: settings without effect, and whether it fits its environment."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from reflectrl.config.schema import Recipe
from reflectrl.config.training import Lesson
from reflectrl.core import InvalidInput, NatLangEnv, make_env, nearest
from reflectrl.core.registry import env_class
from reflectrl.core.run_files import DATASET
from reflectrl.core.settings import refusal
from reflectrl.prompts.format import WRITTEN_ACTIONS, check_menus
from reflectrl.seats.base import unused_by_server
from reflectrl.seats.own import own_seat
from reflectrl.seats.table import role_of


def check_recipe(recipe: Recipe) -> None:
    """Check that the environment of ``recipe`` exists and has its options and splits, by constructing each variant.

    Raises:
        InvalidInput: the recipe has mistakes; the message lists all of them, one per line.
    """
    name, base = recipe.env.name, recipe.env.options
    known = inspect.signature(env_class(name)).parameters
    lessons = recipe.rlft.lessons if recipe.rlft else []
    settings = {"env.options": base, "eval.env": recipe.eval.env}
    settings |= {f"rlft.lessons.{number}.env": lesson.env for number, lesson in enumerate(lessons)}
    # the tasks of a dataset section are made later, in gen-data
    chosen = {
        f"rlft.lessons.{n}.env": lesson for n, lesson in enumerate(lessons) if lesson.tasks and not recipe.dataset
    }
    longest = None  # menu of env.options, for which the labels are made
    problems: dict[str, str] = {}  # by key or text: a mistake in env.options would be reported for every lesson
    for role, own in recipe.players.own.items():
        try:
            own_seat(role, own)
        except InvalidInput as error:
            problems[role] = str(error)
    if recipe.dataset and DATASET not in known:
        problems[DATASET] = f"{DATASET}: environment {name!r} brings its own tasks; remove this section"
    for where, options in settings.items():
        for option in [option for option in options if option not in known]:
            given = f"unknown option, given {options[option]!r}"
            problems[f"{where}.{option}"] = f"{where}.{option}: {given}; {nearest(option, known)}"
        try:
            env = make_env(name, **{option: value for option, value in {**base, **options}.items() if option in known})
        except (TypeError, ValueError) as error:
            problems.setdefault(str(error), f"{where}: {error}")
        else:
            longest = env.max_actions if where == "env.options" else longest
            if recipe.budget is None or recipe.budget.states("prompt.action_mode"):
                try:
                    check_menus(env.max_actions, recipe.prompt.action_mode)
                except InvalidInput as error:
                    problems[str(error)] = str(error)
            if not env.max_actions:
                problems |= {why: why for why in _need_menus(recipe)}
            if longest is not None and env.max_actions > longest:
                problems[where] = (
                    f"{where}: its menus have up to {env.max_actions} actions, but those of env.options, for which the "
                    f"policy's labels are made, {longest}; set env.options to the longest menus."
                )
            for split in [split for split in recipe.eval.splits if split not in env.splits]:
                problems[f"split {split}"] = f"eval.split: unknown split {split!r}; {nearest(split, env.splits)}"
            if where == "eval.env" and not recipe.dataset:
                problems |= {why: why for why in _nothing_to_evaluate(recipe, env)}
            if (unseen := _unseen(recipe, env, {**base, **options})) is not None:
                problems.setdefault(unseen, f"{where}: {unseen}")
            if where in chosen and (missing := _without_tasks(chosen[where], env)) is not None:
                problems.setdefault(missing, f"{where.removesuffix('env')}tasks: {missing}")
    if problems:
        raise refusal(f"recipe {recipe.name!r}", list(problems.values()))


def _need_menus(recipe: Recipe) -> Iterator[str]:
    """Yield why settings have no effect, or cannot be followed, in an environment without menus."""
    why = "but the environment has no menus (max_actions is 0)"
    if "remote" in recipe.eval.policies:
        yield f"eval.policies: remote answers with a label, {why}; remove it"
    if recipe.data.teacher == "openai" and recipe.data.trajectory == "teacher":
        yield f"data.trajectory: the teacher chooses from a menu, {why}; set it to oracle"
    rlft = recipe.rlft
    for source in sorted({"format", "illegal"}.intersection(rlft.rewards if rlft else ())):
        yield f"rlft.rewards: {source} says whether a text is on the menu, {why}; let act() reward it instead"
    if rlft and rlft.fallback_credit == "mask":
        yield f"rlft.fallback_credit: mask is about texts that are not on the menu, {why}; remove it"


def _without_tasks(lesson: Lesson, env: NatLangEnv) -> str | None:
    """Return why a lesson has no tasks; ``None`` if it has, or if the environment's data is not here."""
    try:
        env.split_tasks("train")
    except InvalidInput:
        return None
    try:
        lesson.choose(env)
    except InvalidInput as error:
        return str(error)
    return None


def _nothing_to_evaluate(recipe: Recipe, env: NatLangEnv) -> Iterator[str]:
    """Yield why there is nothing to evaluate on, unless the environment's data is not here."""
    prefixes = tuple(recipe.eval.tasks)
    for split in (split for split in recipe.eval.splits if split in env.splits):
        try:
            ids = [task.id for task in env.any_tasks(split)]
        except InvalidInput:
            continue
        if not ids:
            yield f"eval.split: environment {recipe.env.name!r} has no tasks in split {split!r}; choose another split."
        elif prefixes and not any(each.startswith(prefixes) for each in ids):
            yield f"eval.tasks: no task of split {split!r} begins with one of them; {nearest(prefixes[0], ids)}"


def _unseen(recipe: Recipe, env: NatLangEnv, options: Mapping[str, object]) -> str | None:
    """Return why players of ``recipe`` cannot see a state of ``env``, made with ``options``; ``None`` if they can."""
    layout = recipe.layout(env.instructions)
    if not layout.images and options.get("observation") != "image":
        return None
    env.reset(seed=0)
    try:
        for role in layout.images:
            layout.prompt(role_of(role, layout), env.observation, (), {})
    except InvalidInput as error:
        return str(error)
    blind = [role for role in recipe.reading_roles if role not in layout.images]
    if blind and not env.observation.text.strip():
        return (
            f"states are shown as pictures without text, but these players read text: {', '.join(blind)}; set the "
            "environment's option observation to both, or choose players that read pictures"
        )
    return None


def _unused_by_players(recipe: Recipe) -> Iterator[str]:
    for kind, section in recipe.players.frozen:
        yield from section.unused(f"players.{kind.role.name}")
    if recipe.eval.memory is not None:
        yield from recipe.eval.memory.unused("eval.memory")
    if recipe.players.policy.server is not None:
        yield from unused_by_server(recipe.players.policy.server, "players.policy.server")
    trials, remembers = recipe.eval.trials, recipe.players.memory or recipe.eval.memory
    if trials is not None and remembers is None and trials.begin_with != "nothing":
        yield "eval.trials.begin_with: it is what a memory begins with, but the recipe has none; add eval.memory."


def unused_settings(recipe: Recipe) -> Iterator[str]:
    """Yield one line for each setting that has no effect: the key, why, and what to change."""
    yield from _unused_by_players(recipe)
    env, reflector, rlft = recipe.env, recipe.players.reflector, recipe.rlft
    recent = recipe.prompt.history
    if not recent.steps and (recent.show != "actions" or recent.reward):
        yield "prompt.history: it says how past steps are shown, but steps is 0; raise it, or set history to 0."
    if not env.workers and env.max_memory_mb is not None:
        yield "env.max_memory_mb: it limits worker processes, but env.workers is 0; set env.workers, or remove it."
    if recipe.dataset is not None and DATASET in env.options:
        yield f"env.options.{DATASET}: the tasks are those that the section {DATASET} makes; remove one of the two."
    if recipe.reflector_model is not None and not reflector.fine_tuned:
        yield (
            "reflector_model: it is the model of a fine-tuned reflector, but players.reflector.player is "
            f"{reflector.player}; set reflector_model to null."
        )
    if rlft is not None and rlft.sharpen and recipe.model.lora is not None:
        yield (
            "rlft.sharpen: it changes the weights of the policy's last norm, of which model.lora trains none; set "
            "model.lora to null, or remove this."
        )
    for role in ("reflector", "policy"):
        section = getattr(recipe.sft, role)
        if given := [name for name in ("check_every", "patience") if getattr(section, name) and not section.held_out]:
            yield (
                f"sft.{role}.{given[0]}: it is about checks on held-out rows, but sft.{role}.held_out is 0; raise it, "
                "or remove this."
            )
    for number, lesson in enumerate(rlft.lessons if rlft is not None else ()):
        if lesson.success_threshold is not None and lesson.iterations < lesson.window:
            yield (
                f"rlft.lessons.{number}.success_threshold: it is compared with the mean of "
                f"rlft.lessons.{number}.window={lesson.window} iterations, but the lesson has {lesson.iterations}; "
                "lower the window, or remove it."
            )
        if lesson.success_threshold is None and lesson.window != type(lesson).window:
            yield (
                f"rlft.lessons.{number}.window: it is that of success_threshold, which the lesson lacks; set it, or "
                "remove it."
            )
        if lesson.replay_threshold is not None and rlft is not None and rlft.replay is None:
            yield (
                f"rlft.lessons.{number}.replay_threshold: no episodes are replayed; set rlft.replay, e.g. "
                "{size: 256, episodes: 16}, or remove it."
            )
    if rlft is not None and rlft.value is not None and rlft.value.clip and rlft.updates_per_iteration == 1:
        yield (
            "rlft.advantage.value.clip: it limits how far later updates of an iteration move the values, but there is "
            "one; raise num_minibatches or num_iterations of rlft.update, with kind ppo, or remove it."
        )
    if rlft is not None and not any(rlft.rewards.values()):
        yield "rlft.rewards: all weights are 0, so no step is better than another; give env or rater a weight."
    if rlft is not None and rlft.learning_rate_schedule != "linear" and rlft.learning_rate_end == 1:
        yield (
            "rlft.learning_rate_schedule: it is the way to rlft.learning_rate_end, but at 1 the learning rate stays "
            "the same; set rlft.learning_rate_end below 1, or remove the schedule."
        )
    if recipe.sft.policy.label_smoothing and recipe.prompt.action_mode in WRITTEN_ACTIONS:
        yield (
            "sft.policy.label_smoothing: it is spread over the labels of menus, but with prompt.action_mode="
            f"{recipe.prompt.action_mode} the policy answers with none; set it to 0."
        )
    if recipe.sft.policy.own_reflections and not reflector.fine_tuned:
        yield (
            "sft.policy.own_reflections: the policy's rows show words of the reflector that was fine-tuned before, but "
            f"players.reflector.player={reflector.player} has none; set it to 0, or the player to local."
        )
    if "" in recipe.eval.groups:
        yield "eval.groups: every task's id begins with '', so its row would repeat that of all tasks; remove it."
    if recipe.eval.controls and "rlft" not in recipe.eval.policies:
        yield (
            "eval.controls: they replace the reflections of the policy rlft, which eval.policies leaves out; add it, "
            "or set eval.controls to []."
        )
