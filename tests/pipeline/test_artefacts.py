"""A file of a run that was damaged, exchanged or taken away is refused by whoever reads it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import forget_digests
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.artefacts import digest
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.play import trained
from reflectrl.report.page import report_page
from reflectrl.report.plots import write_plot
from reflectrl.report.runs import read_runs
from reflectrl.sharing.export import export_run


@pytest.fixture(scope="module")
def finished(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


ADAPTED = ("model.lora={r: 4, alpha: 8}", "prompt.labels=added", "sft.policy.learning_rate=0.05")


def flip_signs(path: Path) -> None:
    """Turn the sign of a quarter of the float32 weights, as a bad copy might: the file can be read as before."""
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    for place in range(begin + 3, begin + (len(content) - begin) // 4, 4):
        content[place] ^= 0x80
    path.write_bytes(content)


def one_line_less(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def begin_anew(run: Path, stage: str) -> None:
    """Forget that ``stage`` and those after it were done."""
    ledger = json.loads((run / "stages.json").read_text())
    for later in STAGES[STAGES.index(stage) :]:
        ledger.pop(later)
    (run / "stages.json").write_text(json.dumps(ledger))


def again(stage: str) -> Callable[[Path], object]:
    """Does a stage once more, from its beginning."""

    def do(run: Path) -> None:
        begin_anew(run, stage)
        for folder in {"sft": ["reflector", "policy-sft"], "rlft": ["policy", "checkpoints"]}.get(stage, []):
            shutil.rmtree(run / folder)
        play_stages(small_recipe(), run, stage)

    return do


def report(run: Path) -> object:
    return report_page(read_runs([run]))


READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "eval, the policy": ("policy/model.safetensors", "rlft", again("eval")),
    "eval, the reflector": ("reflector/model.safetensors", "sft", again("eval")),
    "rlft, the policy": ("policy-sft/model.safetensors", "sft", again("rlft")),
    "sft, the rows": ("sft/policy.jsonl", "gen-data", again("sft")),
    "an agent": ("policy/model.safetensors", "rlft", load_agent),
    "play": ("policy/config.json", "rlft", lambda run: trained(run, None, {})),
    "export, the reflector": ("reflector/tokenizer_config.json", "sft", export_run),
    "export, an episode": ("trajectories/eval-rlft-local-greedy.jsonl", "eval", export_run),
    "report, the results": ("eval.jsonl", "eval", report),
    "report, the metrics": ("metrics.jsonl", "rlft", report),
    "report, the pace": ("throughput.jsonl", "rlft", report),
    "report, evaluated episodes": ("trajectories/eval-sft-local-sampled.jsonl", "eval", report),
    "report, advantages": ("trajectories/advantages-00000.jsonl", "rlft", report),
    "plot": ("metrics.jsonl", "rlft", lambda run: write_plot([run], run / "plot.svg")),
}
"""A damaged file, the stage that wrote it, and who reads it."""


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_what_a_stage_wrote_is_refused(reader: str, run: Path) -> None:
    name, stage, read = READERS[reader]
    (flip_signs if name.endswith(".safetensors") else one_line_less)(run / name)
    with pytest.raises(InvalidInput, match=f"{name} .*'{stage}'"):
        read(run)


def test_the_base_under_an_adapter_is_checked_as_well(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run(*ADAPTED), tmp_path / "run")
    load_agent(run)
    flip_signs(run / "base" / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"base/model\.safetensors .*'sft'"):
        load_agent(run)


def test_a_dataset_is_checked_down_to_the_files_that_are_asked_about(tmp_path: Path) -> None:
    few = load_recipe("auto_explore/nano", ["data.samples=4", "eval.policies=[random]", "rlft=null"])
    run = tmp_path / "run"
    play_stages(few, run, "gen-data")
    file = next(path for path in sorted((run / "dataset" / "repositories").rglob("*")) if path.is_file())
    file.write_text("exchanged")
    with pytest.raises(InvalidInput, match=r"dataset/repositories/\S+ .*'gen-data'"):
        play_stages(few, run, "sft")


def test_a_file_that_was_put_beside_a_model_is_refused(run: Path) -> None:
    (run / "policy" / ".DS_Store").write_text("")
    load_agent(run)
    (run / "policy" / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"policy/adapter_config\.json"):
        load_agent(run)


def test_a_file_that_is_gone_is_named_with_the_cure(run: Path) -> None:
    (run / "policy" / "config.json").unlink()
    with pytest.raises(InvalidInput, match=r"policy/config\.json.*reflectrl rlft"):
        load_agent(run)
    shutil.rmtree(run / "policy")
    with pytest.raises(InvalidInput, match="policy.*reflectrl rlft"):  # it is not replaced by the one before
        load_agent(run)


@pytest.mark.parametrize(
    ("name", "stage"),
    [("sft/policy.jsonl", "gen-data"), ("policy-sft", "sft"), ("policy", "rlft"), ("eval.jsonl", "eval")],
)
def test_what_is_deleted_is_made_again_to_the_byte(name: str, stage: str, run: Path, finished: Path) -> None:
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    said = play_stages(small_recipe(), run)
    assert re.search(rf"{stage} +{name} ", said)
    assert said.count("skipped") == 3
    assert digest(path) == digest(finished / name)
    load_agent(run)


@pytest.mark.parametrize(
    "change", [("gamma: 0.9", "gamma: 0.99"), ("description: ", "description: not "), ("seed: 0\n", "")]
)
def test_a_recipe_that_was_edited_after_the_run_is_noticed(change: tuple[str, str], run: Path) -> None:
    path = run / "recipe.yaml"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    for read in (read_recipe, report, load_agent, export_run):
        with pytest.raises(InvalidInput, match=r"recipe\.yaml"):
            read(run)
    path.write_text(text)
    load_agent(run)


def test_a_recipe_is_not_doubted_while_a_stage_is_open(run: Path) -> None:
    """The ledger is written first: a kill in between leaves the recipe of the command before."""
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
    flip_signs(run / "reflector" / "model.safetensors")
    play_stages(small_recipe(), run, "sft")
    with pytest.raises(InvalidInput, match=r"reflector/model\.safetensors .*'sft'"):
        play_stages(small_recipe(), run, "rlft")


def test_a_run_folder_of_an_earlier_version_is_read_without_a_check(run: Path) -> None:
    forget_digests(run)
    flip_signs(run / "policy" / "model.safetensors")
    path = run / "recipe.yaml"
    path.write_text(path.read_text() + "# a comment\n")
    load_agent(run)
    report(run)
    assert play_stages(small_recipe(), run).count("skipped") == 4


@pytest.mark.parametrize("odd", [5, {"policy/model.safetensors": 5}, {"eval.jsonl": {"size": "1", "sha256": ""}}])
def test_digests_that_are_none_are_a_sentence(odd: object, run: Path) -> None:
    ledger = json.loads((run / "stages.json").read_text())
    ledger["eval"]["artefacts"] = odd
    (run / "stages.json").write_text(json.dumps(ledger))
    with pytest.raises(InvalidInput, match=r"stages\.json"):
        play_stages(small_recipe(), run)
