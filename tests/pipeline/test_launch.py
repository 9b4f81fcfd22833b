"""Stages in several processes, as `torchrun` starts them: what they write is what one process writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from prepared_runs import files
from trained_runs import TrainedRuns, play_stages, small_recipe
from warm_processes import command_line, start_ranks

from reflectrl.core.run_files import unfinished_files
from reflectrl.pipeline import STAGES

pytestmark = pytest.mark.slow

EVALUATED = (
    "eval.policies=[random, sft, rlft]",
    "eval.controls=[blank, shuffled]",
    "eval.greedy=true",
    "eval.trials.policies=[rlft]",
    "eval.trials.count=2",
    "sft.policy.steps=25",
)


def in_ranks(run: Path, stage: str, *overrides: str, recipe: str = "number_line/nano", ranks: int = 2) -> list[str]:
    """Run a stage in several processes; return what each of them has said."""
    given = small_recipe(*overrides, name=recipe)
    (run.parent / "recipe.yaml").write_text(given.model_dump_json())
    command = (stage, "--recipe", str(run.parent / "recipe.yaml"), "--runs", str(run.parent), "--run", run.name)
    started = start_ranks(run.parent, command_line, *command, ranks=ranks)
    for process in started:
        assert process.wait() == 0, process.said
    return [process.said for process in started]


def test_an_evaluation_writes_the_same_bytes_in_one_two_and_four_processes(
    trained_run: TrainedRuns, tmp_path: Path
) -> None:
    name = "rap/nano_trials"
    before = trained_run(*EVALUATED, name=name, stages=STAGES[:3])
    runs = [shutil.copytree(before, tmp_path / str(ranks) / "run") for ranks in (1, 2, 4)]
    play_stages(small_recipe(*EVALUATED, name=name), runs[0], "eval")
    for run, ranks in ((runs[1], 2), (runs[2], 4)):
        said = in_ranks(run, "eval", *EVALUATED, recipe=name, ranks=ranks)
        assert "success on" in said[0]
        assert set(said[1:]) == {""}
    alone, *others = ({**files(run), "recipe.yaml": b""} for run in runs)
    assert {path for path in alone if path.startswith("trajectories/eval-rlft-shuffled")}
    assert "trials.jsonl" in alone
    for there in others:
        assert {path for path in alone if there.get(path) != alone[path]} == set()
        assert there.keys() == alone.keys()
