"""The environment that a recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectrl.config.schema import Recipe
from reflectrl.core import NatLangEnv, make_env

DATASET = "dataset"
"""Folder of a run in which gen-data puts the dataset, and the option by which an environment takes it."""


def recipe_env(recipe: Recipe, run: Path, options: Mapping[str, Any] | None = None) -> NatLangEnv:
    """A new environment of ``recipe`` in the run folder ``run``; ``options`` override the recipe's."""
    own = {DATASET: str(run / DATASET)} if recipe.dataset else {}
    return make_env(recipe.env.name, **{**recipe.env.options, **own, **(options or {})})
