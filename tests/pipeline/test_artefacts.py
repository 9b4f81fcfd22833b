"""Damaged, replaced or missing files of a run are refused by everything that reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.artefacts import digest
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.live_play import trained
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.sharing.export import export_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


ADAPTED = ("model.lora={r: 4, alpha: 8}", "prompt.labels=added", "sft.policy.learning_rate=0.05")


def damage(path: Path) -> None:
    """Drop the last line, or flip the signs of a quarter of the float32 weights, so that the file can still be read."""
    if path.suffix != ".safetensors":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        return
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    for place in range(begin + 3, begin + (len(content) - begin) // 4, 4):
        content[place] ^= 0x80
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "made_by", "stage"),
    [
        ("sft/policy.jsonl", "gen-data", "sft"),
        ("policy-sft/model.safetensors", "sft", "rlft"),
        ("policy/model.safetensors", "rlft", "eval"),
        ("reflector/model.safetensors", "sft", "eval"),
    ],
)
def test_a_stage_refuses_a_file_that_is_not_what_an_earlier_stage_wrote(
    name: str, made_by: str, stage: str, trained_run: TrainedRuns, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run(stages=STAGES[: STAGES.index(stage)]), tmp_path / "run")
    damage(run / name)
    with pytest.raises(InvalidInput, match=f"{name} .*'{made_by}'"):
        play_stages(small_recipe(), run, stage)


def test_a_pipe_in_the_place_of_a_file_is_refused_instead_of_waited_for(run: Path) -> None:
    for folder in ("policy", "reflector"):
        (run / folder / "model.safetensors").unlink()
        os.mkfifo(run / folder / "model.safetensors")
    for read in (load_agent, export_run):
        with pytest.raises(InvalidInput, match=r"model.safetensors.*(is not a regular file|it is a pipe)"):
            read(run)


def report(run: Path) -> object:
    return report_page(read_runs([run]))


READERS: tuple[tuple[str, str, Callable[[Path], object]], ...] = (
    ("policy/model.safetensors", "rlft", load_agent),
    ("policy/config.json", "rlft", lambda run: trained(run, None, {})),
    ("reflector/tokenizer_config.json", "sft", export_run),
    ("trajectories/eval-rlft-local-greedy.jsonl", "eval", export_run),
    ("eval.jsonl", "eval", report),
    ("metrics.jsonl", "rlft", report),
    ("throughput.jsonl", "rlft", report),
    ("trajectories/eval-sft-local-sampled.jsonl", "eval", report),
    ("trajectories/advantages-00000.jsonl", "rlft", report),
)
"""Damaged files, each with the stage that wrote it and its reader."""


def test_a_file_that_is_not_what_a_stage_wrote_is_refused_by_every_reader(run: Path) -> None:
    for name, made_by, read in READERS:
        content = (run / name).read_bytes()
        damage(run / name)
        with pytest.raises(InvalidInput, match=f"{name} .*'{made_by}'"):
            read(run)
        (run / name).write_bytes(content)


def test_the_base_under_an_adapter_is_checked_as_well(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run(*ADAPTED), tmp_path / "run")
    load_agent(run)
    damage(run / "base" / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"base/model\.safetensors .*'sft'"):
        load_agent(run)


def test_a_dataset_is_checked_down_to_the_files_that_are_asked_about(tmp_path: Path) -> None:
    few = load_recipe(
        "auto_explore/nano", ["data.samples=4", "eval.policies=[random]", "eval.controls=[]", "rlft=null"]
    )
    run = tmp_path / "run"
    play_stages(few, run, "gen-data")
    file = next(path for path in sorted((run / "dataset" / "repositories").rglob("*")) if path.is_file())
    file.write_text("exchanged")
    with pytest.raises(InvalidInput, match=r"dataset/repositories/\S+ .*'gen-data'"):
        play_stages(few, run, "sft")


def test_a_file_that_was_put_beside_a_model_or_is_gone_is_named_with_the_cure(run: Path) -> None:
    (run / "policy" / ".DS_Store").write_text("")
    load_agent(run)
    (run / "policy" / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"policy/adapter_config\.json"):
        load_agent(run)
    (run / "policy" / "adapter_config.json").unlink()
    (run / "policy" / "config.json").unlink()
    with pytest.raises(InvalidInput, match=r"policy/config\.json.*reflectrl rlft"):
        load_agent(run)
    shutil.rmtree(run / "policy")
    with pytest.raises(InvalidInput, match="policy.*reflectrl rlft"):  # the policy after SFT is not used instead
        load_agent(run)


def test_what_is_deleted_is_made_again_to_the_byte(run: Path, finished: Path) -> None:
    for name, stage in {"sft/policy.jsonl": "gen-data", "policy-sft": "sft", "eval.jsonl": "eval"}.items():
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        said = play_stages(small_recipe(), run)
        assert re.search(rf"{stage} +{name} ", said)
        assert said.count("skipped") == 3
        assert digest(path) == digest(finished / name)
    load_agent(run)


def test_a_recipe_that_was_edited_after_the_run_is_noticed(run: Path) -> None:
    path = run / "recipe.yaml"
    text = path.read_text()
    path.write_text(text.replace("gamma: 0.9", "gamma: 0.99"))
    for read in (read_recipe, report, load_agent, export_run):
        with pytest.raises(InvalidInput, match=r"recipe\.yaml"):
            read(run)
    path.write_text(text)
    load_agent(run)


def test_a_recipe_is_not_doubted_while_a_stage_is_open(run: Path) -> None:
    """The ledger is written first, so a kill in between leaves the recipe of the previous command."""
    folder, changed = RunFolder(run), small_recipe("eval.episodes=2")
    before = (run / "recipe.yaml").read_bytes()
    folder.forget("eval")
    folder.begin(changed, "eval")
    (run / "recipe.yaml").write_bytes(before)
    assert read_recipe(run).eval.episodes == 12
    play_stages(changed, run, "eval")
    assert read_recipe(run).eval.episodes == 2


def test_a_player_that_was_trained_first_is_checked_from_then_on(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run(stages=STAGES[:1]), tmp_path / "run")
    run_stages(small_recipe(), run, ("sft",), sft_players=("reflector",))
    damage(run / "reflector" / "model.safetensors")
    play_stages(small_recipe(), run, "sft")
    with pytest.raises(InvalidInput, match=r"reflector/model\.safetensors .*'sft'"):
        play_stages(small_recipe(), run, "rlft")


def test_digests_that_are_none_are_a_sentence(run: Path) -> None:
    ledger = json.loads((run / "stages.json").read_text())
    for odd in (5, {"policy/model.safetensors": 5}, {"eval.jsonl": {"size": "1", "sha256": ""}}):
        ledger["eval"]["artefacts"] = odd
        (run / "stages.json").write_text(json.dumps(ledger))
        with pytest.raises(InvalidInput, match=r"stages\.json"):
            play_stages(small_recipe(), run)
