"""The command that says how long a recipe will take."""

from __future__ import annotations

import json

from reflectrl.cli.shared import Overrides, RecipeOption, TextOrJson
from reflectrl.cli.terminal import say


def estimate(
    recipe: RecipeOption,
    output: TextOrJson = "text",
    overrides: Overrides = None,
) -> None:
    """Run every stage shortly with the real models, and say how long the whole recipe takes on this machine."""
    from reflectrl.config import load_recipe
    from reflectrl.core.jsonl import encode
    from reflectrl.pipeline.estimate import estimate as measure

    found = measure(load_recipe(recipe, overrides or ()))
    say(json.dumps(encode(found), indent=2) if output == "json" else found.text)
