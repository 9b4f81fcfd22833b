from __future__ import annotations

import json
from functools import partial
from statistics import fmean

import numpy as np
import pytest
import torch
from rlft_on_ranks import OPTIONS, SHARDED, correct, sharded, train, validate
from safetensors.torch import load_file
from tiny import LAYOUT, encoder, gpt2
from tiny_rlft import run
from warm_processes import start_ranks

from reflectrl.config.advantage import rewards_to_go
from reflectrl.config.training import RLFTSettings
from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode
from reflectrl.lm.encode import action_distribution
from reflectrl.lm.head import add_choice_head
from reflectrl.rollout import episode_metrics
from reflectrl.training.batch import step_samples, weighted_rewards
from reflectrl.training.collector import Novelty, RewardScale

pytestmark = pytest.mark.slow
RANKS = 2
EPISODES = 4
"""Episodes of each rank and iteration."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that two processes wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    for process in start_ranks(folder, train, folder):
        assert process.wait() == 0, process.said
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    return [json.loads((folder / f"seen_{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def episodes(seen):
    """Return the episodes of each rank in the order of play."""
    return [[decode(Trajectory, row, "seen") for row in rank["episodes"]] for rank in seen]


def weights(folder, name):
    return [load_file(folder / f"{name}_{rank}.safetensors") for rank in range(RANKS)]


def test_ranks_play_different_episodes_and_end_with_the_same_weights(folder, episodes):
    first, second = ({episode.seed for episode in rank} for rank in episodes)
    assert len(first) == len(second) == 4 * EPISODES
    assert not first & second
    assert [e.task for e in episodes[0]] != [e.task for e in episodes[1]]
    one, two = weights(folder, "straight")
    assert all(torch.equal(weight, two[name]) for name, weight in one.items())
    assert not torch.allclose(one["lm_head.weight"], gpt2(spread=0.1).lm_head.weight, atol=1e-4)


def rewarded(episodes):
    """Return the first episodes of each rank with their rewards for novelty, and the unit of rewards, of all ranks."""
    played = [episode for rank in episodes for episode in rank[:EPISODES]]
    played = Novelty().rewarded(played, 1.0, lambda counts: counts)
    scale = RewardScale()
    rewards = [weighted_rewards(episode, OPTIONS["rewards"]) for episode in played]
    returns = np.concatenate([rewards_to_go(each, 0.9) for each in rewards])
    scale.add(torch.from_numpy(returns), lambda *numbers: [list(numbers)])
    return [played[:EPISODES], played[EPISODES:]], scale.unit


def gradient_step(episodes, unit):
    """Return the weights after one SGD step on ``episodes`` only, computed without the trainer."""
    model = gpt2(spread=0.1)
    add_choice_head(model, value_head=True)
    settings = RLFTSettings(gamma=0.9, advantage=OPTIONS["advantage"], rewards=OPTIONS["rewards"])
    samples = step_samples(episodes, LAYOUT, settings, unit=unit)
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
    played, unit = rewarded(episodes)
    one, two = (gradient_step(rank, unit) for rank in played)
    found = load_file(folder / "run" / "checkpoint-1" / "model.safetensors")
    alone = 0.0
    for name, weight in found.items():
        torch.testing.assert_close(weight, (one[name] + two[name]) / 2, rtol=0, atol=1e-5)
        alone = max(alone, float((weight - one[name]).abs().max()))
    assert alone > 1e-3  # not the gradient of one rank only


def test_an_iteration_describes_the_episodes_of_all_ranks(seen, episodes):
    assert not seen[1]["iterations"]  # the main process reports
    steps = 0
    for number, iteration in enumerate(seen[0]["iterations"]):
        played = [rank[number * EPISODES : (number + 1) * EPISODES] for rank in episodes]
        steps += sum(len(episode.turns) for rank in played for episode in rank)
        assert iteration["env_steps"] == steps
        assert iteration["success"] == fmean(episode_metrics(rank).success for rank in played)
    assert len(seen[0]["iterations"]) == 4


def test_all_ranks_stop_with_one_and_resumed_equals_never_stopped(folder, seen):
    assert (folder / "stopped" / "checkpoint-2").is_dir()  # after the iteration of the Ctrl-C, not the third
    assert seen[0]["resumed"] == seen[0]["iterations"][2:]
    assert [rank["resumed_episodes"] for rank in seen] == [rank["episodes"] for rank in seen]
    for straight, again in zip(weights(folder, "straight"), weights(folder, "again"), strict=True):
        assert all(torch.equal(weight, again[name]) for name, weight in straight.items())


def test_ranks_whose_thoughts_are_corrected_differently_often_end_with_the_same_weights(tmp_path):
    for process in start_ranks(tmp_path, correct, tmp_path):
        assert process.wait() == 0, process.said
    one, two = weights(tmp_path, "corrected")
    assert all(torch.equal(weight, two[name]) for name, weight in one.items())


def test_ranks_share_a_validation_and_end_together_with_the_same_best_weights(tmp_path):
    for process in start_ranks(tmp_path, validate, tmp_path):
        assert process.wait() == 0, process.said
    one, two = (json.loads((tmp_path / f"validated_{rank}.json").read_text()) for rank in range(RANKS))
    assert one[:2] == two[:2]
    assert one[2][-1]["ended"] in ("patience", "expert")
    assert one[2][0]["validation_expert"] == 1
    best = max([one[2][0]["validation_start"], *(each["validation_success"] for each in one[2])])
    assert one[1]["sampled"] == best
    assert best * 9 == pytest.approx(round(best * 9))
    first, second = weights(tmp_path, "validated")
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


# ---- sharded weights (FSDP2) -----------------------------------------------------------------------------------------


def differences(one, other):
    assert one.keys() == other.keys()
    assert all(weight.dtype == other[name].dtype for name, weight in one.items())
    return max(float((weight.float() - other[name].float()).abs().max()) for name, weight in one.items())


@pytest.mark.parametrize("adapters", [False, True], ids=["all weights", "adapters"])
def test_sharded_weights_learn_like_whole_ones_and_leave_the_same_files(tmp_path, adapters):
    for process in start_ranks(tmp_path, partial(sharded, adapters=adapters), tmp_path):
        assert process.wait() == 0, process.said
    (whole, _), (shards, other), (again, _) = (weights(tmp_path, name) for name in ("whole", "sharded", "resumed"))
    assert differences(shards, other) == 0
    assert differences(whole, shards) < 1e-4
    assert differences(shards, again) < 1e-6
    straight, found, rest = (
        json.loads((tmp_path / f"{name}_0.json").read_text()) for name in ("whole", "sharded", "resumed")
    )
    for here, there in [*zip(straight, found, strict=True), *zip(found[3:], rest, strict=True)]:
        for name, number in here.items():
            expected = pytest.approx(number, rel=1e-6, abs=1e-6) if isinstance(number, float) else number
            assert there[name] == expected, name
    for step in (3, 6):
        of_whole, of_shards = (tmp_path / name / f"checkpoint-{step}" for name in ("whole", "sharded"))
        assert {each.name for each in of_whole.iterdir()} == {each.name for each in of_shards.iterdir()}
        for file in of_whole.glob("*.safetensors"):
            if not file.name.startswith("process"):
                assert differences(load_file(file), load_file(of_shards / file.name)) < 1e-4, file.name
    if not adapters:
        alone = run(tmp_path / "alone", gpt2(spread=0.1, layers=2), **SHARDED).train(
            tmp_path / "whole" / "checkpoint-3"
        )
        assert [each.iteration for each in alone.iterations] == [3, 4, 5]
        assert straight[3]["env_steps"] > alone.iterations[0].env_steps > straight[2]["env_steps"]  # half the episodes
