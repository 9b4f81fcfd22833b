"""Folders that other versions wrote are read, or refused in one sentence that names the version.

``format_1.tar.xz`` holds a run of number_line/nano with tiny models and its export, made before formats had numbers.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from trained_runs import play_stages

from reflectrl.config import dump_recipe, load_recipe, load_saved_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.layout import LEDGER
from reflectrl.core.version import FORMAT, OtherVersion
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.explore import trained as explorer
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.play import trained
from reflectrl.report import report
from reflectrl.serving.service import load_served_agent
from reflectrl.sharing.export import export_run

MADE_WITH = [
    "data.samples=8",
    "sft.reflector.steps=2",
    "sft.policy.steps=2",
    "rlft.stages.0.iterations=2",
    "rlft.episodes=2",
    "rlft.record_episodes=1",
    "eval.max_tasks=1",
    "eval.episodes=1",
    "model.builtin={layers: 1, width: 8, heads: 1, vocabulary: 300}",
    "players.reflector.max_new_tokens=4",
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The run folder; its export lies beside it."""
    with tarfile.open(Path(__file__).with_name("format_1.tar.xz")) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "old"


def run(folder: Path, *overrides: str, stages: tuple[str, ...] = STAGES) -> None:
    play_stages(load_recipe("number_line/nano", [*MADE_WITH, *overrides]), folder, *stages)


DOORS: dict[str, Callable[[Path], object]] = {
    "run": run,
    "eval": lambda folder: run(folder, "eval.episodes=2", stages=("eval",)),
    "report": lambda folder: report([folder]),
    "play": lambda folder: trained(folder, None, {}),
    "serve": load_served_agent,
    "export": lambda folder: export_run(folder, folder / "again"),
    "load_agent": load_agent,
}


def refusal(door: Callable[[Path], object], folder: Path) -> str:
    """Return the sentence with which a folder is refused, or an empty string if it is read."""
    try:
        door(folder)
    except OtherVersion as error:
        sentence = str(error)
        assert "\n" not in sentence
        assert str(folder) in sentence
        return sentence
    return ""


@pytest.mark.parametrize("name", DOORS)
def test_folders_of_an_early_version_are_read_or_refused_in_a_sentence(name: str, old: Path) -> None:
    sentence = refusal(DOORS[name], old)
    assert not sentence or ("format 1" in sentence and "--run" in sentence)
    if name in ("play", "serve", "load_agent"):
        sentence = refusal(DOORS[name], old.with_name("export"))
        assert not sentence or "format 1" in sentence


@pytest.mark.parametrize("name", [*DOORS, "explore"])
def test_a_run_whose_files_are_not_understood_names_the_version_that_wrote_it(name: str, old: Path) -> None:
    ledger = json.loads((old / "stages.json").read_text())
    written = {**ledger, "written_by": {"format": FORMAT + 1, "reflectrl": "99.1"}}
    (old / "stages.json").write_text(json.dumps(written))
    door = {**DOORS, "explore": explorer}[name]
    assert "reflectrl 99.1" in refusal(door, old)
    for entry in ledger.values():  # as in a folder without digests
        del entry["artefacts"], entry["recipe"]
        entry["inputs"]["data.forgotten_key"] = 1
    (old / "stages.json").write_text(json.dumps(ledger))
    for path in old.rglob("*.jsonl"):
        path.write_text('{"forgotten_key": 1}\n')
    recipe = old / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "forgotten_key: 1\n")
    assert "format 1" in refusal(door, old)


def test_a_run_names_its_first_writer_and_mistakes_of_its_own_version_are_reported_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, stages=("gen-data",))
    writer = json.loads((folder / "stages.json").read_text())["written_by"]
    assert writer["format"] == FORMAT
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "forgotten_key: 1\n")
    with pytest.raises(InvalidInput) as caught:
        read_recipe(folder)
    assert not isinstance(caught.value, OtherVersion)


def test_an_option_that_was_added_since_is_as_it_was_while_it_has_its_default(tmp_path: Path) -> None:
    folder, ledger = RunFolder(tmp_path), tmp_path / LEDGER
    folder.begin(load_recipe("number_line/nano"), "rlft")
    entries = json.loads(ledger.read_text())
    del entries["rlft"]["inputs"]["rlft.ema"]
    ledger.write_text(json.dumps(entries))
    folder.check(load_recipe("number_line/nano"), "rlft")
    for override, told in (
        ("rlft.ema=0.5", "(rlft.ema: null -> 0.5)"),
        ("players.memory={}", "players.memory.key: null"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(told)):
            folder.check(load_recipe("number_line/nano", [override]), "rlft")


def test_a_setting_without_effect_is_read_in_an_old_folder_and_refused_in_a_new_recipe(tmp_path: Path) -> None:
    now, path = dump_recipe(load_recipe("gym_cards/nano_number_line_rl4vlm")), tmp_path / "recipe.yaml"
    path.write_text(now.replace("label_smoothing: 0.0", "label_smoothing: 0.2"))
    saved = load_saved_recipe(path)
    assert saved.sft.policy.label_smoothing == 0.2  # as its stages.json says
    assert load_recipe(saved, ["seed=3"]).sft.policy.label_smoothing == 0.2
    with pytest.raises(InvalidInput, match="label_smoothing: .* set it to 0"):
        load_recipe(path)
