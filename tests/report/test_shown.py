"""What a run and its parts show of themselves in a notebook."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from chromium import chromium
from records import chose, turn_of
from run_folders import HOSTILE, episode, iteration, make_run
from trained_runs import TrainedRuns, small_recipe

import reflectrl as rl
from reflectrl.core import InvalidInput, Observation, Trajectory
from reflectrl.core.jsonl import decode
from reflectrl.report.notebook import Results, drawn, framed
from reflectrl.report.page import report_page, results_table
from reflectrl.report.runs import read_runs
from reflectrl.rollout.iteration import Iteration
from reflectrl.rollout.results import read_results


@pytest.mark.slow
def test_a_run_shows_what_the_report_does(trained_run: TrainedRuns, tmp_path: Path) -> None:
    folder = trained_run()
    page, run = report_page(read_runs([folder])), rl.Run(folder)
    shown = run._repr_html_()
    assert results_table(read_runs([folder])) in shown
    assert results_table(read_runs([folder])) in page
    svgs = re.findall(r"<svg.*?</svg>", shown)
    assert len(svgs) > 5
    assert [svg for svg in svgs if svg not in page] == []
    rows = run.evaluate()
    assert rows == read_results(folder / "eval.jsonl")
    assert isinstance(rows, Results)
    assert re.findall(r"<table.*?</table>", rows._repr_html_())[0] in shown
    agent = run.agent()._repr_html_()
    assert [part for part in ("in number_line: ", "LMReflector", "LMPolicy") if part not in agent] == []
    new = rl.Run(tmp_path / "new", small_recipe())
    assert "number_line-nano: not begun yet." in new._repr_html_()
    assert [*new.metrics().columns] == ["lesson"]


def test_two_arms_are_compared_as_by_the_command(tmp_path: Path) -> None:
    runs = []
    for number, won in enumerate((True, False)):
        played = {"sft": [episode()], "rlft": [episode(success=won)] * 4}
        runs.append(make_run(tmp_path / f"run{number}", played))
        (runs[-1] / "recipe.yaml").write_text(
            f"name: arm{number}\nenv: {{name: corridor}}\nrlft: {{gamma: 0.{number}}}\n"
        )
    compared = rl.compare([str(runs[0]), rl.Run(runs[1], "number_line/nano")])
    assert [each.mean for each in compared.summaries] == [1.0, 0.0]
    assert [name for name in ("| arm0 ", "| arm1 ", "arm0: ", "arm1: ") if f"\n{name}" not in repr(compared)] == []
    assert re.findall(r"<td>(arm\d)</td>", compared._repr_html_()) == ["arm0", "arm1"]
    with pytest.raises(InvalidInput, match="none of 2 runs has a row of policy base"):
        rl.compare(runs, policy="base")


def test_an_episode_shows_each_step_with_the_most_probable_actions() -> None:
    menu = ("up", "down", "left", "right", "wait")
    chosen = chose(1, "down", -0.5, 0.5, (0.1, 0.6, 0.05, 0.2, 0.05))
    turn = turn_of(Observation("You are at <3>.", menu), menu, "Go down.", chosen, 1.0)
    shown = Trajectory(episode().task, 0, (turn, turn), True, False, True)._repr_html_()
    assert "t-0: success, return +2.00" in shown
    assert shown.count("<pre>You are at &lt;3&gt;.</pre>") == 2
    assert "<strong>down</strong>" in shown
    assert "down 60%, right 20%, up 10%, left 5%</td>" in shown
    assert ">wrote<" not in shown
    alone = replace(turn, said={}, decision=replace(chosen, choice=replace(chosen.choice, probabilities=())))
    shown = Trajectory(episode().task, 0, (alone,), True, False, True)._repr_html_()
    assert ">reflection<" not in shown
    assert ">probabilities<" not in shown


def test_a_trainer_shows_the_curves_of_its_iterations() -> None:
    line = decode(Iteration, iteration(0), "line")
    points = [line, replace(line, iteration=1, success=1.0)]
    assert "Success rate" in drawn(SimpleNamespace(iterations=points))
    assert "No iteration of training yet." in drawn(SimpleNamespace(iterations=[]))


def test_no_text_of_an_environment_becomes_markup(tmp_path: Path) -> None:
    played = episode(HOSTILE, text=HOSTILE, reflection=HOSTILE, menu=(HOSTILE, HOSTILE))
    folder = make_run(tmp_path / "<script>run", {"rlft": [played]}, [iteration(0, lesson=HOSTILE)])
    for shown in (played._repr_html_(), rl.Run(folder, "number_line/nano")._repr_html_()):
        assert "<script>" not in shown
        assert "\x1b" not in shown


@pytest.mark.slow
def test_the_style_holds_inside_only() -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.set_content(f'<table><tr><td id="own">1</td></tr></table>{framed("<p class=note>2</p>")}')
        script = "name => getComputedStyle(document.querySelector(name))"
        for name, what, value in (
            ("body", "maxWidth", "none"),
            ("#own", "borderBottomWidth", "0px"),
            (".note", "fontSize", "13.6px"),
            (".reflectrl", "backgroundColor", "rgb(255, 255, 255)"),
        ):
            assert page.evaluate(f"({script})('{name}').{what}") == value
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(f"({script})('.reflectrl').backgroundColor") == "rgb(18, 22, 28)"
