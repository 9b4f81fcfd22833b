"""Rewards for rare states, and learning that does not depend on the unit of rewards."""

from __future__ import annotations

import itertools
from math import sqrt

import numpy as np
import pytest
import torch
from records import chose, turn_of
from tiny import LAYOUT, gpt2
from tiny_rlft import ppo, run, value_head

from reflectrl.config.advantage import rewards_to_go
from reflectrl.config.training import EntropyTarget, Lesson, Replay
from reflectrl.core import InvalidInput, Observation, Outcome, Task, Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.rollout.turn import policy_views
from reflectrl.training.collector import Novelty, RewardScale

STAGES = [Lesson("main", 4, env={"size": 6})]


def walk(*rooms: str, task: str = "any") -> Trajectory:
    """Return an episode that visits these rooms."""
    *before, last = [Observation(f"Room {room}.", ("go",)) for room in rooms]
    turns = tuple(turn_of(each, ("go",), None, chose(0, "go"), -1.0) for each in before)
    return Trajectory(Task(task), 0, turns, terminated=False, truncated=True, success=False, last=last.final)


def bonuses(novelty: Novelty, *episodes: Trajectory, faded: float = 1.0) -> list[list[float]]:
    rewarded = novelty.rewarded(episodes, faded, lambda counts: counts)
    assert [each.rewards for each in rewarded] == [each.rewards for each in episodes]  # of the environment
    return [[turn.rewards["novelty"] for turn in each.turns] for each in rewarded]


# ---- novelty ---------------------------------------------------------------------------------------------------------


def test_the_novelty_of_a_state_by_hand():
    novelty = Novelty()
    assert bonuses(novelty, walk("a", "b", "c"), walk("a", "b")) == [[1 / sqrt(2), 1.0], [1 / sqrt(2)]]
    assert bonuses(novelty, walk("a", "b", "d")) == [[1 / sqrt(3), 1.0]]
    assert bonuses(Novelty(), walk("a", "b"), walk("a", "b", "c")) == [[1 / sqrt(2)], [1 / sqrt(2), 1.0]]


def test_an_episode_earns_nothing_for_states_in_which_it_has_been():
    assert bonuses(Novelty(), walk("a", "b", "a", "b", "b", "c")) == [[1.0, 0.0, 0.0, 0.0, 1.0]]


def test_tasks_that_show_the_same_share_their_states():
    assert bonuses(Novelty(), walk("a", "b", task="one"), walk("a", "b", task="two")) == [[1 / sqrt(2)]] * 2


def test_the_bonus_fades_with_success_and_is_never_part_of_the_return(tmp_path):
    trained = run(tmp_path, gpt2(spread=0.1), rewards={"env": 1.0, "novelty": 0.5}, lessons=STAGES, episodes=16).train()
    counts, before = Novelty(), list[float]()
    for done, episodes in zip(trained.iterations, trained.episodes, strict=True):
        faded = 1 - (sum(before) / len(before) if before else 0.0)
        expected = bonuses(counts, *episodes, faded=faded)
        assert [[turn.rewards["novelty"] for turn in each.turns] for each in episodes] == expected
        assert done.novelty == pytest.approx(sum(map(sum, expected)) / len(episodes))
        assert done.episode_return == pytest.approx(sum(sum(each.rewards) for each in episodes) / len(episodes))
        before.append(done.success)
    assert 0 < before[0] < 1
    assert run(tmp_path / "without", lessons=STAGES[:1]).train().iterations[0].novelty is None


def test_novelty_alone_is_learned_from(tmp_path):
    class Silent(NumberLine):
        def act(self, action):
            done = super().act(action)
            return Outcome(0.0, ended=done.ended, success=False)

    trained = run(tmp_path, gpt2(spread=0.1), rewards={"novelty": 1.0}, env=Silent, lessons=STAGES, episodes=8)
    before = trained.weights
    trained.train()
    assert not all(weight.equal(before[name]) for name, weight in trained.weights.items())


# ---- the unit of rewards ---------------------------------------------------------------------------------------------


def scaled(factor: float) -> type[NumberLine]:
    """Return NumberLine with its rewards times ``factor``."""

    def act(self, action):
        done = NumberLine.act(self, action)
        return Outcome(done.reward * factor, ended=done.ended, success=done.success)

    return type("Scaled", (NumberLine,), {"act": act})


LEARNER = {
    "advantage": value_head(gae_lambda=0.9),
    "update": ppo(num_iterations=2, num_minibatches=2),
    "replay": Replay(size=20, episodes=4),
}


def learned(folder, factor, **options):
    """Return a run with rewards times ``factor``, and the policy's highest probability in each state that it saw."""
    given = {"lessons": STAGES, "episodes": 8, "normalize_rewards": True, **options}
    trained = run(folder / str(factor), gpt2(spread=0.1), env=scaled(factor), **given).train()
    views = [view for each in itertools.chain(*trained.episodes) for view in policy_views(each, LAYOUT)]
    decisions = trained.trainer.policy.act(views, [0.5] * len(views))
    return trained, torch.tensor([max(decision.choice.probabilities) for decision in decisions])


@pytest.mark.slow
def test_rewards_of_any_size_give_the_same_policy(tmp_path):
    straight, policy = learned(tmp_path, 1.0, **LEARNER)
    assert policy.std() > 1e-3  # it depends on the state
    other, its = learned(tmp_path, 0.01, **LEARNER)
    torch.testing.assert_close(its, policy, rtol=0, atol=1e-4)
    doubled, _ = learned(tmp_path, 1024, **LEARNER)  # which rounds alike
    assert all(weight.equal(doubled.weights[key]) for key, weight in straight.weights.items())
    for factor, scaled_run in ((0.01, other), (1024, doubled)):
        assert [each.success for each in scaled_run.iterations] == [each.success for each in straight.iterations]
        for mine, theirs in zip(straight.iterations, scaled_run.iterations, strict=True):
            assert theirs.episode_return == pytest.approx(mine.episode_return * factor)  # in its own unit
    for one, two in zip(straight.episodes[-1], doubled.episodes[-1], strict=True):
        values = [turn.decision.value for turn in one.turns]
        assert any(values)
        assert [turn.decision.value / 1024 for turn in two.turns] == values
    returns = [rewards_to_go(each.rewards, 0.9) for episodes in straight.episodes for each in episodes]
    assert straight.trainer.reward_scale.unit == pytest.approx(np.concatenate(returns).std(), rel=1e-5)
    plain, _ = learned(tmp_path / "plain", 0.01, normalize_rewards=False, **LEARNER)
    assert not torch.allclose(plain.weights["lm_head.weight"], straight.weights["lm_head.weight"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("returns", "unit"), [([0.0] * 3, 1.0), ([-0.1] * 7, 0.1), ([300.0], 300.0), ([], 1.0)])
def test_returns_that_are_all_equal_are_not_divided_by_nothing(returns, unit):
    scale = RewardScale()
    if returns:
        scale.add(torch.tensor(returns), lambda *numbers: [list(numbers)])
    assert scale.unit == pytest.approx(unit)


# ---- the target of the entropy ---------------------------------------------------------------------------------------


def test_an_entropy_target_may_be_a_fraction_and_fall():
    term = EntropyTarget(0.5, target_end=0.2, coef=0.1)
    assert term.after(0.1, 0.8, uniform=1.6, progress=0.0) == pytest.approx(0.1)  # on target
    assert term.after(0.1, 0.8, uniform=3.0, progress=0.0) > 0.1
    assert term.after(0.1, 0.16, uniform=1.6, progress=1.0) == pytest.approx(0.1)
    assert term.after(0.1, 0.48, uniform=1.6, progress=0.5) == pytest.approx(0.1)
    assert term.after(0.1, 0.8, uniform=1.6, progress=0.5) < 0.1
    assert term.after(0.1, 0.0, uniform=0.0, progress=0.5) == 0.1  # there was never a choice
    falling = EntropyTarget(0.8, unit="nats", target_end=0.5, coef=0.1)
    assert falling.after(0.1, 0.4, uniform=9.0, progress=1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"target": 1.0}, "target=1 with unit=uniform; expected less than 1"),
        ({"target": 0.5, "target_end": 0.0}, "target_end"),
        ({"target": 0.0, "unit": "nats"}, "target: given 0.0"),
    ],
)
def test_targets_that_no_policy_can_have_are_refused(options, fact):
    with pytest.raises(InvalidInput, match=fact):
        EntropyTarget(**options)
