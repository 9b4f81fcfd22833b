from __future__ import annotations

from pathlib import Path

import pytest

from reflectrl.config import load_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput


def test_the_recipe_s_options_are_overridden_by_a_stage_s(tmp_path: Path) -> None:
    env = recipe_env(load_recipe("dangerous_taxi/nano"), tmp_path, {"horizon": 3})
    assert (env.name, env.horizon) == ("dangerous_taxi", 3)


def test_a_recipe_with_a_dataset_plays_the_one_of_its_run(tmp_path: Path) -> None:
    recipe = load_recipe("auto_explore/nano")
    with pytest.raises(InvalidInput, match="dataset"):
        recipe_env(recipe, tmp_path)
