"""What is found before a stage works: every kind of failure that can be known, for every stage that it concerns."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_endpoint import ScriptedEndpoint
from tiny_models import save_tiny
from trained_runs import TrainedRuns, play_stages, small_recipe

import reflectrl as rl
from reflectrl.config.schema import Recipe
from reflectrl.config.spending import endpoints_of
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import section_at
from reflectrl.core.settings import sections_of, settings_fields
from reflectrl.data_gen.generate import Spending
from reflectrl.lm.section import ModelSection
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.preflight import preflight

NO_MODEL = "no folder is there"
THINKS = ("prompt.action_mode=thought_choice", "rlft.terms.sft_thought.coef=1.0", "players.corrector.player=expert")
RATED = ("rlft.rewards={rater: 1.0, env: 0.0}", "players.rater={player: rule}")
REMEMBERS = ("players.memory={episodes: 1, steps: 2, max_chars: 120}", "model.max_length=256")
LOCAL = "player: local, model: {name: ./nomodel}"
MODELS = {
    "model": ("model.name=./nomodel",),
    "reflector_model": ("reflector_model.name=./nomodel",),
    "players.planner.model": (*REMEMBERS, f"players.planner={{{LOCAL}}}"),
    "players.corrector.model": (*THINKS, f"players.corrector={{{LOCAL}}}"),
    "players.rater.model": (*RATED, f"players.rater={{{LOCAL}}}"),
}
"""Overrides that give each model of a recipe the path of a folder that is not there."""
JUDGES = ("players.corrector.model", "players.rater.model")

ASKED = {
    "writer": ("gen-data",),
    "teacher": ("gen-data",),
    "planner": ("gen-data", "rlft", "eval"),
    "reflector": ("rlft", "eval"),
    "corrector": ("rlft",),
    "rater": ("rlft",),
    "policy": ("eval",),
    "eval-other": ("eval",),
}
"""The stages in which the chat model of each role is asked."""
ALL_REMOTE = (
    *THINKS,
    *RATED,
    *REMEMBERS,
    "data.teacher=openai",
    "players.reflector.player=remote",
    "players.corrector.player=remote",
    "players.rater.player=remote",
    "players.planner.player=remote",
    "eval.policies=[rlft, remote]",
    "eval.reflectors=[{name: other, endpoint: {}}]",
)


def refused(recipe: Recipe, run: Path, match: str, spending: Spending | None = None) -> tuple[str, ...]:
    """Return the stages that are refused with ``match`` in a folder that keeps what it has."""
    before = sorted(run.rglob("*"))
    said = {}
    for stage in STAGES:
        try:
            preflight(recipe, RunFolder(run), (stage,), spending or Spending())
        except InvalidInput as error:
            said[stage] = str(error)
    assert [sentence for sentence in said.values() if match not in sentence] == []
    assert sorted(run.rglob("*")) == before
    return tuple(said)


def models_of(section: type, path: str = "") -> Iterator[str]:
    """Yield the dotted key of every model in the schema."""
    for name, field in settings_fields(section).items():
        for inner in sections_of(field.annotation):
            if inner is ModelSection:
                yield path + name
            else:
                yield from models_of(inner, f"{path}{name}.")


def test_the_tables_below_are_complete() -> None:
    assert set(models_of(Recipe)) == set(MODELS)
    recipe = small_recipe(*ALL_REMOTE).model_dump()
    recipe["dataset"] = {"endpoint": {"model": "gpt-4o"}}
    assert set(endpoints_of(recipe)) == set(ASKED)


@pytest.mark.parametrize("key", MODELS)
def test_a_missing_model_is_found_before_the_stage_that_uses_it(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = small_recipe(*MODELS[key])
    assert refused(recipe, tmp_path / "run", f"{NO_MODEL} ({tmp_path}") == (STAGES[:3] if key in JUDGES else STAGES)
    assert refused(recipe, tmp_path / "run", NO_MODEL, Spending(dry_run=True)) == ()  # which has no use for models


@pytest.mark.parametrize("role", ASKED)
def test_a_missing_key_or_price_is_found(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = all_remote(role), tmp_path / "run"
    assert refused(recipe, run, f"model {role!r} at https://api.openai.com/v1 needs a key") == ASKED[role]
    assert refused(recipe, run, "", Spending(dry_run=True)) == ()
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    key, _ = endpoints_of(recipe.model_dump())[role]
    assert refused(recipe, run, f"e.g. {key}.price=", Spending(max_cost=2.0)) == ASKED[role]


def all_remote(role: str) -> Recipe:
    """Return a recipe in which all players are chat models: that of ``role`` is OpenAI's, the others cost nothing."""
    if role == "writer":
        return small_recipe("dataset.writer=openai", "dataset.endpoint.model=writer", name="auto_explore/nano")
    values = small_recipe(*ALL_REMOTE).model_dump()
    for other, (key, _) in endpoints_of(values).items():
        own = {"base_url": "http://127.0.0.1:9/v1", "price": {"prompt": 0, "completion": 0}}
        section_at(values, key).update(own if other != role else {"model": role})
    return Recipe.model_validate(values)


@pytest.mark.parametrize(
    ("overrides", "match", "stages"),
    [
        (["rlft.trainer=nowhere:Mine"], "rlft.trainer is 'nowhere:Mine'", ("rlft",)),
        (["eval.reflectors=[{name: other, run: nowhere}]"], "nowhere is not a run folder", ("eval",)),
        (["model.name=~/nomodel"], NO_MODEL, STAGES),
        (["model.name=./no.gguf"], "no such file is there", STAGES),
        (["model.name=gpt2"], "HF_HUB_OFFLINE is set", STAGES),
        (["model.lora={layers: 2-3}"], "2-3", STAGES),
    ],
)
def test_other_failures_are_found_by_the_commands_that_they_concern(
    overrides: list[str], match: str, stages: tuple[str, ...], tmp_path: Path
) -> None:
    assert refused(small_recipe(*overrides), tmp_path / "run", match) == stages


DAMAGES = {
    "model.safetensors": "no *.safetensors weights",
    "config.json": "config.json",
    "tokenizer*": "no tokenizer",
}


@pytest.mark.parametrize("lacking", DAMAGES)
def test_a_model_that_is_incomplete_is_found_by_every_command(lacking: str, tmp_path: Path) -> None:
    section = save_tiny("gpt2", tmp_path / "model")
    recipe = small_recipe(f"model.name={section.name}", f"model.max_length={section.max_length}")
    assert refused(recipe, tmp_path / "run", "") == ()
    for file in (tmp_path / "model").glob(lacking):
        file.unlink()
    assert refused(recipe, tmp_path / "run", DAMAGES[lacking]) == STAGES


def test_a_model_that_does_not_fit_is_found(tmp_path: Path) -> None:
    section = save_tiny("gpt2", tmp_path / "model")
    given = (f"model.name={section.name}", f"model.max_length={section.max_length}")
    (tmp_path / "model" / "rater.json").write_text(json.dumps({"labels": ["bad", "good"], "include_actions": True}))
    learned = f"players.rater={{player: learned, model: {{name: {section.name}, max_length: 64}}}}"
    for overrides, match, stages in (
        ((*given, "model.max_length=65"), "reads 64 tokens", STAGES),
        ((*given, "model.images=true", "model.prefix_reuse=false"), "reads text alone", STAGES),
        ((*given, "model.attn_implementation=flash_attention_2", "model.prefix_reuse=false"), "sdpa or eager", STAGES),
        ((*RATED[:1], learned), 'trained with ["bad", "good"]', STAGES[:3]),
    ):
        assert refused(small_recipe(*overrides), tmp_path / "run", match) == stages


def test_a_missing_tracker_is_found(trained_run: TrainedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = shutil.copytree(trained_run(), tmp_path / "finished")
    monkeypatch.setattr(sys, "path", [])
    for tracker in ("wandb", "trackio"):
        monkeypatch.delitem(sys.modules, tracker, raising=False)  # other libraries import a tracker if they find it
        recipe = small_recipe(f"report_to={tracker}")
        assert refused(recipe, tmp_path / "run", f"pip install {tracker}") == STAGES
        assert play_stages(recipe, finished).count("skipped") == 4


def test_each_method_of_a_run_finds_it_before_it_makes_a_folder(tmp_path: Path, endpoint: ScriptedEndpoint) -> None:
    overrides = {
        "model.name": str(tmp_path / "nomodel"),
        "data.teacher": "openai",
        "data.endpoint.base_url": endpoint.url,
    }
    run = rl.Run(tmp_path / "run", "number_line/nano", overrides)
    for work in (run.run, run.gen_data, run.sft, run.rlft, run.evaluate):
        with pytest.raises(InvalidInput, match=NO_MODEL):
            work()
    assert not run.path.exists()
    assert endpoint.requests == []


def test_replies_that_fewer_processes_would_not_read_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    recipe = small_recipe("players.planner.player=remote", "players.planner.endpoint.model=planner")
    (tmp_path / "run" / "calls" / "planner-1").mkdir(parents=True)
    assert refused(recipe, tmp_path / "run", "2 processes have recorded replies of the planner") == ("rlft",)
    (tmp_path / "run" / "calls" / "planner-1").rmdir()
    assert refused(recipe, tmp_path / "run", "") == ()
