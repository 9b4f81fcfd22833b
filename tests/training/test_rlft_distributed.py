from __future__ import annotations

import json
from statistics import fmean

import pytest
import torch
from rlft_on_ranks import OPTIONS, train
from safetensors.torch import load_file
from tiny import LAYOUT, encoder, gpt2
from tiny_rlft import config
from warm_processes import start_ranks

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import decode
from reflectrl.engine.head import add_choice_head
from reflectrl.models.encode import action_distribution
from reflectrl.rollout import episode_metrics
from reflectrl.training.batch import Estimator, step_samples

pytestmark = pytest.mark.slow
RANKS = 2
EPISODES = 4
"""Of each rank and iteration."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes left behind."""
    folder = tmp_path_factory.mktemp("ranks")
    for process in start_ranks(folder, train, folder):
        assert process.wait() == 0, process.said
    return folder


@pytest.fixture(scope="module")
def told(folder):
    return [json.loads((folder / f"told_{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def episodes(told):
    """Of each rank, in the order played."""
    return [[decode(Trajectory, row, "told") for row in rank["episodes"]] for rank in told]


def weights(folder, name):
    return [load_file(folder / f"{name}_{rank}.safetensors") for rank in range(RANKS)]


def test_all_ranks_end_with_the_same_weights_and_they_have_moved(folder):
    first, second = weights(folder, "straight")
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    assert not torch.allclose(first["lm_head.weight"], gpt2(spread=0.1).lm_head.weight, atol=1e-4)


def test_ranks_play_different_episodes(episodes):
    first, second = ({episode.seed for episode in rank} for rank in episodes)
    assert len(first) == len(second) == 4 * EPISODES
    assert not first & second
    assert [e.task for e in episodes[0]] != [e.task for e in episodes[1]]


def gradient_step(episodes):
    """Weights after one SGD step on ``episodes`` alone, by another route than the trainer's."""
    model = gpt2(spread=0.1)
    add_choice_head(model, value_head=True)
    samples = step_samples(episodes, LAYOUT, Estimator(0.9, "value", 1.0, True, {"env": 1.0}))
    batch = encoder().batch([sample.view.prompt for sample in samples], torch.device("cpu"))
    distribution, values = action_distribution(model, batch)
    chosen = distribution.log_prob(torch.tensor([sample.decision.choice.index for sample in samples]))
    advantages, returns = (torch.tensor([getattr(s, name) for s in samples]) for name in ("advantage", "target"))
    (-(advantages * chosen).mean() + 0.5 * ((values - returns) ** 2).mean()).backward()
    return {
        name: weight.detach() - (0 if weight.grad is None else OPTIONS["learning_rate"] * weight.grad)
        for name, weight in model.named_parameters()
    }


def test_an_update_is_the_mean_of_the_gradients_of_the_ranks(folder, episodes):
    one, two = (gradient_step(rank[:EPISODES]) for rank in episodes)
    found = load_file(folder / "run" / "checkpoint-1" / "model.safetensors")
    alone = 0.0
    for name, weight in found.items():
        torch.testing.assert_close(weight, (one[name] + two[name]) / 2, rtol=0, atol=1e-5)
        alone = max(alone, float((weight - one[name]).abs().max()))
    assert alone > 1e-3  # not the gradient of one rank only


def test_an_iteration_describes_the_episodes_of_all_ranks(told, episodes):
    assert not told[1]["iterations"]  # the main process tells
    steps = 0
    for number, iteration in enumerate(told[0]["iterations"]):
        played = [rank[number * EPISODES : (number + 1) * EPISODES] for rank in episodes]
        steps += sum(len(episode.turns) for rank in played for episode in rank)
        assert iteration["env_steps"] == steps
        assert iteration["success"] == fmean(episode_metrics(rank).success for rank in played)
    assert len(told[0]["iterations"]) == 4


def test_ranks_go_on_from_a_checkpoint_as_if_nothing_had_happened(folder, told):
    assert told[0]["resumed"] == told[0]["iterations"][2:]
    for straight, again in zip(weights(folder, "straight"), weights(folder, "again"), strict=True):
        assert all(torch.equal(weight, again[name]) for name, weight in straight.items())


# ---- divided models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"), [({"fsdp": True}, "FSDP"), ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "DeepSpeed")]
)
def test_sharding_is_refused(tmp_path, options, name):
    with pytest.raises(InvalidInput, match=f"{name} was asked for.*whole model"):
        config(tmp_path, **options)


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_sharding_asked_of_accelerate_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with pytest.raises(InvalidInput, match="whole model"):
        config(tmp_path)
