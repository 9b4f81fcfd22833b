"""The prompt layout that a recipe asks for."""

from __future__ import annotations

from reflectrl.config.schema import Recipe
from reflectrl.prompts import PromptFormat


def prompt_format(recipe: Recipe, instructions: str) -> PromptFormat:
    """The layout of every prompt of ``recipe``; ``instructions`` are the environment's."""
    section = recipe.prompt
    return PromptFormat(
        instructions=instructions if section.instructions else "",
        history=section.history,
        labels=section.labels,
        shuffle=section.shuffle,
    )
