from __future__ import annotations

import math

import pytest
import torch
from tiny_rlft import ppo

from reflectrl.config.advantage import NoBaseline, ValueHead
from reflectrl.config.training import PPO, EntropyBonus, EntropyTarget, Reinforce, RLFTSettings, Term, Terms
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.training.objective import Objective, check_gap, kl_divergences, step_losses

pytestmark = pytest.mark.numerical

PROBABILITIES = torch.tensor([0.5, 0.3, 0.2])
"""Probabilities of a softmax policy over three actions."""


def losses(
    objective,
    logprobs,
    *,
    old=None,
    advantages,
    entropies=None,
    values=None,
    old_values=None,
    targets=None,
    divergences=None,
    moved=None,
    progress=0.0,
):
    zeros = torch.zeros(len(advantages))
    return step_losses(
        objective,
        progress,
        logprobs=logprobs,
        old_logprobs=logprobs.detach() if old is None else torch.tensor(old).log(),
        advantages=torch.tensor(advantages),
        entropies=zeros if entropies is None else entropies,
        values=zeros if values is None else values,
        old_values=zeros if old_values is None else old_values,
        targets=zeros if targets is None else targets,
        divergences=zeros if divergences is None else divergences,
        log_ratios=None if moved is None else torch.tensor(moved),
    )


def softmax_policy():
    """Return logits with a gradient, and the log-probabilities of actions 0, 1, 2."""
    logits = PROBABILITIES.log().requires_grad_()
    return logits, logits.log_softmax(-1)


def test_the_reinforce_gradient_is_that_of_the_hand_computed_case():
    logits, logprobs = softmax_policy()
    loss = losses(REINFORCE, logprobs[[0, 2]], old=[0.1, 0.9], advantages=[2.0, -1.0])
    assert loss.total.item() == pytest.approx(-2.0 * math.log(0.5) + math.log(0.2))  # whatever they were when sampled
    assert loss.clipped == 0.0
    loss.total.backward()
    # d(-A log p_a)/d logits = A (p - onehot_a): 2 (-.5, .3, .2) - (.5, .3, -.8)
    assert logits.grad.tolist() == pytest.approx([-1.5, 0.3, 1.2], abs=1e-6)


REINFORCE, CLIP = Objective(Reinforce()), Objective(PPO(epsilon=0.2))


@pytest.mark.parametrize(
    ("old", "advantage", "surrogate", "moves"),
    [
        (0.50, 2.0, 2.0, True),  # ratio 1: the gradient of REINFORCE
        (0.45, 2.0, 2.0 * 0.5 / 0.45, True),  # ratio 1.11, inside
        (0.25, 2.0, 1.2 * 2.0, False),  # ratio 2: good action, already more likely by more than the range
        (1.00, 2.0, 0.5 * 2.0, True),  # ratio 0.5: good action that became less likely may be raised again
        (1.00, -2.0, 0.8 * -2.0, False),  # ratio 0.5: bad action, already less likely by more than the range
        (0.25, -2.0, 2.0 * -2.0, True),  # ratio 2: bad action that became more likely is lowered again
        (0.5 / 9, -2.0, 9.0 * -2.0, True),
        (0.5 / 11, -2.0, 1.2 * -2.0, False),  # beyond a ratio of 10, no step has a huge loss
        (1e-30, -2.0, 1.2 * -2.0, False),
        (1e-30, 0.0, 0.0, False),  # neither an overflow nor 0 times infinity
    ],
)
def test_the_clipped_surrogate_and_its_gradient_by_hand(old, advantage, surrogate, moves):
    logits, logprobs = softmax_policy()
    loss = losses(CLIP, logprobs[[0]], old=[old], advantages=[advantage])
    assert loss.total.item() == pytest.approx(-surrogate, abs=1e-6)
    assert loss.clipped.item() == (abs(0.5 / old - 1) > 0.2)  # ratios above the limit of 10 are counted too
    loss.total.backward()
    # d(-A p/p_old)/d logits = -A ratio (onehot - p)
    ratio = 0.5 / old if moves else 0.0
    expected = [-advantage * ratio * part for part in (0.5, -0.3, -0.2)]
    assert logits.grad.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("progress", "coefficient"), [(0.0, 2.0), (0.5, 1.25), (1.0, 0.5)])
def test_a_coefficient_changes_linearly_over_the_training(progress, coefficient):
    _, logprobs = softmax_policy()
    fading = Objective(Reinforce(), entropy=EntropyBonus(2.0, coef_end=0.25), kl=Term(4.0, coef_end=0.25))
    numbers = {"entropies": torch.ones(1), "divergences": torch.tensor([0.3])}
    loss = losses(fading, logprobs[[0]], advantages=[1.0], **numbers, progress=progress)
    assert loss.total.item() == pytest.approx(math.log(2) + coefficient * (2 * 0.3 - 1))


def test_the_value_error_is_squared_and_weighted():
    values = torch.tensor([1.0, -1.0], requires_grad=True)
    targets = torch.tensor([3.0, 0.0])
    total = losses(
        Objective(Reinforce(), ValueHead(0.5)), torch.zeros(2), advantages=[0.0, 0.0], values=values, targets=targets
    ).total
    assert total.item() == pytest.approx(0.5 * (4.0 + 1.0))
    total.backward()
    assert values.grad.tolist() == pytest.approx([-2.0, -1.0])


def test_clipped_steps_and_kl_are_measured_and_micro_batches_add_up():
    _, logprobs = softmax_policy()
    assert losses(CLIP, logprobs, advantages=[1.0] * 3).kl == 0.0
    advantages, old = [0.5, -1.0, 2.0], [0.5, 0.2, 0.4]  # ratios 1, 1.5, 0.5
    moved = [math.log(ratio) for ratio in (1.0, 1.5, 0.5)]
    whole = losses(CLIP, logprobs, old=old, advantages=advantages, moved=moved)
    parts = [losses(CLIP, logprobs[[n]], old=[old[n]], advantages=[advantages[n]], moved=[moved[n]]) for n in range(3)]
    assert whole.clipped == sum(part.clipped for part in parts) == 2.0
    assert parts[1].kl.item() == pytest.approx(1.5 - 1.0 - math.log(1.5))
    assert whole.kl.item() == pytest.approx(sum(part.kl.item() for part in parts), abs=1e-6)
    assert whole.total.item() == pytest.approx(sum(part.total.item() for part in parts), abs=1e-6)


def test_an_entropy_floor_pays_for_entropy_below_it_only():
    entropy = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
    objective = Objective(Reinforce(), entropy=EntropyBonus(2.0, floor=0.4))
    loss = losses(objective, torch.zeros(3), advantages=[0.0] * 3, entropies=entropy)
    assert loss.total.item() == pytest.approx(-2.0 * (0.1 + 0.4 + 0.4))
    loss.total.backward()
    assert entropy.grad.tolist() == [-2.0, 0.0, 0.0]


def test_a_coefficient_follows_its_target():
    term = EntropyTarget(0.4, unit="nats", coef=2.0)

    def after(coef, entropy):
        return term.after(coef, entropy, uniform=9.0, progress=0.0)

    assert after(2.0, 0.4) == 2.0
    assert after(2.0, 0.2) == pytest.approx(2.0 * 2**0.1)
    assert after(2.0, 0.8) == pytest.approx(2.0 / 2**0.1)
    assert after(200.0, 0.0) == 200.0
    assert after(0.02, 1.0) == 0.02
    current = Objective.of(RLFTSettings(update=Reinforce(), advantage=NoBaseline(), terms=Terms(entropy=term)), 3.0)
    loss = losses(current, torch.zeros(1), advantages=[0.0], entropies=torch.full((1,), 0.5))
    assert loss.total.item() == -1.5


@pytest.mark.parametrize("schedule", [{"coef": 0.0}, {"coef_end": 0.1}])
def test_an_entropy_target_has_a_coefficient_to_begin_with_and_no_schedule(schedule):
    with pytest.raises(InvalidInput, match="EntropyTarget has a mistake:\n  coef"):
        EntropyTarget(0.4, **schedule)


def test_a_clipped_value_has_no_gradient():
    values = torch.tensor([0.5, 0.05, -0.5], requires_grad=True)  # two moved far, the last one away from its target
    given = {"values": values, "old_values": torch.zeros(3), "targets": torch.ones(3)}
    loss = losses(Objective(Reinforce(), ValueHead(1.0, clip=0.1)), torch.zeros(3), advantages=[0.0] * 3, **given)
    assert loss.total.item() == pytest.approx(0.9**2 + 0.95**2 + 1.5**2)
    loss.total.backward()
    assert values.grad.tolist() == pytest.approx([0.0, -1.9, -3.0])


def test_the_kl_term_is_the_exact_divergence_over_each_menu():
    menus = torch.tensor([[0.5, 0.3, 0.2], [0.75, 0.25, 0.0]])  # the second one is shorter
    reference = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.5, 0.0]])
    logits = menus.log().clamp(min=torch.finfo(torch.float32).min).requires_grad_()
    found = kl_divergences(logits.log_softmax(-1), torch.where(reference > 0, reference.log(), 0.0))
    assert found.tolist() == pytest.approx([0.0, 0.75 * math.log(1.5) + 0.25 * math.log(0.5)], abs=1e-6)
    loss = losses(Objective(Reinforce(), kl=Term(2.0)), torch.zeros(2), advantages=[0.0] * 2, divergences=found).total
    loss.backward()
    assert loss.item() == pytest.approx(2.0 * found.sum().item())
    assert logits.grad.isfinite().all()
    assert not logits.grad[0].abs().max() > 1e-6
    assert logits.grad[1, 0] > 0  # it had become too probable


def test_ppo_refuses_rounding_beyond_its_clip_range():
    check_gap(CLIP.update, 0.04)
    check_gap(ppo(), 0.06)  # one update: nothing is clipped
    check_gap(Reinforce(), 0.06)
    with pytest.raises(WorkFailed, match="model.compute"):
        check_gap(CLIP.update, 0.06)
