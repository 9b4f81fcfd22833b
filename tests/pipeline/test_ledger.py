"""Files of a run that were cut, added to, removed or, if a recipe, edited are refused by everything that reads them."""

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
from reflectrl.core.files import fingerprint
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.live_play import trained
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.share.export import export_run

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
    """Drop the last line, so that what is left of it can be read, or the last weight."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        path.write_bytes(content[:-4])
    else:
        path.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))


def exchange(path: Path) -> None:
    """Flip the signs of a quarter of the float32 weights, so that the file can still be read."""
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
def test_a_stage_refuses_a_file_that_is_not_as_an_earlier_stage_left_it(
    name: str, made_by: str, stage: str, trained_run: TrainedRuns, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run(stages=STAGES[: STAGES.index(stage)]), tmp_path / "run")
    damage(run / name)
    with pytest.raises(InvalidInput, match=f"{product(name)}, .*'{made_by}' .* bytes instead of"):
        play_stages(small_recipe(), run, stage)


def test_a_pipe_in_the_place_of_a_file_is_refused_instead_of_waited_for(run: Path) -> None:
    for folder in ("policy", "reflector"):
        (run / folder / "model.safetensors").unlink()
        os.mkfifo(run / folder / "model.safetensors")
    for read in (load_agent, export_run):
        with pytest.raises(InvalidInput, match="run/policy, .* bytes instead of"):
            read(run)


def product(name: str) -> str:
    """Return the product that a file belongs to: itself, or the folder of a model."""
    return str(Path(name).parent) if name.partition("/")[0] in ("policy", "policy-sft", "reflector") else name


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


def test_a_file_that_is_not_as_a_stage_left_it_is_refused_by_every_reader(run: Path) -> None:
    for name, made_by, read in READERS:
        content = (run / name).read_bytes()
        damage(run / name)
        with pytest.raises(InvalidInput, match=f"{product(name)}, .*'{made_by}'"):
            read(run)
        (run / name).write_bytes(content)


def test_the_base_under_an_adapter_is_checked_as_well(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run(*ADAPTED, stages=STAGES[:2]), tmp_path / "run")
    load_agent(run)
    damage(run / "base" / "model.safetensors")
    with pytest.raises(InvalidInput, match="run/base, .*'sft'"):
        load_agent(run)


def test_a_dataset_is_checked_down_to_the_files_that_are_asked_about(tmp_path: Path) -> None:
    few = load_recipe(
        "auto_explore/nano", ["data.samples=4", "eval.policies=[random]", "eval.controls=[]", "rlft=null"]
    )
    run = tmp_path / "run"
    play_stages(few, run, "gen-data")
    file = next(path for path in sorted((run / "dataset" / "repositories").rglob("*")) if path.is_file())
    file.write_text("cut")
    with pytest.raises(InvalidInput, match="run/dataset, .*'gen-data'"):
        play_stages(few, run, "sft")


def test_what_is_deleted_is_made_again_to_the_byte(run: Path, finished: Path) -> None:
    for name, stage in {"sft/policy.jsonl": "gen-data", "policy-sft": "sft", "eval.jsonl": "eval"}.items():
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        said = play_stages(small_recipe(), run)
        assert re.search(rf"{stage} +{name} ", said)
        assert said.count("skipped") == 3
        assert fingerprint(path) == fingerprint(finished / name)
    load_agent(run)


def test_a_product_that_is_gone_or_was_added_to_is_named_with_the_cure(run: Path) -> None:
    (run / "policy" / ".DS_Store").write_text("mine")
    load_agent(run)
    (run / "policy" / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="run/policy, .*put it back, or delete it and run `reflectrl rlft`"):
        load_agent(run)
    shutil.rmtree(run / "policy")
    with pytest.raises(InvalidInput, match="policy.*is gone.*reflectrl rlft"):  # not the policy after SFT instead
        load_agent(run)


def test_a_recipe_that_was_edited_after_the_run_is_noticed(run: Path) -> None:
    path = run / "recipe.yaml"
    text = path.read_text()
    path.write_text(text.replace("gamma: 0.9", "gamma: 0.8"))
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


@pytest.mark.parametrize("policy", ["policy", "policy-sft"])
def test_results_of_another_policy_are_not_reported_but_evaluated_again(policy: str, run: Path) -> None:
    before = (run / "eval.jsonl").read_bytes()
    exchange(run / policy / "model.safetensors")
    for read in (report, export_run):
        with pytest.raises(InvalidInput, match=f"run: {policy} changed since the evaluation; run `reflectrl eval`"):
            read(run)
    assert not (run / "export").exists()
    assert "evaluating again" in play_stages(small_recipe(), run, "eval")
    assert (run / "eval.jsonl").read_bytes() != before
    report(run)


def test_a_ledger_with_odd_sizes_or_policies_is_a_sentence(run: Path) -> None:
    ledger = json.loads((run / "stages.json").read_text())
    for part, odd in (("products", 5), ("products", {"eval.jsonl": "5"}), ("policies", {"policy": 5})):
        changed = {**ledger, "eval": {**ledger["eval"], part: odd}}
        (run / "stages.json").write_text(json.dumps(changed))
        with pytest.raises(InvalidInput, match=rf"stages\.json, {part} of eval"):
            play_stages(small_recipe(), run)
