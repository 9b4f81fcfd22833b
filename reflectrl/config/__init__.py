"""Recipes: one YAML file per experiment, checked against one schema."""

from reflectrl.config.env_check import check_recipe
from reflectrl.config.reading import (
    arm_names,
    dump_recipe,
    load_recipe,
    load_saved_recipe,
    recipe_description,
    recipe_names,
    recipe_text,
)
from reflectrl.config.schema import Recipe

__all__ = [
    "Recipe",
    "arm_names",
    "check_recipe",
    "dump_recipe",
    "load_recipe",
    "load_saved_recipe",
    "recipe_description",
    "recipe_names",
    "recipe_text",
]
