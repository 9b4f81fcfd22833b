"""Every script starts, and the tools for published numbers of reliability and speed measure correctly."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from faulty_calls import measure
from kills import KINDS, Kind, differing
from scripted_teacher import write_recipe
from soak import taxi
from timing import memory_growth

from reflectrl.config import check_recipe, load_recipe

HERE = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in HERE.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
MEGABYTE = 2**20


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_tells_its_options(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HERE / name), run_name="__main__")
    assert ended.value.code == 0
    assert name in capsys.readouterr().out


@pytest.mark.slow
def test_faults_and_a_kill_lose_nothing_and_double_nothing():
    found = measure(calls=60, share=0.3, kills=1, seed=1, in_flight=8)
    assert (found.rejected, found.lost, found.doubled, found.wrong) == (0, 0, 0, 0)
    assert (found.calls, found.kills) == (60, 1)
    assert found.requests == found.calls + found.faults + found.bad_replies + found.asked_again


def folder(place: Path, **files: str) -> Path:
    given = {"stages.json": '{"sft": {"done": true, "wall_seconds": 1.5}}', "policy__model": "1", **files}
    for name, text in given.items():
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def test_runs_of_equal_files_differ_in_nothing_but_clocks_and_checkpoints(tmp_path):
    one = folder(tmp_path / "one", checkpoints__x="1", calls__teacher__replies="")
    clocks = '{"sft": {"done": true, "wall_seconds": 9.5}}'
    assert differing(one, folder(tmp_path / "clocks", **{"stages.json": clocks, "throughput.jsonl": "9"})) == []
    for number, name in enumerate(("policy__model", "policy__more", ".base.fresh")):
        assert differing(one, folder(tmp_path / str(number), **{name: "2"})) == [name.replace("__", "/")]


def test_the_recipe_of_the_kills_is_one_that_the_command_line_takes(tmp_path):
    path = write_recipe(tmp_path, "http://127.0.0.1:9/v1")
    check_recipe(load_recipe(str(path)))
    assert [kind.name for kind in KINDS] == ["gen-data", "sft", "rlft", "eval", "rlft, 2 ranks"]
    command = Kind("rlft", 2).command(path, tmp_path / "runs" / "kills")
    assert command[command.index("--") - 1 :][:4] == ["-m", "--", "reflectrl", "rlft"]


@pytest.mark.slow
def test_the_soak_samples_each_iteration_of_real_training(tmp_path):
    tiny = ("data.samples=40", "sft.reflector.steps=2", "sft.policy.steps=2", "players.reflector.max_new_tokens=4")
    tiny += ("rlft.episodes=2", "rlft.update.num_iterations=1", "rlft.save_every=1", "rlft.record_episodes=1")
    tiny += ("rlft.validation=null",)  # which would play far more than is trained
    watch = taxi(tmp_path / "run", tmp_path / "out.jsonl", 3, 0, tiny)
    assert [sample.done for sample in watch.during] == [1, 2, 3]
    assert all(sample.own_mb > 50 and sample.step_ms > 0 for sample in watch.during)
    assert watch.during[-1].disk_mb > watch.during[0].disk_mb > 0
    assert watch.after().files <= watch.before.files


def test_the_memory_that_is_held_at_the_peak_is_counted():
    # more than 32 MB, which malloc always gets from the system
    assert 60 * MEGABYTE < memory_growth(lambda: torch.ones(64 * MEGABYTE // 4)) < 80 * MEGABYTE


def test_no_benchmark_hides_the_package_it_measures():
    """Scripts import from their own folder first: a benchmark named alfworld.py would be imported as ALFWorld."""
    find = "import importlib.util as u; print(u.find_spec('alfworld').submodule_search_locations is not None)"
    found = subprocess.run([sys.executable, "-c", find], cwd=HERE, check=True, capture_output=True, text=True)
    assert found.stdout == "True\n"
