from __future__ import annotations

import math

import pytest
import torch

from reflectrl.config.rlft import PPOTerm, Term, Terms
from reflectrl.training.objective import ppo_losses, step_losses

PROBABILITIES = torch.tensor([0.5, 0.3, 0.2])
"""Of a softmax policy over three actions."""


def losses(terms, logprobs, *, old=None, advantages, entropies=None, values=None, targets=None, progress=0.0):
    zeros = torch.zeros(len(advantages))
    return step_losses(
        terms,
        progress,
        logprobs=logprobs,
        old_logprobs=logprobs.detach() if old is None else torch.tensor(old).log(),
        advantages=torch.tensor(advantages),
        entropies=zeros if entropies is None else entropies,
        values=zeros if values is None else values,
        targets=zeros if targets is None else targets,
    )


def softmax_policy():
    """Logits with a gradient, and the log probabilities of actions 0, 1, 2."""
    logits = PROBABILITIES.log().requires_grad_()
    return logits, logits.log_softmax(-1)


# ---- REINFORCE -------------------------------------------------------------------------------------------------------


def test_the_reinforce_gradient_is_that_of_the_hand_computed_case():
    logits, logprobs = softmax_policy()
    loss = losses(Terms(), logprobs[[0, 2]], advantages=[2.0, -1.0]).total
    assert loss.item() == pytest.approx(-2.0 * math.log(0.5) + math.log(0.2))
    loss.backward()
    # d(-A log p_a)/d logits = A (p - onehot_a): 2 (-.5, .3, .2) - (.5, .3, -.8)
    assert logits.grad.tolist() == pytest.approx([-1.5, 0.3, 1.2], abs=1e-6)


def test_reinforce_does_not_look_at_the_old_probabilities():
    _, logprobs = softmax_policy()
    one = losses(Terms(), logprobs[[0]], old=[0.1], advantages=[1.0])
    two = losses(Terms(), logprobs[[0]], old=[0.9], advantages=[1.0])
    assert one.total.item() == two.total.item()
    assert one.clipped == two.clipped == 0.0


# ---- the clipped surrogate -------------------------------------------------------------------------------------------

CLIP = Terms(ppo=PPOTerm(epsilon=0.2))


@pytest.mark.parametrize(
    ("old", "advantage", "surrogate", "moves"),
    [
        (0.50, 2.0, 2.0, True),  # ratio 1
        (0.45, 2.0, 2.0 * 0.5 / 0.45, True),  # ratio 1.11, inside
        (0.25, 2.0, 1.2 * 2.0, False),  # ratio 2: good action, already likelier by more than the range
        (1.00, 2.0, 0.5 * 2.0, True),  # ratio 0.5: good action that became rarer may come back
        (1.00, -2.0, 0.8 * -2.0, False),  # ratio 0.5: bad action, already rarer by more than the range
        (0.25, -2.0, 2.0 * -2.0, True),  # ratio 2: bad action that became likelier is pushed back
    ],
)
def test_the_clipped_surrogate_and_its_gradient_by_hand(old, advantage, surrogate, moves):
    logits, logprobs = softmax_policy()
    loss = losses(CLIP, logprobs[[0]], old=[old], advantages=[advantage]).total
    assert loss.item() == pytest.approx(-surrogate, abs=1e-6)
    loss.backward()
    # d(-A p/p_old)/d logits = -A ratio (onehot - p)
    ratio = 0.5 / old if moves else 0.0
    expected = [-advantage * ratio * part for part in (0.5, -0.3, -0.2)]
    assert logits.grad.tolist() == pytest.approx(expected, abs=1e-5)


def test_before_the_first_update_the_clipped_gradient_is_the_reinforce_gradient():
    gradients = []
    for terms in (Terms(), CLIP):
        logits, logprobs = softmax_policy()
        losses(terms, logprobs[[0, 1, 2]], advantages=[0.7, -0.4, 1.3]).total.backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_policy_term_is_one_number_a_step():
    terms = ppo_losses(torch.tensor([0.5, 0.2]).log(), torch.tensor([0.5, 0.4]).log(), torch.tensor([1.0, 3.0]), 0.2)
    assert terms.tolist() == pytest.approx([-1.0, -1.5])


@pytest.mark.parametrize(("progress", "coefficient"), [(0.0, 2.0), (0.5, 1.25), (1.0, 0.5)])
def test_a_coefficient_changes_linearly_over_the_training(progress, coefficient):
    _, logprobs = softmax_policy()
    fading = Terms(reinforce=Term(2.0, coef_end=0.25), entropy=Term(2.0, coef_end=0.25))
    loss = losses(fading, logprobs[[0]], advantages=[1.0], entropies=torch.ones(1), progress=progress)
    assert loss.total.item() == pytest.approx(coefficient * (math.log(2) - 1))


# ---- the other terms -------------------------------------------------------------------------------------------------


def test_the_entropy_bonus_is_subtracted():
    total = losses(
        Terms(entropy=Term(0.5)), torch.zeros(2), advantages=[0.0, 0.0], entropies=torch.tensor([1.0, 0.2])
    ).total
    assert total.item() == pytest.approx(-0.6)


def test_the_entropy_gradient_flattens_the_distribution():
    logits, logprobs = softmax_policy()
    entropy = -(logprobs.exp() * logprobs).sum().unsqueeze(0)
    losses(Terms(entropy=Term()), logprobs[[0]], advantages=[0.0], entropies=entropy).total.backward()
    # d(-H)/d logit_k = p_k (log p_k + H)
    entropy_nats = -sum(p * math.log(p) for p in PROBABILITIES.tolist())
    expected = [p * (math.log(p) + entropy_nats) for p in PROBABILITIES.tolist()]
    assert logits.grad.tolist() == pytest.approx(expected, abs=1e-6)
    assert logits.grad[0] > 0 > logits.grad[2]  # a descent step lowers the likeliest and raises the rarest


def test_the_value_error_is_squared_and_weighted():
    values = torch.tensor([1.0, -1.0], requires_grad=True)
    total = losses(
        Terms(value=Term(0.5)),
        torch.zeros(2),
        advantages=[0.0, 0.0],
        values=values,
        targets=torch.tensor([3.0, 0.0]),
    ).total
    assert total.item() == pytest.approx(0.5 * (4.0 + 1.0))
    total.backward()
    assert values.grad.tolist() == pytest.approx([-2.0, -1.0])


# ---- what to watch ---------------------------------------------------------------------------------------------------


def test_clipped_counts_the_steps_outside_the_range():
    _, logprobs = softmax_policy()
    loss = losses(CLIP, logprobs[[0, 1, 2]], old=[0.5, 0.2, 0.4], advantages=[1.0, 1.0, 1.0])  # ratios 1, 1.5, 0.5
    assert loss.clipped == 2.0


def test_kl_is_zero_at_the_sampling_policy_and_positive_elsewhere():
    _, logprobs = softmax_policy()
    assert losses(CLIP, logprobs, advantages=[1.0] * 3).kl == 0.0
    moved = losses(CLIP, logprobs[[0]], old=[0.25], advantages=[1.0])
    assert moved.kl == pytest.approx(2.0 - 1.0 - math.log(2.0))


def test_micro_batches_add_up():
    logits, logprobs = softmax_policy()
    advantages, old = [0.5, -1.0, 2.0], [0.5, 0.2, 0.4]
    whole = losses(CLIP, logprobs, old=old, advantages=advantages)
    parts = [losses(CLIP, logprobs[[n]], old=[old[n]], advantages=[advantages[n]]) for n in range(3)]
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), abs=1e-6)
    assert sum(part.clipped for part in parts) == whole.clipped
    assert sum(part.kl for part in parts) == pytest.approx(whole.kl, abs=1e-6)
    assert logits.requires_grad
