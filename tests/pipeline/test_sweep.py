"""Sweeps: the meaning of --seeds and --grid, and real runs that are stopped, fail and continue."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import reflectrl, refused
from faulty import wait_until
from warm_processes import WarmProcess, command_line

from reflectrl.core import InvalidInput
from reflectrl.pipeline.sweep import plan_runs, read_seeds, read_values

TINY = (
    *("data.samples=20", "sft.enabled=false", "players.reflector.player=none", "rlft.lessons.0.iterations=1"),
    *(
        "rlft.episodes=2",
        "rlft.validation=null",
        "eval.episodes=2",
        "eval.max_tasks=2",
        "eval.greedy=false",
        "eval.policies=[rlft]",
    ),
)


@pytest.mark.parametrize(("text", "seeds"), [("0-3", (0, 1, 2, 3)), ("7", (7,)), ("0, 3,5-6,3", (0, 3, 5, 6))])
def test_seeds_are_numbers_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "3-1", "a", "-1", "0-99999999", "1,,2"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--seeds"):
        read_seeds(text)


def test_every_choice_of_the_grid_has_a_folder() -> None:
    grid = [read_values("rlft.gamma=0.9,1"), read_values("eval.policies=[sft, rlft],[rlft]")]
    planned = plan_runs(Path("runs"), "nano", "number_line/nano", (0, 1), grid, ["data.samples=9"])
    assert [run.folder.name for run in planned[:2]] == [
        "nano-gamma0.9-policies_sft_rlft_-seed0",
        "nano-gamma0.9-policies_rlft_-seed0",
    ]
    assert planned[-1].overrides == ("data.samples=9", "seed=1", "rlft.gamma=1", "eval.policies=[rlft]")
    assert len({run.folder for run in planned}) == len(planned) == 8


def test_only_commas_outside_of_brackets_separate_values() -> None:
    assert read_values("k=[[1, 2], [3]],{a: [1, 2]},4")[1] == ("[[1, 2], [3]]", "{a: [1, 2]}", "4")


@pytest.mark.parametrize(
    "options",
    [
        *(["--grid", "rlft.gamma"], ["--grid", "=1"], ["--grid", "seed=1,2", "--seeds", "0"], ["--jobs", "2"]),
        ["--launcher", "slurm"],
        ["--seeds", "0-1", "seed=3"],
        ["--grid", "seed=0,1"],
        ["--seeds", "0", "--grid", "rlft.gamma=0.9,2"],
        ["--seeds", "0", "--grid", "env.name=a/b,a_b"],
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_the_first_run(options: list[str], tmp_path: Path) -> None:
    refused("run", "--recipe", "number_line/nano", "--runs", tmp_path, *options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused("run", "--recipe", "number_line/nano", "--runs", tmp_path / "file" / "runs", "--seeds", "0-1")
    assert "a part of it is a file and not a folder" in said


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
def test_a_sweep_stops_fails_in_part_and_goes_on(tmp_path: Path) -> None:
    recipe = tmp_path / "line.yaml"
    recipe.write_text("extends: number_line/nano\nname: line\narms:\n  other: {rlft.task_priority: 0.0}\n")
    same = ["run", "--recipe", str(recipe), "--runs", str(tmp_path), *TINY, "--grid", "rlft.gamma=0.9"]
    one = [*same, "--seeds", "0"]
    folders = [tmp_path / f"{name}-gamma0.9-seed0" for name in ("line", "line_other")]
    stopped = WarmProcess(tmp_path / "log", command_line, *one)
    wait_until((folders[0] / ".lock").exists)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 128 + signal.SIGTERM
    assert "stopped" in stopped.said
    assert not (folders[0] / "eval.jsonl").exists()  # its process was stopped too
    with (folders[0] / ".lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its process has ended
    folders[1].mkdir()
    with (folders[1] / ".lock").open("w") as second:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # without --seeds, the recipe's own
        failed = reflectrl(*same, "--arms", "all", "seed=0", "--jobs", "2")
    assert failed.code == 1
    assert str(folders[1] / "sweep.log") in failed.err
    assert (folders[0] / "eval.jsonl").is_file()
    assert (folders[0] / "report.html").is_file()
    done = reflectrl(*one)
    assert (done.code, done.out.splitlines()[1].split()[:2]) == (0, ["line", "1"])
    assert "1 of 1 runs are done already" in done.err
    compared = reflectrl("compare", folders[0])
    assert compared.out == done.out


# ---- launchers -------------------------------------------------------------------------------------------------------

SLURM = Path(__file__).parents[2] / "recipes" / "slurm"


def run_script(script: Path, *arguments: str, **environment: str) -> str:
    """Run a script of a cluster in this machine's shell, and return its output."""
    path = f"{script.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, **environment}
    done = subprocess.run(["bash", str(script), *arguments], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(file: Path, does: str) -> None:
    """Write a program of the shell."""
    file.write_text(f"#!/bin/bash\n{does}\n")
    file.chmod(0o755)


@pytest.mark.slow
def test_a_job_array_has_one_task_per_run_that_is_not_done(tmp_path: Path) -> None:
    asked = ("run", "--recipe", "number_line/nano", "--runs", tmp_path / "the runs", "--seeds", "0-1")
    commands = reflectrl(*asked, "--launcher", "print", *TINY).out.splitlines()
    assert [shlex.split(each)[-1] for each in commands] == ["seed=0", "seed=1"]
    script, python, array = tmp_path / "array.sbatch", tmp_path / "python", ("--launcher", "slurm", "--jobs", "2")
    program(python, """printf '%s\\n' "$@\"""")  # what it was called with
    script.write_text(reflectrl(*asked, *array, *TINY).out.replace(sys.executable, str(python)))
    assert "#SBATCH --array=0-1%2\n" in script.read_text()
    run_script(script, SLURM_ARRAY_TASK_ID="1")
    made = tmp_path / "the runs" / "number_line-nano-seed1"
    words = (made / "sweep.log").read_text().splitlines()
    assert [sys.executable, *words] == shlex.split(commands[1])
    assert reflectrl(*words[2:]).code == 0
    assert (made / "report.html").is_file()
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    left = reflectrl(*asked, "--launcher", "print", *TINY).out.splitlines()
    assert left == commands[:1]


@pytest.mark.parametrize("script", sorted(SLURM.glob("*.sbatch")), ids=lambda script: script.stem)
def test_a_shipped_script_is_one_of_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.slow
def test_the_script_of_several_nodes_starts_two_processes_of_one_that_run_all_stages(tmp_path: Path) -> None:
    """What such processes do is in ``test_launch.py``."""
    script, told = (SLURM / "rlft_on_nodes.sbatch").read_text(), tmp_path / "told.py"
    assert "-m reflectrl run" in script
    (tmp_path / "rlft.sbatch").write_text(script.replace("-m reflectrl", "-m told"))
    says = "' '.join([os.environ['RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:]])"
    told.write_text(f"import os, sys\nos.write(1, ({says} + chr(10)).encode())\n")  # whole lines, with no part between
    program(tmp_path / "scontrol", "echo localhost")
    program(tmp_path / "srun", 'exec "$@"')
    given = {"SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "PROCESSES_PER_NODE": "2"}
    said = run_script(tmp_path / "rlft.sbatch", "number_line/nano", *TINY[:2], **given, PYTHONPATH=str(tmp_path))
    asked = f"2 run --recipe number_line/nano {TINY[0]} {TINY[1]}"
    assert sorted(said.splitlines()) == [f"0 {asked}", f"1 {asked}"]
