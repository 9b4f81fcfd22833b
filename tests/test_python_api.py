"""The package from Python: one run, from recipe to agent, without the command line."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EACCES
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import yaml
from trained_runs import SMALL, TrainedRuns, small_recipe

import reflectrl as rl
from reflectrl.core import InvalidInput, Trajectory, WorkFailed
from reflectrl.data_gen import read_rows
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline import STAGES
from reflectrl.rollout.iteration import Iteration

OVERRIDES = {key: yaml.safe_load(value) for key, value in (change.split("=", 1) for change in SMALL)}


@pytest.mark.slow
def test_a_run_returns_what_each_stage_made(tmp_path: Path) -> None:
    run = rl.Run(tmp_path / "line", "number_line/nano", OVERRIDES)
    for _ in range(2):
        rows = run.gen_data()
        assert {len(read_rows(path)) for path in rows.values()} == {run.recipe.data.samples}
        assert [path.is_dir() for path in run.sft().values()] == [True, True]
        assert [each.iteration for each in run.rlft()] == [0, 1, 2, 3]
        scores = run.evaluate()
        assert {row.policy for row in scores} == set(run.recipe.eval.policies)
        assert all(0 <= row.metrics.success <= 1 for row in scores)
    assert "<html" in run.report().read_text(encoding="utf-8")
    env = rl.make_env("number_line")
    env.reset(seed=0)
    for agent in (run.agent(), rl.load_agent(str(run.path), policy="policy-sft")):
        assert agent.act(env.observation).decision.action in env.observation.actions
    assert rl.Run(run.path).recipe == run.recipe  # a folder is opened with the recipe that it was started with
    with pytest.raises(InvalidInput, match="seed"):
        rl.Run(run.path, overrides={"seed": 7}).gen_data()
    with pytest.raises(InvalidInput, match="expected a mapping"):
        rl.Run(run.path, overrides=["seed=7"])  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_error_of_on_iteration_ends_the_stage_after_a_checkpoint(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = rl.Run(trained_run.begin(small_recipe(), tmp_path / "small"), small_recipe())
    heard: list[int] = []

    def prune(done: Iteration, episodes: Sequence[Trajectory]) -> None:
        assert len(episodes) == 6
        heard.append(done.iteration)
        if done.iteration in (0, 3):  # a save point is after iterations 1 and 3
            raise optuna.TrialPruned

    for finished in (1, 4):
        with pytest.raises(optuna.TrialPruned):
            run.rlft(on_iteration=prune)
        assert [*run.metrics().index] == [*range(finished)]
    assert run.metrics()["rollout/success"].between(0, 1).all()
    assert [each.iteration for each in run.rlft(on_iteration=prune)] == heard == [0, 1, 2, 3]
    for name in ("metrics.jsonl", "policy/model.safetensors"):
        assert (run.path / name).read_bytes() == (trained_run(stages=STAGES[:3]) / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("own", [PermissionError(EACCES, "no permission", "plot.png"), WorkFailed("no webhook.")])
def test_an_error_of_on_iteration_is_no_error_of_the_run_folder(
    own: Exception, trained_run: TrainedRuns, tmp_path: Path
) -> None:
    run = rl.Run(trained_run.begin(small_recipe(), tmp_path / "small"), small_recipe())

    def fail(done: Iteration, _: Sequence[Trajectory]) -> None:
        if done.iteration == 2:
            raise own

    with pytest.raises(type(own)) as found:
        run.rlft(on_iteration=fail)
    assert found.value is own
    assert (run.path / "checkpoints" / "rlft" / "checkpoint-3").is_dir()  # a save point is after 2 and 4 iterations


@pytest.mark.slow
def test_an_iteration_that_cannot_be_recorded_has_no_checkpoint(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = rl.Run(trained_run.begin(small_recipe(), tmp_path / "small"), small_recipe())
    paces, kept = run.path / "throughput.jsonl", tmp_path / "kept.jsonl"

    def replace(done: Iteration, _: Sequence[Trajectory]) -> None:
        if done.iteration == 2:
            paces.rename(kept)
            paces.symlink_to(kept)

    with pytest.raises(InvalidInput, match="is a link, which is not written"):
        run.rlft(on_iteration=replace)
    assert [each.name for each in (run.path / "checkpoints" / "rlft").glob("checkpoint-*")] == ["checkpoint-2"]
    kept.rename(paces)
    assert len(run.rlft()) == 4


def test_a_recipe_is_a_name_a_file_a_mapping_or_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: number_line/nano\nname: mine\nrlft: {gamma: 0.5}\n")
    values = {"extends": "number_line/nano", "name": "mine", "rlft": {"gamma": 0.5}}
    by_file = rl.Run(tmp_path, tmp_path / "mine.yaml").recipe
    assert by_file == rl.Run(tmp_path, values).recipe == rl.Run(tmp_path, by_file).recipe
    changed = rl.Run(tmp_path, by_file, {"rlft.gamma": 0.25, "rlft.lessons.0.name": "one", "reflector_model": None})
    assert changed.recipe.rlft is not None
    assert (changed.recipe.rlft.gamma, changed.recipe.rlft.lessons[0].name) == (0.25, "one")
    assert by_file == rl.load_recipe(values)
    shorter = rl.Run(tmp_path, by_file, {"description": "A 🚕.", "rlft.lessons": [rl.Lesson("main", 2)]}).recipe
    assert shorter.rlft is not None
    assert (shorter.description, shorter.rlft.lessons) == ("A 🚕.", [rl.Lesson("main", 2)])


@pytest.mark.parametrize(
    ("recipe", "overrides", "facts"),
    [
        ("number_line/nan", {}, ["number_line/nano"]),
        ({"name": "x", "env": {"name": "number_line", "options": {"sizes": 3}}}, {}, ["sizes", "'size'"]),
        ("number_line/nano", {"rlft.gama": 1, "seed": -1}, ["2 mistakes", "'gamma'", "-1"]),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    recipe: str, overrides: dict[str, object], facts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as caught:
        rl.Run(tmp_path / "run", recipe, overrides)
    assert [fact for fact in facts if fact not in str(caught.value)] == []
    assert not (tmp_path / "run").exists()


def test_environments_and_stages_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    team = SimpleNamespace(policy=rl.RandomPolicy(), seats=(), layout=rl.PromptFormat())
    for env, options, fact in (
        (NumberLine, {"options": {"sise": 3}}, "'size'"),
        (NumberLine(), {}, "class NumberLine was given; expected the class itself"),
        (NumberLine, {"batch_size": 0}, "0 environments"),
        (NumberLine, {"episodes": 0}, "0 episodes"),
        ("number_line", {"tasks": []}, "0 tasks"),
    ):
        with pytest.raises(InvalidInput, match=fact):
            rl.evaluate(team, env, **options)
    with pytest.raises(InvalidInput, match="no stage was given; expected some of gen-data"):
        rl.Run(tmp_path, "number_line/nano").run(())


def test_every_public_name_is_there() -> None:
    assert [name for name in rl.__all__ if not hasattr(rl, name)] == []
