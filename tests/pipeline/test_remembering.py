"""A run whose prompts show past states, rewards and carried words: the same at play, by the agent, and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_server import in_process, refusal
from note import Note
from records import prompts_of
from trained_runs import TrainedRuns, play_stages

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, Observation, Trajectory, register_env
from reflectrl.core.run_files import RESULTS
from reflectrl.data_gen import read_rows
from reflectrl.data_gen.rows import policy_row, read_samples
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results
from reflectrl.share.server import load_served_agent

pytestmark = pytest.mark.slow
REMEMBERING = (
    "prompt.history={steps: 2, show: transitions, reward: true}",
    "players.reflector.carry=true",
    "players.reflector.max_new_tokens=12",
    "eval.policies=[rlft]",
    "eval.controls=[]",
)


@pytest.fixture(scope="module")
def run(trained_run: TrainedRuns) -> Path:
    return trained_run(*REMEMBERING)


@pytest.fixture(scope="module")
def agent(run: Path) -> Agent:
    return load_agent(run, greedy=False)


@pytest.fixture(scope="module")
def played(agent: Agent) -> Trajectory:
    env = NumberLine(size=8)
    episodes = [Episode(task, 3) for task in env.tasks("test")]
    done = rollout([env], episodes, policy=agent.policy, seats=agent.seats, layout=agent.layout)
    return max(done, key=lambda each: len(each.turns))


def known(played: Trajectory, step: int) -> dict[str, Any]:
    """Return what a client knows of the steps before, by the names of ``Agent.act``."""
    turns = played.turns[:step]
    return {
        "past": played.actions[:step],
        "visited": [turn.observation for turn in turns],
        "rewards": [turn.reward for turn in turns],
        "before": {"reflector": turns[-1].reflection} if turns else {},
        "seed": 3,
    }


def test_rows_and_samples_of_gen_data_show_what_play_shows(run: Path) -> None:
    header, taught = read_trajectories(run / "data" / "teacher.jsonl")
    shown = {prompt.text for each in taught for pair in prompts_of(each, header.prompt) for prompt in pair}
    rows = [row for name in ("reflector", "policy") for row in read_rows(run / "sft" / f"{name}.jsonl")]
    assert {row.prompt.text for row in rows if not row.negative} <= shown
    _, mistakes = read_samples(run / "data" / "negatives.jsonl")
    texts = [row.prompt.text for row in rows if row.negative and row.player == "policy"]
    assert [policy_row(each, header.prompt, {"reflector": each.reflection}).prompt.text for each in mistakes] == texts
    assert any("(reward -" in text for text in texts)


def test_training_acts_in_the_prompts_that_it_scores(run: Path) -> None:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert metrics
    assert max(abs(row["kl"]) for row in metrics) < 1e-5


def test_step_by_step_an_agent_plays_what_a_rollout_plays(agent: Agent, played: Trajectory) -> None:
    assert len(played.turns) > 2
    for step, turn in enumerate(played.turns):
        move = agent.act(turn.observation, **known(played, step))
        assert (move.reflection, move.decision.action) == (turn.reflection, turn.decision.action)
        assert move.decision.logprob == pytest.approx(turn.decision.logprob, abs=1e-5)


def test_so_it_does_over_http_and_what_is_missing_is_refused(run: Path, played: Trajectory) -> None:
    with in_process(load_served_agent(run, greedy=False)) as client:
        health = client.get("/health").json()
        assert health["history"] == {"steps": 2, "show": "transitions", "reward": True}
        assert health["carry"]
        said: dict[str, str] = {}
        for step, turn in enumerate(played.turns):
            facts = known(played, step)
            request = {
                "observation": turn.observation.text,
                "actions": turn.observation.actions,
                "history": facts["past"],
                "visited": [each.text for each in facts["visited"]],
                "rewards": facts["rewards"],
                "before": said,
                "seed": 3,
            }
            reply = client.post("/act", json=request).json()
            said = reply["said"]
            assert (reply["action"], said) == (turn.decision.action, {"reflector": turn.reflection})
        wrong = {
            "visited": ([], "0 visited were given with"),
            "rewards": ([0.0], "1 rewards were given with"),
            "before": ({}, "reads its reflection of the step before"),
        }
        for name, (value, fact) in wrong.items():
            status, sentence = refusal(client.post("/act", json={**request, name: value}))
            assert status == 422
            assert fact in sentence


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda facts: facts["visited"].pop(), "visited were given with"),
        (lambda facts: facts["rewards"].append(0.0), "rewards were given with"),
        (lambda facts: facts["before"].clear(), "none was given with"),
        (lambda facts: facts["before"].update(planner="Go."), "'planner'"),
    ],
)
def test_a_past_that_does_not_fit_together_is_refused(
    change: Callable[[dict[str, Any]], object], fact: str, agent: Agent, played: Trajectory
) -> None:
    facts = known(played, 2)
    change(facts)
    with pytest.raises(InvalidInput, match=fact):
        agent.act(played.turns[2].observation, **facts)


def test_words_that_are_given_need_none_before(agent: Agent, played: Trajectory) -> None:
    facts = {**known(played, 2), "before": {}}
    assert agent.act(played.turns[2].observation, **facts, said={"reflector": "Add."}).reflection == "Add."


def test_an_agent_without_past_states_checks_their_number(trained_run: TrainedRuns) -> None:
    forgetful, here = load_agent(trained_run()), Observation("Number 2, target 6.", ("add one", "subtract one"))
    alone = forgetful.act(here, ["add one"])
    told = forgetful.act(here, ["add one"], visited=[here], rewards=[0.0])
    assert told.decision.logprob == pytest.approx(alone.decision.logprob, abs=1e-5)
    with pytest.raises(InvalidInput, match="2 visited .* or none: this agent does not read them"):
        forgetful.act(here, ["add one"], visited=[here, here])


@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        ((), 0.0, 0.6),
        (("prompt.history={steps: 3, show: transitions}", "players.reflector.player=none"), 0.8, 1.0),
        (("players.reflector.carry=true",), 0.8, 1.0),
    ],
    ids=["past actions", "past states", "carried words"],
)
def test_only_a_memory_acts_on_what_was_shown_once(
    overrides: tuple[str, ...], least: float, most: float, tmp_path: Path
) -> None:
    register_env("note", Note)
    steps = ("sft.reflector.steps=120", "sft.policy.steps=120", "data.samples=240", "data.noise=0", "rlft=null")
    asked = ("eval.policies=[sft]", "eval.controls=[]", "eval.episodes=60")
    play_stages(load_recipe("number_line/nano", ["env.name=note", *steps, *asked, *overrides]), tmp_path / "run")
    [row] = [row for row in read_results(tmp_path / "run" / RESULTS) if row.mode == "sampled"]
    assert least <= row.metrics.success <= most
