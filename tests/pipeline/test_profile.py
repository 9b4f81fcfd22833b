from __future__ import annotations

import shutil

import pytest
from trained_runs import SMALL
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.pipeline import STAGES


@pytest.mark.slow
def test_rlft_prints_where_the_time_of_an_iteration_went(trained_run, tmp_path):
    shutil.copytree(trained_run(stages=STAGES[:2]), tmp_path / "number_line-nano")
    command = ["rlft", "--recipe", "number_line/nano", "--runs", str(tmp_path), "--profile", *SMALL]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = {line.rsplit(maxsplit=3)[0].strip(): line.split() for line in done.stdout.splitlines() if "%" in line}
    for name in ("policy: act", "reflector: write", "update: forward", "update: backward", "environments: play"):
        assert name in lines
    (total,) = (float(line[-2]) for line in lines.values() if line[0] == "all")
    assert total > 0
    assert "mean of 3 iterations, without the first" in done.stdout
    again = CliRunner().invoke(app, command)
    assert "no iteration was trained" in again.stdout
