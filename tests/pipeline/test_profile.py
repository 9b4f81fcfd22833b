from __future__ import annotations

import io
import time

from rich.console import Console
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import load_recipe
from reflectrl.pipeline import run_stages
from reflectrl.pipeline.console import Reporter

OVERRIDES = ["sft.reflector.steps=4", "sft.policy.steps=4", "rlft.stages.0.iterations=3", "rlft.episodes=4"]


def test_rlft_prints_where_the_time_of_an_iteration_went(tmp_path):
    quiet = Reporter(Console(file=io.StringIO()))
    run_stages(
        load_recipe("number_line/nano", OVERRIDES), tmp_path / "number_line-nano", ("gen-data", "sft"), reporter=quiet
    )
    command = ["rlft", "--recipe", "number_line/nano", "--runs", str(tmp_path), "--profile", *OVERRIDES]
    began = time.monotonic()
    done = CliRunner().invoke(app, command)
    took = time.monotonic() - began
    assert done.exit_code == 0, done.output
    lines = {line.rsplit(maxsplit=3)[0].strip(): line.split() for line in done.stdout.splitlines() if "%" in line}
    for name in ("policy: act", "reflector: write", "update: forward", "update: backward", "environments: play"):
        assert name in lines
    (total,) = (float(line[-2]) for line in lines.values() if line[0] == "all")
    assert 0 < total < took
    assert "mean of 2 iterations, without the first" in done.stdout
    again = CliRunner().invoke(app, command)
    assert "no iteration was trained" in again.stdout
