from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from records import chose, prompts_of, turn_of
from tiny import LAYOUT
from tiny_rlft import ppo, value_head

from reflectrl.config.advantage import BatchMean, LeaveOneOut, NoBaseline, StepGroup, ValueHead
from reflectrl.config.training import PPO, EntropyBonus, Reinforce, RLFTSettings, Term
from reflectrl.core import Observation, Task, Trajectory, Written
from reflectrl.training.batch import columns_of, minibatches, step_samples
from reflectrl.training.objective import Objective, step_losses

pytestmark = pytest.mark.numerical


def episode(*steps, reflection="Go on.", task="t"):
    """Return an episode of (text, action index, reward) steps."""
    turns = []
    for number, (text, index, reward) in enumerate(steps):
        menu = ("go", "wait")
        decision = chose(index, menu[index], logprob=-0.5 - number, entropy=0.6, value=number + 0.5)
        turns.append(turn_of(Observation(text, menu), menu, reflection, decision, reward))
    return Trajectory(Task(task), 0, tuple(turns), terminated=True, truncated=False, success=True)


SHORT = episode(("Hall.", 0, 1.0))
LONG = episode(("Hall.", 1, -1.0), ("Attic.", 0, 3.0))


NONE, BATCH = NoBaseline(normalize=False), BatchMean(normalize=False)
LEAVE_ONE_OUT, VALUE = LeaveOneOut(normalize=False), value_head(normalize=False)


def samples(*episodes, layout=LAYOUT, advantage=NONE, replayed=(), **options):
    return step_samples(episodes, layout, RLFTSettings(advantage=advantage, **options), replayed)


def advantages(*episodes, **options):
    return [sample.advantage for sample in samples(*episodes, **options)]


def test_every_step_is_a_sample():
    found = samples(SHORT, LONG)
    shown = [policy for trajectory in (SHORT, LONG) for _, policy in prompts_of(trajectory, LAYOUT)]
    assert [sample.view.prompt for sample in found] == shown
    assert [sample.decision.choice.index for sample in found] == [0, 1, 0]
    assert [sample.decision.logprob for sample in found] == [-0.5, -0.5, -1.5]
    assert [sample.target for sample in found] == [1.0, 2.0, 3.0]  # returns never cross the boundary of an episode
    assert [sample.target for sample in samples(SHORT, LONG, gamma=0.5)] == [1.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (NONE, [1.0, 2.0, 3.0]),
        (BATCH, [-1.0, 0.0, 1.0]),  # the mean return is 2
        # both begin in the hall, with returns 1 and 2; the attic is compared with all steps of the other episode
        (LEAVE_ONE_OUT, [-1.0, 1.0, 2.0]),
        (VALUE, [0.5, 1.5, 1.5]),  # values 0.5, 0.5, 1.5 when the actions were sampled
    ],
)
def test_a_baseline_is_subtracted_from_the_advantage_and_not_from_the_return(estimator, expected):
    assert advantages(SHORT, LONG, advantage=estimator) == expected
    assert [sample.target for sample in samples(SHORT, LONG, advantage=estimator)] == [1.0, 2.0, 3.0]


def test_the_value_head_bootstraps_only_truncated_episodes():
    cut = replace(LONG, terminated=False, truncated=True, last_value=2.0)
    found = samples(LONG, cut, advantage=value_head(normalize=False, gae_lambda=0.5), gamma=0.5)
    # rewards -1 and 3, values 0.5 and 1.5: the last errors are 3 - 1.5, and 1 more with half of 2 to come
    assert [sample.advantage for sample in found] == [-0.75 + 0.25 * 1.5, 1.5, -0.75 + 0.25 * 2.5, 2.5]
    assert [sample.target for sample in found] == [0.125, 3.0, 0.375, 4.0]


def test_other_words_make_another_state():
    other = episode(("Hall.", 0, 1.0), reflection="Turn back.")
    assert advantages(SHORT, SHORT, LONG, advantage=LEAVE_ONE_OUT)[1] == pytest.approx(1.0 - (1.0 + 2.0) / 2)
    assert advantages(SHORT, other, LONG, advantage=LEAVE_ONE_OUT)[1] == pytest.approx(1.0 - (1.0 + 2.0 + 3.0) / 3)


def test_step_groups_hold_equal_observations_of_one_task():
    other = episode(("Hall.", 0, 4.0), reflection="Turn back.", task="u")
    again = episode(("Hall.", 0, 1.0), reflection="Turn back.")
    grouped = StepGroup(normalize=False, weight=2.0)
    found = advantages(again, LONG, other, advantage=grouped, gamma=0.5, episodes_per_task=2)
    # of the episodes, 1 and 2 against their mean; of their steps in the hall, 1 and -1 + 0.5 * 3
    assert found == [-0.5 + 2 * 0.25, 0.5 - 2 * 0.25, 0.5, 0.0]


def test_normalisation_changes_advantages_and_not_returns():
    found = samples(SHORT, LONG, advantage=BatchMean())
    deviation = (2 / 3) ** 0.5
    assert [sample.advantage for sample in found] == pytest.approx([-1 / deviation, 0.0, 1 / deviation])
    assert [sample.target for sample in found] == [1.0, 2.0, 3.0]


def test_a_replayed_step_keeps_its_positive_advantage():
    won = episode(("Hall.", 0, -2.0), ("Attic.", 0, 4.0))  # returns 2 and 4, values 0.5 and 1.5
    lost = episode(("Hall.", 1, -1.0), ("Attic.", 1, 0.0))  # returns -1 and 0
    options = {"advantage": value_head(center=True)}
    alone = samples(SHORT, lost, **options)
    found = samples(SHORT, lost, replayed=[won, lost], **options)
    assert [each.replayed for each in found] == [False] * 3 + [True] * 4
    assert found[:3] == alone
    mean, deviation = -5 / 6, (8 / 9) ** 0.5  # of 0.5, -1.5 and -1.5
    expected = [(1.5 - mean) / deviation, (2.5 - mean) / deviation, 0.0, 0.0]
    assert [each.advantage for each in found[3:]] == pytest.approx(expected)
    assert [each.target for each in found[3:]] == [2.0, 4.0, -1.0, 0.0]
    alone = samples(SHORT, lost, advantage=BATCH)
    assert samples(SHORT, lost, replayed=[won], advantage=BATCH)[:3] == alone


def loss_of(found, objective, logprobs=None, *, entropies=None, values=None, divergences=None):
    """Return the loss of samples under a policy with these numbers a step; as at sampling time if absent."""
    sampled, columns = columns_of(found, torch.device("cpu"))
    nothing = torch.zeros(len(found))
    return step_losses(
        objective,
        0.0,
        logprobs=sampled if logprobs is None else logprobs,
        old_logprobs=sampled,
        entropies=nothing if entropies is None else entropies,
        values=columns["old_values"] if values is None else values,
        divergences=nothing if divergences is None else divergences,
        log_ratios=None if logprobs is None else (logprobs - sampled).detach(),
        **columns,
    )


def test_a_replayed_step_makes_its_action_more_probable_and_trains_nothing_else():
    objective = Objective(ppo(), ValueHead(), EntropyBonus(0.1), Term(0.1))
    won = episode(("Hall.", 0, 2.0))  # value 0.5, so the advantage is 1.5
    found = samples(SHORT, replayed=[won], advantage=VALUE)
    parts = {name: torch.full((2,), 0.4, requires_grad=True) for name in ("entropies", "values", "divergences")}
    logprobs = torch.tensor([-0.5, -3.0], requires_grad=True)  # far from what it was when the replayed step was played
    loss = loss_of(found, objective, logprobs, **parts)
    loss.total.backward()
    assert logprobs.grad.tolist() == pytest.approx([-0.5, -1.5])  # the gradient of REINFORCE
    assert all(part.grad[0] != 0 and part.grad[1] == 0 for part in parts.values())
    assert (loss.kl, loss.clipped) == (0.0, 0.0)


# ---- minibatches -----------------------------------------------------------------------------------------------------


def test_each_pass_uses_every_sample_once():
    found = samples(SHORT, LONG, LONG, LONG)
    batches = minibatches(found, PPO(num_iterations=3, num_minibatches=2), random.Random(0))
    assert [len(batch) for batch in batches] == [4, 3] * 3
    passes = [[*map(id, first + second)] for first, second in zip(batches[::2], batches[1::2], strict=True)]
    assert all(sorted(order) == sorted(map(id, found)) for order in passes)
    assert passes[0] != passes[1]
    again = minibatches(found, PPO(num_iterations=3, num_minibatches=2), random.Random(0))
    assert [[*map(id, batch)] for batch in again] == [[*map(id, batch)] for batch in batches]
    few = minibatches(samples(LONG), PPO(num_iterations=2, num_minibatches=3), random.Random(0))
    assert [len(batch) for batch in few] == [1, 1, 2] * 2  # none is empty


def test_whole_episodes_stay_together_where_that_is_asked_for():
    found = samples(SHORT, LONG, LONG, LONG)
    episodes = [[*map(id, part)] for part in (found[:1], found[1:3], found[3:5], found[5:])]
    for batch in minibatches(found, PPO(num_iterations=4, num_minibatches=2), random.Random(0), whole=True):
        places = [*map(id, batch)]
        inside = [episode for episode in episodes if episode[0] in places]
        assert len(inside) == 2
        assert sorted(places) == sorted(at for episode in inside for at in episode)


def test_an_illegal_text_trains_the_value_head_only():
    legal, illegal = LONG.turns
    choice = replace(illegal.decision.choice, written=Written("Go.", (), (), 0, legal=False))
    doubtful = replace(LONG, turns=(legal, replace(illegal, decision=replace(illegal.decision, choice=choice))))
    for masked, expected in (("text", [2.0, 3.0]), ("mask", [2.0, 0.0])):
        found = samples(doubtful, fallback_credit=masked)
        assert [sample.advantage for sample in found] == expected
        assert [sample.target for sample in found] == [2.0, 3.0]
        parts = {name: torch.ones(2, requires_grad=True) for name in ("logprobs", "entropies", "values")}
        loss_of(found, Objective(Reinforce(), ValueHead(), EntropyBonus(0.1)), **parts).total.backward()
        learns = {name: part.grad[1].item() != 0 for name, part in parts.items()}
        assert learns == {"logprobs": masked == "text", "entropies": masked == "text", "values": True}
