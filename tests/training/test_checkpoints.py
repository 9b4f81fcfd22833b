"""Checkpoints: their contents, which one is used, and those that cannot be resumed from."""

from __future__ import annotations

import json
import logging
import random
import re
import resource
import shutil
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bitsandbytes.optim import AdamW8bit
from safetensors.torch import load_file
from tiny import gpt2
from tiny_rlft import Killed, run, value_head
from transformers import AutoModelForCausalLM

from reflectrl.config.training import Lesson, Replay
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.section import LoraSection
from reflectrl.training.checkpoints import checkpoint_iteration, last_checkpoint


class Noisy(NumberLine):
    """Environment that uses the global random generators, as one of a notebook may."""

    def act(self, action):
        noise = random.random() + random.gauss() + float(torch.rand(1)) + np.random.normal()  # noqa: NPY002
        return replace(super().act(action), reward=0.1 * noise)


def rlft(folder, model=None, **options):
    options = {"replay": Replay(size=5, episodes=1), "env": Noisy, **options}
    lessons = [Lesson("main", 3, env={"size": 6})]
    return run(folder, model, lessons=lessons, save_every=1, advantage=value_head(), **options)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A training run, and the folder with its checkpoints 1 to 3, which tests must not change."""
    folder = tmp_path_factory.mktemp("three")
    return rlft(folder).train(), folder


@pytest.fixture
def folder(three, tmp_path):
    return shutil.copytree(three[1], tmp_path / "run")


# ---- contents --------------------------------------------------------------------------------------------------------


def test_every_file_of_a_checkpoint_is_in_the_manifest(three):
    checkpoint = last_checkpoint(three[1])
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    for path in files:
        assert not zipfile.is_zipfile(path), path  # as torch's own checkpoints are
        if path.suffix == ".safetensors":
            assert load_file(path)
        else:
            assert path.suffix == ".json", path
            json.loads(path.read_bytes())
    assert load_file(checkpoint / "optimizer.safetensors").keys() >= {"0.step", "0.exp_avg", "0.exp_avg_sq"}
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["processes"]) == ("reflectrl-checkpoint", 1, 1)
    sizes = {path.name: path.stat().st_size for path in files if path.name != "checkpoint.json"}
    assert {file["name"]: file["size"] for file in manifest["files"]} == sizes


@pytest.mark.slow
def test_a_checkpoint_is_an_ordinary_model_folder(three):
    done, folder = three
    saved, report = AutoModelForCausalLM.from_pretrained(last_checkpoint(folder), output_loading_info=True)
    assert not report["unexpected_keys"]
    for name, weight in saved.state_dict().items():
        assert torch.equal(weight, done.weights[name]), name


# ---- which one is used -----------------------------------------------------------------------------------------------


def test_checkpoints_are_compared_as_numbers(folder, tmp_path):
    assert last_checkpoint(tmp_path / "nothing yet") is None
    (folder / "checkpoint-3").rename(folder / "checkpoint-10")
    assert last_checkpoint(folder).name == "checkpoint-10"
    assert checkpoint_iteration(last_checkpoint(folder)) == 3


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def leave(path):
    """Keep the bytes, but outside of the checkpoint."""
    outside = path.parents[2] / path.name
    path.rename(outside)
    path.symlink_to(outside)


def later(path):
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


@pytest.mark.parametrize(
    ("damage", "name", "fact"),
    [
        (cut, "model.safetensors", r"model.safetensors .*\d+ bytes"),
        (flip, "optimizer.safetensors", "optimizer.safetensors .*bytes"),
        (leave, "model.safetensors", "model.safetensors is a link to .*outside of"),
        (Path.unlink, "reflectrl_state_0.json", "reflectrl_state_0.json"),
        (Path.unlink, "checkpoint.json", "checkpoint.json"),
        (cut, "checkpoint.json", "checkpoint.json .*JSON"),
        (later, "checkpoint.json", "reflectrl-checkpoint 2.* reflectrl-checkpoint 1"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(damage, name, fact, folder, caplog):
    damage(folder / "checkpoint-3" / name)
    assert last_checkpoint(folder).name == "checkpoint-2"
    (record,) = [record for record in caplog.records if record.name == "reflectrl.training.checkpoints"]
    assert record.levelno == logging.WARNING
    assert re.search(f"{fact}.*{folder / 'checkpoint-2'}", record.getMessage())


def test_without_a_whole_checkpoint_no_training_begins_from_the_start_unasked(folder):
    for number in (1, 2, 3):
        cut(folder / f"checkpoint-{number}" / "optimizer.json")
    with pytest.raises(InvalidInput, match=f"{folder} .*checkpoint-3.*checkpoint-1"):
        last_checkpoint(folder)


def test_resumed_past_a_damaged_checkpoint_equals_never_damaged_and_no_leftovers_stay(three, folder):
    (folder / ".checkpoint-2.fresh").mkdir()  # of a run that was killed while writing
    (folder / ".checkpoint-2.fresh" / "half").touch()
    (folder / "checkpoint-40").mkdir()  # of another program
    cut(folder / "checkpoint-3" / "model.safetensors")
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    with torch.random.fork_rng():
        torch.manual_seed(5)
        rlft(folder, save_total_limit=2).train(last_checkpoint(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-2", "checkpoint-3"]
    for path in (three[1] / "checkpoint-3").iterdir():
        assert (folder / "checkpoint-3" / path.name).read_bytes() == path.read_bytes(), path.name


# ---- what cannot be resumed from or written --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_checkpoint_of_another_training_is_refused(folder):
    checkpoint = folder / "checkpoint-2"
    for model, options in (
        (gpt2(width=16), {}),
        (add_lora(gpt2(), LoraSection(r=4), []), {}),
        (gpt2(), {"optimizer": torch.optim.SGD}),
    ):
        with pytest.raises(InvalidInput, match=f"{checkpoint} does not fit"):
            rlft(folder, model, **options).train(checkpoint)
    manifest = checkpoint / "checkpoint.json"
    manifest.write_text(manifest.read_text().replace('"processes": 1', '"processes": 2'))
    with pytest.raises(InvalidInput, match="by 2 processes but is read by 1, and each has its own replay buffer"):
        rlft(folder).train(checkpoint)


@contextmanager
def files_up_to(size):
    """Limit files to ``size`` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_a_sentence_and_the_checkpoint_before_is_kept(folder):
    shutil.rmtree(folder / "checkpoint-3")
    with files_up_to(20_000), pytest.raises(WorkFailed, match="checkpoint-3 cannot be written"):
        rlft(folder).train(folder / "checkpoint-2")
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert last_checkpoint(folder).name == "checkpoint-2"


@pytest.mark.slow
def test_an_optimizer_of_bitsandbytes_is_saved_and_goes_on(tmp_path):
    options = {"optimizer": AdamW8bit, "save_every": 1, "lessons": [Lesson("main", 3, env={"size": 6})]}
    straight = run(tmp_path / "straight", gpt2(spread=0.1), **options).train()
    with pytest.raises(Killed):
        run(tmp_path / "killed", gpt2(spread=0.1), **options, dies_after=2).train()
    again = run(tmp_path / "killed", gpt2(spread=0.1), **options).train(last_checkpoint(tmp_path / "killed"))
    assert [*straight.iterations[-len(again.iterations) :]] == again.iterations
    assert all(weight.equal(straight.weights[name]) for name, weight in again.weights.items())
