from __future__ import annotations

import json
import logging
import random
import re
import resource
import shutil
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import gpt2
from tiny_models import LABELS, reflector_row, save_tiny
from tiny_models import MAX_LENGTH as SFT_LENGTH
from tiny_rlft import run
from transformers import AutoModelForCausalLM

from reflectrl.config.rlft import Stage
from reflectrl.config.schema import LoraSection, SFTPlayerSection
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.models.adapters import add_lora
from reflectrl.models.load import new_model
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.rlft import checkpoint_iteration
from reflectrl.training.sft import train_sft

MODULE = "reflectrl.training.checkpoints"


def rlft(folder: Path, iterations: int = 3, model=None, **options):
    options = {"stages": [Stage("main", iterations, env={"size": 6})], "save_every": 1, **options}
    return run(folder, model, **options)


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def sft(folder: Path, **options):
    """One step with dropout; returns the folder of its checkpoints."""
    section = save_tiny("gpt2", folder / "base").model_copy(update={"lora": LoraSection(r=4, dropout=0.2)})
    settings = SFTPlayerSection(steps=1, batch_size=2, micro_batch_size=1, learning_rate=0.01, max_grad_norm=1.0)
    lm, rows = new_model(section, labels=LABELS, seed=0), [reflector_row("|T:P|", " Mistake.")]
    options = {
        "labels": LABELS,
        "max_length": SFT_LENGTH,
        "max_new_tokens": 8,
        "drop_long_rows": False,
        "seed": 3,
        "save_every": 1,
    }
    train_sft(lm, rows, player="reflector", section=settings, output_dir=folder / "sft", **options)
    (found,) = (folder / "sft").iterdir()
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Checkpoints 1 to 3 of a run with everything in them; not to be changed."""
    folder = tmp_path_factory.mktemp("three")
    options = {"baseline": "value", "replay_size": 5, "replay_episodes": 1}
    rlft(folder, **options).train()
    return folder


@pytest.fixture
def folder(three, tmp_path):
    return shutil.copytree(three, tmp_path / "run")


# ---- what is in one --------------------------------------------------------------------------------------------------

TRAININGS = {
    "rlft": lambda folder: rlft(folder, baseline="value").train() and folder,
    "rlft of adapters": lambda folder: rlft(folder, model=add_lora(gpt2(), LoraSection(r=4), [])).train() and folder,
    "sft": sft,
}


@pytest.mark.parametrize("training", TRAININGS)
def test_every_file_is_safetensors_or_json_or_text(training, tmp_path):
    checkpoint = last_checkpoint(TRAININGS[training](tmp_path / "run"))
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    for path in files:
        assert not zipfile.is_zipfile(path), path  # as torch's are
        if path.suffix == ".safetensors":
            assert load_file(path)
        elif path.suffix == ".json":
            json.loads(path.read_bytes())
        else:
            assert path.suffix in (".md", ".jinja"), path
            path.read_text(encoding="utf-8")
    assert {path.name for path in files} >= {"optimizer.safetensors", "process_0.safetensors", "trainer_state.json"}
    assert load_file(checkpoint / "optimizer.safetensors").keys() >= {"0.step", "0.exp_avg", "0.exp_avg_sq"}


def test_the_manifest_names_all_files_with_their_sizes(three):
    manifest = json.loads((three / "checkpoint-3" / "checkpoint.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["processes"]) == ("reflectrl-checkpoint", 1, 1)
    found = {path.name: path.stat().st_size for path in (three / "checkpoint-3").iterdir()}
    del found["checkpoint.json"]
    assert {file["name"]: file["size"] for file in manifest["files"]} == found


def test_a_checkpoint_is_an_ordinary_model_folder(tmp_path):
    done = rlft(tmp_path, baseline="value").train()
    saved, report = AutoModelForCausalLM.from_pretrained(last_checkpoint(tmp_path), output_loading_info=True)
    assert not report["unexpected_keys"]
    weights = {name: weight for name, weight in done.weights.items() if "value_head" not in name}
    assert same(saved.state_dict(), weights)


def test_the_global_generators_go_on_where_they_were(tmp_path):
    def draws():
        return random.random(), float(np.random.rand()), float(torch.rand(1)), random.gauss(), np.random.normal()  # noqa: NPY002

    done = rlft(tmp_path).train()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    draws()  # half of a pair of normal numbers is waiting
    done.trainer.state.global_step = 7
    done.trainer._save_checkpoint(None, None)
    expected = [draws() for _ in range(3)]
    done.trainer._load_rng_state(str(tmp_path / "checkpoint-7"))
    assert [draws() for _ in range(3)] == expected


# ---- which one is taken ----------------------------------------------------------------------------------------------


def test_checkpoints_are_compared_as_numbers(tmp_path):
    assert last_checkpoint(tmp_path / "nothing yet") is None
    rlft(tmp_path, 10, save_every=5).train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-10"}
    assert last_checkpoint(tmp_path).name == "checkpoint-10"
    assert checkpoint_iteration(tmp_path / "checkpoint-5") == 5


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": (cut, "model.safetensors", r"model.safetensors has \d+ bytes instead of \d+"),
    "flipped": (flip, "optimizer.safetensors", "optimizer.safetensors does not hold the bytes that were written"),
    "lost": (Path.unlink, "reflectrl_state_0.json", "a file of .*reflectrl_state_0.json"),
    "a manifest that is lost": (Path.unlink, "checkpoint.json", "holds no checkpoint.json"),
    "a manifest that is cut": (cut, "checkpoint.json", "checkpoint.json is not JSON"),
    "a manifest of something else": (lambda path: path.write_text("{}"), "checkpoint.json", "lacks field"),
    "a later format": (
        lambda path: path.write_text(path.read_text().replace('"version": 1', '"version": 2')),
        "checkpoint.json",
        "is of reflectrl-checkpoint 2; expected reflectrl-checkpoint 1",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(damage, folder, caplog):
    do, name, words = DAMAGES[damage]
    do(folder / "checkpoint-3" / name)
    assert last_checkpoint(folder).name == "checkpoint-2"
    (record,) = [record for record in caplog.records if record.name == MODULE]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("passing over a checkpoint that is not whole")
    assert record.getMessage().endswith(f"going on from {folder / 'checkpoint-2'}.")
    assert re.search(words, record.getMessage())


def test_a_checkpoint_of_transformers_is_foreign(folder):
    foreign = folder / "checkpoint-9"
    foreign.mkdir()
    (foreign / "trainer_state.json").write_text('{"global_step": 9}')
    (foreign / "optimizer.pt").write_bytes(b"PK\x03\x04")
    assert last_checkpoint(folder).name == "checkpoint-3"


def test_without_a_whole_checkpoint_nothing_is_started_anew_unasked(folder):
    for number in (1, 2, 3):
        cut(folder / f"checkpoint-{number}" / "optimizer.json")
    with pytest.raises(InvalidInput, match="is whole: .*checkpoint-3.*checkpoint-1.* Delete that folder to start"):
        last_checkpoint(folder)


def test_going_on_past_a_damaged_checkpoint_equals_never_damaged(three, tmp_path):
    options = {"baseline": "value", "replay_size": 5, "replay_episodes": 1}
    folder = shutil.copytree(three, tmp_path / "run")
    cut(folder / "checkpoint-3" / "model.safetensors")
    rlft(folder, **options).train(last_checkpoint(folder))
    for path in (three / "checkpoint-3").iterdir():
        assert (folder / "checkpoint-3" / path.name).read_bytes() == path.read_bytes(), path.name


def test_two_checkpoints_are_kept_and_no_leftovers(tmp_path):
    (tmp_path / ".checkpoint-2.fresh").mkdir(parents=True)  # of a run that was killed while writing
    (tmp_path / ".checkpoint-2.fresh" / "half").touch()
    (tmp_path / "checkpoint-40").mkdir()  # foreign, and passed over
    rlft(tmp_path, 5, save_total_limit=2).train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5"]


# ---- what cannot be gone on from -------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_number_of_processes_is_refused(folder):
    path = folder / "checkpoint-2" / "checkpoint.json"
    path.write_text(path.read_text().replace('"processes": 1', '"processes": 2'))
    with pytest.raises(InvalidInput, match="written by 2 processes but is read by 1; go on with as many as before"):
        rlft(folder, baseline="value").train(path.parent)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda: gpt2(width=16), {}),
        (lambda: gpt2(layers=2), {}),
        (lambda: add_lora(gpt2(), LoraSection(r=4), []), {}),
        (gpt2, {"optim": "sgd"}),
    ],
    ids=["narrower", "deeper", "adapters", "another optimizer"],
)
def test_a_checkpoint_of_another_training_is_refused(model, options, folder):
    with pytest.raises(InvalidInput, match="does not fit this training .*; it was written for another model"):
        rlft(folder, model=model(), baseline="value", **options).train(folder / "checkpoint-2")


@contextmanager
def files_up_to(size):
    """As on a disk that is full, no file gets longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_a_sentence_and_the_checkpoint_before_is_kept(tmp_path):
    done = rlft(tmp_path).train()
    done.trainer.state.global_step = 4
    with files_up_to(20_000), pytest.raises(WorkFailed, match="checkpoint-4 cannot be written .*one before is kept"):
        done.trainer._save_checkpoint(None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert last_checkpoint(tmp_path).name == "checkpoint-3"
