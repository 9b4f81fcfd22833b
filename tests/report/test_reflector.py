"""The audit of a reflector: its words against the expert's, and the actions that follow right and wrong ones."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from command_line import reflectrl, refused
from records import reflector_prompt_of
from run_folders import evaluated, write_ledger
from trained_runs import TrainedRuns

from reflectrl.core import Choice, Decision, make_env
from reflectrl.envs.number_line.env import DOWN, UP
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.report.judged import JudgedStep, audit_reflector, judged_steps, shares, without_verdict
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import Seat, reflecting

LAYOUT = PromptFormat()


class Script:
    """Policy that plays given actions, one per step."""

    def __init__(self, *actions: str) -> None:
        self._actions = iter(actions)

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002
        """Return the next action."""
        action = next(self._actions)
        return [Decision(action, 0.0, 0.0, Choice(views[0].menu.actions.index(action)))]


def test_words_are_compared_with_the_expert_s_and_actions_with_its_judgement() -> None:
    env = make_env("number_line", size=8)
    tasks = [task for split in env.splits for task in env.split_tasks(split)]
    task = next(task for task in tasks if (task.options["start"], task.options["target"]) == (2, 4))
    words = iter(
        ("the  target is HIGHER.", "Mistake. The target is higher.", "Good. The target is higher.", "The target is up.")
    )
    seats = reflecting(ScriptedReflector(lambda _: next(words)))
    [played] = rollout([env], [Episode(task, 0)], policy=Script(UP, DOWN, UP, UP), seats=seats, layout=LAYOUT)
    taught = frozenset({reflector_prompt_of(LAYOUT, played.turns[0].observation).text})
    found = list(judged_steps(make_env("number_line", size=8), LAYOUT, played, taught))
    assert [step.taught for step in found] == [True, False, False, False]
    # the reflector reports a mistake after the right action, up, and none after the wrong one, down
    assert [step.right for step in found] == [True, False, False, False]
    assert [step.standing_right for step in found] == [True, True, True, False]
    assert [step.good for step in found] == [True, False, True, True]
    assert all(step.success for step in found)


def test_a_prompt_holds_the_words_that_the_reflector_read() -> None:
    env = make_env("number_line", size=8)
    read: list[str] = []

    def reflect(prompt: str) -> str:
        read.append(prompt)
        return "The target is higher."

    planner = Seat("planner", ScriptedReflector(lambda _: "Walk to the target."))  # speaks at the start of an episode
    seats = [planner, *reflecting(ScriptedReflector(reflect))]
    task = next(task for task in env.split_tasks("train") if task.options["start"] + 2 < task.options["target"])
    [played] = rollout([env], [Episode(task, 0)], policy=Script(*[UP] * 8), seats=seats, layout=LAYOUT)
    assert len(read) == len(played.turns) > 2
    judged = judged_steps(make_env("number_line", size=8), LAYOUT, played, frozenset(read))
    assert all(step.taught for step in judged)


def test_judgements_of_all_environments_are_left_out() -> None:
    assert without_verdict("good. the target is lower.") == "the target is lower."
    assert without_verdict("mistake: that changed nothing. no tomato seen yet.") == "no tomato seen yet."
    assert without_verdict("taxi at row 1.") == "taxi at row 1."


def test_shares_are_of_steps_and_of_whole_episodes() -> None:
    right = JudgedStep(taught=True, right=True, standing_right=True, good=True, success=True)
    misled = JudgedStep(taught=False, right=False, standing_right=False, good=False, success=False)
    lost = JudgedStep(taught=True, right=True, standing_right=True, good=True, success=False)
    assert asdict(shares([[right, right], [lost, misled]])) == {
        "steps": 4,
        **{"right": 0.75, "right_taught": 1.0, "right_new": 0.0, "good_when_right": 1.0, "good_when_wrong": 0.0},
        **{"success_never_wrong": 1.0, "success_once_wrong": 0.0},
    }


@pytest.mark.slow
def test_the_command_has_a_row_for_each_policy_that_read_reflections(trained_run: TrainedRuns) -> None:
    run = trained_run()
    found = json.loads(reflectrl("audit-reflector", run, "--format", "json").out)
    assert [(row["policy"], row["mode"], row["split"]) for row in found] == [
        (policy, mode, "test") for policy in ("sft", "rlft") for mode in ("sampled", "greedy")
    ]
    for row in found:
        _, episodes = read_trajectories(run / f"trajectories/eval-{row['policy']}-local-{row['mode']}.jsonl")
        assert row["steps"] == sum(len(episode.turns) for episode in episodes)
        assert 0 <= row["right"] <= 1
    stored = {row.policy: row.audit for row in read_results(run / "eval.jsonl") if row.audit}
    assert set(stored) == {"sft", "rlft"}  # the evaluation has few episodes, all of which it audits
    for row in found:
        if row["mode"] == "sampled":
            assert asdict(stored[row["policy"]]).items() <= row.items()
    shown = reflectrl("audit-reflector", run).out
    assert re.search(rf"^rlft +sampled +test +{found[2]['steps']} +{found[2]['right']:.0%} ", shown, re.MULTILINE)
    assert "raise sft.reflector.steps or data.samples" in shown
    page = report_page(read_runs([run]))  # which has what the evaluation has audited
    table = page.partition('aria-label="Reflections"')[2].partition("</table>")[0]
    assert re.findall("<td>(.*?)</td>", table) == ["sft", "sampled", "test", "rlft", "sampled", "test"]
    assert f'<td class="number">{found[2]["right"]:.0%}</td>' in table


@pytest.mark.slow
def test_a_row_is_taught_if_sft_used_it(trained_run: TrainedRuns) -> None:
    taught = [step.taught for audit in audit_reflector(trained_run()) for each in audit.episodes for step in each]
    assert any(taught)
    few = audit_reflector(trained_run("sft.reflector.max_rows=1"))
    assert sum(step.taught for audit in few for each in audit.episodes for step in each) < sum(taught) / 4
    remembering = audit_reflector(trained_run(name="rap/nano"))
    assert any(step.taught for audit in remembering for each in audit.episodes for step in each)


@pytest.mark.slow
def test_a_single_player_s_words_are_compared_too(trained_run: TrainedRuns) -> None:
    run = trained_run("players.reflector.player=self", "eval.greedy=false", "eval.policies=[sft, rlft]")
    assert [row.row.reflections for row in audit_reflector(run)] == ["self", "self"]


def test_only_taught_words_are_compared_with_the_experts(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    silent = evaluated(tmp_path / "silent", 0.8, 0.5, "players.reflector.player=none")
    assert "has no reflections to audit" in refused("audit-reflector", silent)
    server = "data.endpoint.base_url=http://127.0.0.1:1/v1"
    taught = evaluated(tmp_path / "taught", 0.8, 0.5, "data.teacher=openai", server)
    assert "learned the words of a chat model (data.teacher=openai)" in refused("audit-reflector", taught)


def test_rows_of_an_earlier_evaluation_are_not_replayed(tmp_path) -> None:
    run = evaluated(tmp_path / "run", 0.8, 0.5)
    write_ledger(run, eval={"done": False, "inputs": {}})
    assert f"{run}: the rows are of an earlier evaluation" in refused("audit-reflector", run)
