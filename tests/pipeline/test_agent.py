"""Agents: trained players of a run that play one step at a time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from both import Both
from run_folders import forget_digests
from scripted_endpoint import ScriptedEndpoint
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, Observation, register_env
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.pipeline.live_play import trained
from reflectrl.report.runs import read_runs
from reflectrl.report.verdict import verdict
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.loop import evaluate
from reflectrl.share.export import export_run

pytestmark = pytest.mark.slow

STATE = Observation("Number 3, target 5.", ("add one", "subtract one"))


@pytest.fixture(scope="module")
def run(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture(scope="module")
def agent(run: Path) -> Agent:
    return load_agent(run, greedy=False)


def test_words_that_are_given_are_not_asked_for(agent: Agent) -> None:
    move = agent.act(STATE, said={"reflector": "Add one."})
    assert move.reflection == "Add one."
    down = agent.act(STATE, said={"reflector": "Go down."})
    assert move.decision.choice.probabilities != down.decision.choice.probabilities
    with pytest.raises(InvalidInput, match="'planner' were given; known: reflector"):
        agent.act(STATE, said={"planner": "Add one."})


def test_a_plan_that_is_said_again_is_made_once(run: Path, endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda chat: f"Plan {chat[1]['content'].count('add one')} for {len(endpoint.requests)}."
    shutil.copytree(run, tmp_path / "run")
    forget_digests(tmp_path / "run")
    planner = f"players.planner={{player: remote, endpoint: {{base_url: {endpoint.url}}}}}"
    agent = load_agent(tmp_path / "run", recipe=load_recipe(str(run / "recipe.yaml"), [planner]))
    env, episodes = NumberLine(), [Episode(NumberLine().tasks("test")[1], 3)]
    [played] = rollout([env], episodes, policy=agent.policy, seats=agent.seats, layout=agent.layout)
    assert len(played.turns) > 1
    assert len(endpoint.requests) == 1
    env.reset(seed=3, options={"task": episodes[0].task})
    said: dict[str, str] = {}
    for step, turn in enumerate(played.turns):
        move = agent.act(env.observation, played.actions[:step], said=said, seed=3)
        assert (move.said, move.decision) == (turn.said, turn.decision)
        said = {"planner": played.turns[0].said["planner"].text}
        env.step(move.decision.action)
    assert len(endpoint.requests) == 1  # the first step's plan was known
    assert not (tmp_path / "run" / "calls").exists()


def test_the_last_policy_plays_unless_another_is_named(run: Path, tmp_path: Path) -> None:
    assert load_agent(run).who == f"policy of {run}"
    assert load_agent(run, policy="policy-sft").who == f"policy-sft of {run}"
    before = tmp_path / "before"
    shutil.copytree(run, before, ignore=shutil.ignore_patterns("policy"))
    forget_digests(before)
    assert load_agent(before).who == f"policy-sft of {before}"
    shutil.rmtree(before / "policy-sft")
    with pytest.raises(InvalidInput, match="reflectrl sft"):
        load_agent(before)
    with pytest.raises(InvalidInput, match=r"'polcy' .*'policy'"):
        load_agent(run, policy="polcy")
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        load_agent(tmp_path)


def test_an_agent_is_played_as_validation_found_better(tmp_path: Path) -> None:
    register_env("both", "both:Both")
    changes = [
        "env.name=both",
        "env.options.size=30",
        "prompt.history=0",
        "players.reflector.player=none",
        "sft.enabled=false",
    ]
    quick = ["rlft.lessons.0.iterations=1", "rlft.validation={episodes: 24}", "rlft.learning_rate=1e-9"]
    alike = "rlft.sharpen=[1]"  # leaves the logits as they are, which is not worth a word
    recipe = small_recipe(*changes, *quick, alike, "eval.controls=[]", "eval.policies=[rlft]")
    said = play_stages(recipe, tmp_path / "run")
    assert "validation 100% (start 100%, expert 100%)" in said
    shown = "sampled actions (validation 100 % sampled, 0 % greedy)"
    for folder in (tmp_path / "run", export_run(tmp_path / "run")):
        agent = load_agent(folder)
        assert (agent.greedy, agent.way_to_play) == (False, shown)
        assert repr(agent) == f"<Agent policy of {folder}: {shown}>"
        brief = {"options": {"size": 30}, "episodes": 24}
        assert evaluate(agent, Both, **brief).success > 0.9
        assert evaluate(load_agent(folder, greedy=True), Both, **brief).success == 0
        assert trained(folder, None, {}).who.endswith(shown)
    assert f"Played with {shown}" in (tmp_path / "run/export/README.md").read_text()
    [told] = [line for line in verdict(read_runs([tmp_path / "run"])) if "is played with" in line]
    rates = "on split test, 100 % succeeded with sampled actions, 0 % greedily"
    assert told == f"run is played with {shown} unless asked otherwise: {rates}."


@pytest.mark.parametrize(
    ("actions", "fact"), [((), "no legal action"), (("0", "1", "2"), "3 actions, but max_actions is 2")]
)
def test_a_state_that_no_environment_may_show_is_refused(agent: Agent, actions: tuple[str, ...], fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        agent.act(Observation("Number 3, target 5.", actions))


@pytest.mark.parametrize("past", ["add one", [None]])
def test_past_actions_that_are_no_list_of_texts_are_refused(agent: Agent, past: list[str]) -> None:
    with pytest.raises(InvalidInput, match="a list of texts"):
        agent.act(STATE, past=past)


def test_a_reflector_that_needs_the_environment_wants_its_words_given(run: Path) -> None:
    recipe = load_recipe(str(run / "recipe.yaml"), ["players.reflector.player=expert", "eval.controls=[]"])
    agent = load_agent(run, recipe=recipe)
    with pytest.raises(InvalidInput, match=f"policy of {run}.*expert as reflector"):
        agent.act(STATE)
    assert agent.act(STATE, said={"reflector": "Add one."}).decision.action in STATE.actions
