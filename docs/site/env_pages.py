"""A page for each environment: the docstring of its class, its options, and the recipes that play it."""

from __future__ import annotations

from reflectrl.config import load_recipe, recipe_names
from reflectrl.config.reading import arm_names
from reflectrl.core.registry import env_names, env_path

OURS = "reflectrl.envs."


def env_pages() -> dict[str, str]:
    """The Markdown of each page by its path; mkdocstrings fills in what the docstring says."""
    names = recipe_names()
    arms = {f"{name}_{arm}" for name in names for arm in arm_names(name)}
    played = {name: load_recipe(name).env.name for name in names if name not in arms}
    ours = {env: path for env in env_names() if (path := env_path(env) or "").startswith(OURS)}
    return {
        f"env-{env}.md": _page(env, path, [name for name in played if played[name] == env])
        for env, path in ours.items()
    }


def _page(env: str, path: str, recipes: list[str]) -> str:
    page = f"# {env}\n\n::: {path.replace(':', '.')}\n    options:\n      members: false\n"
    named = ", ".join(f"`{name}`" for name in recipes)
    return f"{page}\nRecipes, [described with their arms](shipped-recipes.md): {named}.\n" if recipes else page
