"""What the sft stage says and leaves behind of its checks on held-out rows."""

from __future__ import annotations

import re
import shutil

import pytest
from trained_runs import play_stages, small_recipe

from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.core.run_files import STAGES
from reflectrl.report import report
from reflectrl.report.runs import read_runs
from reflectrl.rollout.iteration import SFTProgress, best_check


@pytest.mark.slow
@pytest.mark.parametrize("reflector", ["local", "self"])
def test_the_checks_of_both_players_are_shown(reflector, trained_run, tmp_path):
    data = trained_run(f"players.reflector.player={reflector}", stages=STAGES[:1])
    run = shutil.copytree(data, tmp_path / "run")
    shown = play_stages(
        small_recipe(f"players.reflector.player={reflector}", "sft.reflector.steps=12", "sft.policy.steps=25"),
        run,
        "sft",
    )
    files = {name: run / "sft" / f"{name}-training.jsonl" for name in ("reflector", "policy")}
    checks = {
        name: [decode(SFTProgress, value, where) for where, value in read_jsonl(file)] for name, file in files.items()
    }
    single = reflector == "self"
    assert [check.step for check in checks["policy"]] == [10, 20, 25]
    assert [check.step for check in checks["reflector"]] == ([10, 20, 25] if single else [10, 12])
    [found] = read_runs([run])
    assert {name: tuple(each) for name, each in checks.items()} == found.sft
    kept = checks["policy"][best_check(checks if single else {"policy": checks["policy"]})]
    told = f"of the policy {kept.accuracy:.0%}" if single else f"held-out accuracy {kept.accuracy:.0%}"
    line = next(line for line in shown.splitlines() if line.startswith(f"sft {'both' if single else 'policy'}"))
    assert "ended at its bound, step 25; kept step" in line
    assert told in line
    page = report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    table = page[page.index("<h4>SFT</h4>") :].partition("</table>")[0]
    assert len(re.findall("<tr", table)) == 1 + 2 * 3
    assert f"{kept.held_out_loss:.3f}" in table


@pytest.mark.slow
def test_where_too_few_episodes_were_taught_it_is_said(tmp_path):
    shown = play_stages(small_recipe("data.samples=20"), tmp_path / "run", *STAGES[:2])
    assert shown.count("too few to hold any out") == 2
    assert not [*(tmp_path / "run").glob("sft/*-training.jsonl")]
