"""RLFT that reports to a tracker, which tests run in a separate process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_folders import unfinish
from trained_runs import play_stages, small_recipe

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.trackers import tracking

MEASURED = ("rlft.validation={every: 1, episodes: 4}", "rlft.terms.entropy={kind: target, coef: 0.05, target: 0.3}")
"""Overrides that give each iteration all metrics."""


def train(run: Path, *overrides: str) -> None:
    play_stages(small_recipe(*MEASURED, *overrides), run, "rlft")


def killed_after_three(run: Path) -> None:
    """Change a finished run to one that was killed after iteration 2, with a checkpoint after iteration 1."""
    shutil.rmtree(run / "checkpoints" / "rlft" / "checkpoint-4")
    shutil.rmtree(run / "policy")
    path = run / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    unfinish(run, "rlft")


def train_twice(run: Path, tracker: str) -> None:
    reported = (f"report_to={tracker}", "report_to.name=line", "report_to.group=seeds", "report_to.tags=[first, tiny]")
    train(run, *reported)
    killed_after_three(run)
    train(run, *reported)


def fail(run: Path) -> None:
    recipe = small_recipe("report_to=wandb")
    with pytest.raises(WorkFailed), tracking(recipe, run, "rlft"):
        raise WorkFailed("the disk is full.")


def train_without_a_login(run: Path) -> None:
    recipe = small_recipe("report_to=wandb")
    for stages in (STAGES, ("gen-data",), ("rlft",)):
        with pytest.raises(InvalidInput, match=r"log in\); log in with .*WANDB_MODE=offline"):
            play_stages(recipe, run, *stages)
    assert not run.exists()
