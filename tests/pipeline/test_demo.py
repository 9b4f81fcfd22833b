"""What ``make demo`` shows: RLFT and words are each worth 20 points, and the verdict says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import reflectrl
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.core.run_files import STAGES
from reflectrl.report.compare import Rows
from reflectrl.report.runs import read_runs

BOTH = ("safe/nano", "safe/nano_no_reflection")


@pytest.mark.slow
def test_rlft_and_words_are_each_worth_20_points(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("speaking", "silent")]
    for recipe, run in zip(BOTH, runs, strict=True):
        play_stages(load_recipe(recipe), run, *STAGES)
    speaking, silent = ({name: row.metrics.success for name, row in Rows().of(run).items()} for run in read_runs(runs))
    assert speaking["rlft"] >= max(0.9, speaking["sft"] + 0.2, silent["rlft"] + 0.2)
    told = reflectrl("report", *runs, "--out", tmp_path / "both.html", "--episode").out
    assert "Why: the state tells what to do" in told
    assert "after RLFT, with blank" in told
