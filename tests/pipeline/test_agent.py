"""The trained players of a run, asked for one step at a time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_folders import forget_digests
from trained_runs import TrainedRuns

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, Observation, Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.rollout import Episode, rollout

STATE = Observation("Number 3, target 5.", ("add one", "subtract one"))


@pytest.fixture(scope="module")
def run(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture(scope="module")
def agent(run: Path) -> Agent:
    return load_agent(run, greedy=False)


def by_rollout(agent: Agent, seed: int) -> Trajectory:
    env = NumberLine()
    episodes = [Episode(env.tasks("test")[0], seed)]
    return rollout([env], episodes, policy=agent.policy, seats=agent.seats, layout=agent.layout)[0]


@pytest.mark.parametrize("seed", range(3))
def test_step_by_step_it_plays_what_a_rollout_plays_with_the_same_seed(agent: Agent, seed: int) -> None:
    played = by_rollout(agent, seed)
    env = NumberLine()
    env.reset(seed=seed, options={"task": env.tasks("test")[0]})
    for step, turn in enumerate(played.turns):
        move = agent.act(env.observation, played.actions[:step], seed=seed)
        assert (move.reflection, move.menu.actions, move.decision) == (turn.reflection, turn.menu, turn.decision)
        env.step(move.decision.action)


def test_words_that_are_given_are_not_asked_for(agent: Agent) -> None:
    move = agent.act(STATE, reflection="Add one.")
    assert move.reflection == "Add one."
    assert move.decision.choice.probabilities != agent.act(STATE, reflection="Go down.").decision.choice.probabilities


def test_the_last_policy_plays_unless_another_is_named(run: Path, tmp_path: Path) -> None:
    assert load_agent(run).who == f"policy of {run}"
    assert load_agent(run, policy="policy-sft").who == f"policy-sft of {run}"
    before = tmp_path / "before"
    shutil.copytree(run, before, ignore=shutil.ignore_patterns("policy"))
    forget_digests(before)
    assert load_agent(before).who == f"policy-sft of {before}"
    shutil.rmtree(before / "policy-sft")
    with pytest.raises(InvalidInput, match="has no policy yet; run `reflectrl sft` for it first"):
        load_agent(before)
    with pytest.raises(InvalidInput, match=r"policy 'polcy' was asked for; did you mean 'policy'"):
        load_agent(run, policy="polcy")


def test_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is no run folder \(it has no recipe.yaml\)"):
        load_agent(tmp_path)


@pytest.mark.parametrize(
    ("actions", "wrong"),
    [
        ((), "offered no legal action"),
        (("add one", "add one"), "repeats an action"),
        (tuple(f"add {number}" for number in range(3)), "has 3 actions, but max_actions is 2"),
        (("add\none",), "span lines"),
    ],
)
def test_a_state_that_no_environment_may_show_is_refused(agent: Agent, actions: tuple[str, ...], wrong: str) -> None:
    with pytest.raises(InvalidInput, match=f"the state cannot be played: it .*{wrong}"):
        agent.act(Observation("Number 3, target 5.", actions))


def test_a_reflector_that_needs_the_environment_wants_its_words_given(run: Path) -> None:
    recipe = load_recipe(str(run / "recipe.yaml"), ["players.reflector.player=expert", "eval.controls=[]"])
    agent = load_agent(run, recipe=recipe)
    with pytest.raises(InvalidInput, match="trained with the reflections of the expert"):
        agent.act(STATE)
    assert agent.act(STATE, reflection="Add one.").decision.action in STATE.actions
