"""Checks of the runs whose reflectors ``eval.reflectors`` names."""

from __future__ import annotations

from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.agent_file import exported_recipe, read_agent_file
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
    other = read_recipe(folder)
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
    section = recipe.prompt
    return f"{recipe.env.name!r} with instructions={section.instructions} and history={section.history}"


def check_reflectors(recipe: Recipe) -> None:
    """Refuse runs in ``eval.reflectors`` that cannot advise the policy of ``recipe``."""
    for section in recipe.eval.reflectors:
        if section.run is not None:
            reflector_recipe(section.name, Path(section.run), recipe)
