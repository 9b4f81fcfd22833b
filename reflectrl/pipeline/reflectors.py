"""Checks of the players that an evaluation adds: reflectors of other runs, and the environment's expert."""

from __future__ import annotations

import contextlib
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.agent_file import exported_recipe, read_agent_file
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput
from reflectrl.core.layout import REFLECTOR, REFLECTOR_RLFT
from reflectrl.pipeline.folder import read_recipe


def reflector_recipe(name: str, folder: Path, recipe: Recipe) -> Recipe:
    """Return the recipe of the reflector in ``folder``, after a check that its prompts are those of ``recipe``.

    Args:
        name: its name in ``eval.reflectors``.
        folder: the run folder or exported agent that contains it.
        recipe: the recipe of the policy that it advises.

    Raises:
        InvalidInput: no such folder, one without a reflector of its own, or one of another environment or prompt.

    """
    other = read_recipe(folder, given=None)
    after_rlft = other.players.reflector.trained and read_agent_file(folder) is None
    weights = folder / (REFLECTOR_RLFT if after_rlft else REFLECTOR)
    if other.players.reflector.player != "local" or not weights.is_dir():
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
    return other if read_agent_file(folder) is None else exported_recipe(other, folder)


def _prompt(recipe: Recipe) -> str:
    """Describe the settings of a reflector's prompts, which never show a menu."""
    layout = recipe.layout("")
    carried = " and carried words" if layout.carry else ""
    return f"{recipe.env.name!r} with instructions={recipe.prompt.instructions} and history={layout.history!r}{carried}"


def check_reflectors(recipe: Recipe) -> None:
    """Refuse runs in ``eval.reflectors`` that cannot advise the policy of ``recipe``."""
    for section in recipe.eval.reflectors:
        if section.run is not None:
            reflector_recipe(section.name, Path(section.run), recipe)


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
