from __future__ import annotations

from pathlib import Path

import faulty
import pytest

from reflectrl.config import load_recipe
from reflectrl.config.environment import RecipeEnvs, recipe_env
from reflectrl.config.schema import EnvSection
from reflectrl.core import InvalidInput
from reflectrl.rollout.worker import WorkerEnv


def test_a_stage_overrides_the_recipes_options(tmp_path: Path) -> None:
    env = recipe_env(load_recipe("dangerous_taxi/nano"), tmp_path, {"horizon": 3})
    assert (env.name, env.horizon) == ("dangerous_taxi", 3)
    with pytest.raises(InvalidInput, match=f"{tmp_path}/dataset"):
        recipe_env(load_recipe("auto_explore/nano"), tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_environments_of_a_recipe_are_played_here_or_in_workers(tmp_path: Path, workers: int) -> None:
    recipe = load_recipe("dangerous_taxi/nano", [f"env.workers={workers}"])
    with RecipeEnvs(recipe, tmp_path) as source:
        envs = source.make({"horizon": 3}, 2)
        assert [(env.name, env.horizon, isinstance(env, WorkerEnv)) for env in envs] == [
            ("dangerous_taxi", 3, workers == 1)
        ] * 2
        text, _ = envs[0].reset(seed=0, options={"task": envs[0].tasks("train")[0]})
        assert text == envs[1].reset(seed=0, options={"task": envs[1].tasks("train")[0]})[0]
        assert (source.failures, source.recycled) == (0, 0)
    if workers:
        with pytest.raises(InvalidInput, match="closed"):
            envs[0].reset(seed=0)


@pytest.mark.slow
def test_a_recipe_says_how_failures_are_met(tmp_path: Path) -> None:
    settings = {"deadline_s": 7, "on_failure": "drop", "max_failures": 3, "max_memory_mb": 900}
    recipe = load_recipe("number_line/nano", ["env.workers=1", *(f"env.{key}={settings[key]}" for key in settings)])
    for instead, expected in ((None, "drop"), ("replay", "replay")):
        with RecipeEnvs(recipe, tmp_path, on_failure=instead) as source:
            (env,) = source.make({}, 1)
            assert isinstance(env, WorkerEnv)
            assert {key: getattr(env.pool.limits, key) for key in settings} == settings | {"on_failure": expected}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_cannot_be_made_is_a_sentence(tmp_path: Path, workers: int) -> None:
    env = EnvSection(name="faulty", options={"fault": "unmade"}, workers=workers)
    recipe = load_recipe("number_line/nano").model_copy(update={"env": env})
    said = "'faulty' cannot be made: it raised ZeroDivisionError: nothing was made; correct it, or its options"
    with faulty.registered(), RecipeEnvs(recipe, tmp_path) as source, pytest.raises(InvalidInput, match=said):
        source.make({}, 1)
