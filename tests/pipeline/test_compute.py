from __future__ import annotations

import ctypes

import psutil
import pytest
import torch
from trained_runs import small_recipe

from reflectrl.core import InvalidInput
from reflectrl.pipeline.compute import has_bfloat16, prepare_compute, release_memory
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.team import Team

WIDE = small_recipe("model.builtin.width=256")


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def prepared(recipe, path, stage="sft"):
    """Begin a stage in a folder, and return the folder and the reported text."""
    run, shown = RunFolder(path), []
    with run.locked():
        run.begin(recipe, stage)
        prepare_compute(recipe, run, stage, shown.append)
    return run, shown


def precision(recipe, run, role="policy"):
    return Team(recipe, run).section(role).compute


def test_nano_computes_in_float32_and_one_thread(tmp_path):
    recipe = small_recipe()
    torch.set_num_threads(2)
    run, shown = prepared(recipe, tmp_path)
    assert precision(recipe, run) == "float32"
    assert torch.get_num_threads() == 1
    assert shown == []


def test_a_wide_model_needs_no_trial(tmp_path):
    run, _ = prepared(WIDE, tmp_path)
    assert precision(WIDE, run) == precision(WIDE, run, "reflector") == ("bfloat16" if has_bfloat16() else "float32")


def test_a_stage_goes_on_with_the_threads_that_it_was_begun_with(tmp_path):
    recipe = small_recipe("model.builtin.width=256", "model.compute=float32")
    torch.set_num_threads(2)
    prepared(recipe, tmp_path)
    torch.set_num_threads(1)
    prepared(recipe, tmp_path)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    prepared(recipe, tmp_path, "rlft")
    assert torch.get_num_threads() == 1


def test_layers_of_each_model_are_checked_before_any_is_trained(tmp_path):
    recipe = small_recipe("model.lora={layers: 0-0}", "reflector_model={lora: {layers: 1-2}}")
    with pytest.raises(InvalidInput, match="layers=1-2.*2 layers"):
        prepared(recipe, tmp_path)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library is not glibc")
def test_memory_that_is_free_below_what_is_in_use_is_given_back():
    def used():
        return psutil.Process().memory_info().rss / 1e6

    blocks = [bytes(8000) for _ in range(20_000)]
    last = blocks[-1]
    before = used()
    del blocks
    release_memory()
    assert used() < before - 100
    assert len(last) == 8000
