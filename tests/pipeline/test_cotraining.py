"""A reflector that RLFT trains, from the recipe to the evaluation, a loaded agent and an export."""

from __future__ import annotations

import shutil

import pytest
from safetensors.torch import load_file

import reflectrl as rl
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS, POLICY, POLICY_SFT, REFLECTOR, REFLECTOR_RLFT, training_episodes_file
from reflectrl.rollout.record import read_trajectories
from reflectrl.share.export import export_run

pytestmark = pytest.mark.slow

TRAINED = (
    "model.lora={r: 4, alpha: 8}",
    "players.reflector.trained=true",
    "players.reflector.temperature=1.0",
    "players.reflector.max_new_tokens=8",
    "rlft.update={kind: ppo, num_iterations: 2, num_minibatches: 1, target_kl: null}",
    "rlft.learning_rate=0.02",
    "rlft.validation={every: 2, episodes: 12}",
    "rlft.keep=last",
    "eval.policies=[rlft]",
    "eval.controls=[]",
)
ADAPTER = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def run(trained_run):
    return trained_run(*TRAINED)


def said(agent):
    env = rl.make_env("number_line", size=8)
    env.reset(seed=0)
    return agent.act(env.observation).reflection


def test_reflections_are_sampled_in_rlft_and_recorded_with_their_probabilities(run):
    lines = [line for _, line in read_jsonl(run / METRICS)]
    assert max(line["logprob_gap"] for line in lines) < 1e-4
    assert all(line["thought_kl"] > 0 for line in lines)
    _, played = read_trajectories(run / training_episodes_file(0))
    for turn in (turn for episode in played for turn in episode.turns):
        written = turn.decision.choice.written
        assert len(written.logprobs) == len(written.ids) <= 8
        assert not turn.said


def test_the_policy_is_advised_by_the_reflector_that_was_trained_with_it(run, tmp_path):
    before, after = (load_file(run / name / ADAPTER) for name in (REFLECTOR, REFLECTOR_RLFT))
    assert before.keys() == after.keys()
    assert any(not weight.equal(after[name]) for name, weight in before.items())
    agents = {name: rl.load_agent(run, policy=name) for name in (POLICY, POLICY_SFT)}
    words = {name: said(agent) for name, agent in agents.items()}
    assert words == {name: said(agent) for name, agent in agents.items()}  # greedy
    assert words[POLICY] != words[POLICY_SFT]
    played = read_trajectories(run / "trajectories" / "eval-rlft-local-greedy.jsonl")[1]
    assert all(turn.reflection is not None for episode in played for turn in episode.turns)
    exported = export_run(run, tmp_path / "export")
    assert said(rl.load_agent(exported)) == words[POLICY]
    moved = shutil.move(shutil.copytree(run, tmp_path / "copy"), tmp_path / "elsewhere")
    assert said(rl.load_agent(moved)) == words[POLICY]
