from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from records import shown
from tiny import LABELS, LAYOUT, draws, encoder, gpt2, language_model, policy_prompt, prefix_cache, shaken, tokenizer

from reflectrl.core.errors import ModelFailed
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.encode import action_distribution
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.tokenizer import label_ids
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import Header, read_trajectories, write_trajectories
from reflectrl.rollout.turn import policy_views
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

pytestmark = pytest.mark.numerical

LARGEST_DRAW = 1 - 2**-53
"""Largest value that ``random.random()`` can return."""
PROMPTS = [policy_prompt(number, actions=2 + number % 4, past=number % 3) for number in range(10)]
DRAWS = draws(len(PROMPTS))


@pytest.fixture(scope="module")
def model():
    model = language_model("gpt2")
    add_choice_head(model)
    return model


def act(model, prompts=PROMPTS, at=DRAWS, **options):
    return LMPolicy(model, encoder(), **options).act(shown(prompts), at)


def chosen(decisions):
    return [decision.choice.index for decision in decisions]


def distribution(model, prompts=PROMPTS):
    with torch.no_grad():
        return action_distribution(model, encoder().batch(prompts, torch.device("cpu")))[0]


def assert_same_decisions(found, expected):
    assert chosen(found) == chosen(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.action == other.action
        assert one.choice.probabilities == pytest.approx(other.choice.probabilities, abs=1e-5)
        assert (one.logprob, one.entropy) == pytest.approx((other.logprob, other.entropy), abs=1e-5, rel=1e-5)
        assert one.value == pytest.approx(other.value, abs=1e-5)


# ---- sampling --------------------------------------------------------------------------------------------------------


def test_a_draw_picks_an_action(model):
    # float32 probabilities sum to a little more or less than 1
    assert chosen(act(model, at=[LARGEST_DRAW] * 10)) == [len(prompt.menu.actions) - 1 for prompt in PROMPTS]
    prompt = policy_prompt(3, actions=4)
    ends = distribution(model, [prompt]).probs[0].double().cumsum(0).tolist()
    at = [0.0, *(end + side for end in ends[:-1] for side in (-1e-4, 1e-4)), LARGEST_DRAW]
    assert chosen(act(model, [prompt] * len(at), at)) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("never", "first", "last"), [("AD", 1, 2), ("ABC", 3, 3)])
def test_a_legal_action_of_probability_zero_is_never_sampled(never, first, last):
    model, prompt = language_model("llama"), policy_prompt(0, actions=4)
    ids = torch.tensor([encoder().tokens(prompt)])
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids).last_hidden_state[0, -1]
        for label in never:
            model.lm_head.weight[label_ids(tokenizer(), LABELS)[LABELS.index(label)]] = -1e4 * hidden
    add_choice_head(model)
    found = act(model, [prompt] * 502, [0.0, *draws(500), LARGEST_DRAW])
    assert (found[0].choice.index, found[-1].choice.index) == (first, last)
    assert all(decision.choice.probabilities[decision.choice.index] > 0 for decision in found)


def test_decisions_report_their_distribution_and_do_not_depend_on_the_batch(model):
    found, expected = act(model), distribution(model)
    for row, (prompt, decision) in enumerate(zip(PROMPTS, found, strict=True)):
        shares = decision.choice.probabilities
        assert decision.action == prompt.menu.actions[decision.choice.index]
        assert shares == pytest.approx(expected.probs[row, : len(prompt.menu.actions)].tolist(), abs=1e-6)
        assert decision.logprob == pytest.approx(math.log(shares[decision.choice.index]), abs=1e-5)
        assert decision.entropy == pytest.approx(-sum(share * math.log(share) for share in shares), abs=1e-5)
    assert_same_decisions(act(model, batch_size=3), found)
    assert_same_decisions([act(model, *([each] for each in one))[0] for one in zip(PROMPTS, DRAWS, strict=True)], found)


def test_greedy_takes_the_most_probable_action_whatever_the_draw(model):
    expected = distribution(model).probs.argmax(-1).tolist()
    for draw in (0.0, LARGEST_DRAW):
        assert chosen(act(model, at=[draw] * len(PROMPTS), greedy=True)) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("training", [True, False])
def test_acting_is_without_dropout_and_leaves_the_model_in_its_mode(training):
    model = gpt2(spread=0.2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train(training)
    add_choice_head(model)
    first = act(model)
    assert act(model) == first
    assert_same_decisions(act(model, prefix_cache=prefix_cache()), first)
    assert model.training is training


# ---- what was read before --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [256, 2])
def test_a_prefix_cache_changes_no_decision(limit):
    model, held = language_model("llama"), prefix_cache(limit=limit)
    add_choice_head(model, value_head=True)
    shaken(model, "value_head.weight", spread=0.1)
    player = LMPolicy(model, encoder(), prefix_cache=held)
    tokens = 0
    for past in range(4):
        prompts = [policy_prompt(number, actions=2 + number, past=past) for number in range(4)]
        found = player.act(shown(prompts * 2), [0.0] * 4 + [LARGEST_DRAW] * 4)
        assert_same_decisions(found, act(model, prompts * 2, [0.0] * 4 + [LARGEST_DRAW] * 4))
        assert chosen(found) == [0] * 4 + [1, 2, 3, 4]
        assert len({round(decision.value, 4) for decision in found}) == 4  # two draws of each prompt
        tokens += sum(len(encoder().tokens(prompt)) for prompt in prompts)
    assert held.computed < held.given == tokens


def test_new_weights_are_followed_once_the_old_are_forgotten():
    model = gpt2(0, spread=0.2).eval()
    add_choice_head(model)
    player = LMPolicy(model, encoder(), prefix_cache=prefix_cache())
    early, late = ([view] for view in shown([policy_prompt(3, past=1), policy_prompt(3, past=2)]))  # begin alike
    player.act(early, [0.5])
    model.load_state_dict(gpt2(1, spread=0.2).state_dict())
    fresh = LMPolicy(model, encoder()).act(late, [0.5])
    (stale,) = player.act(late, [0.5])
    assert stale.choice.probabilities != pytest.approx(fresh[0].choice.probabilities, abs=1e-3)
    player.forget()
    assert_same_decisions(player.act(late, [0.5]), fresh)
    assert player.act([], []) == LMPolicy(model, encoder()).act([], []) == []


# ---- scored again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_recorded_episodes_are_scored_as_played(model, shuffle, tmp_path):
    layout, env = replace(LAYOUT, menu="first", shuffle=shuffle), NumberLine(size=6)
    player = LMPolicy(model, encoder(), prefix_cache=prefix_cache())
    episodes = [Episode(task, seed) for seed, task in enumerate(env.split_tasks("train"))]
    header = Header("number_line", {"size": 6}, layout)
    played = rollout([env], episodes, policy=player, seats=reflecting(ExpertReflector()), layout=layout)
    write_trajectories(tmp_path / "episodes.jsonl", header, played)
    header, trajectories = read_trajectories(tmp_path / "episodes.jsonl")
    views = [view for trajectory in trajectories for view in policy_views(trajectory, header.prompt)]
    decisions = [turn.decision for trajectory in trajectories for turn in trajectory.turns]
    assert {len(view.menu.actions) for view in views} == {1, 2}
    for part in player.divide(views, decisions, max_tokens=2000):
        scores = player.score(part)
        assert scores.logprobs.tolist() == pytest.approx([each.logprob for each in part.decisions], abs=1e-5)
        assert scores.entropies.tolist() == pytest.approx([each.entropy for each in part.decisions], abs=1e-5)


def test_a_frozen_model_that_overflows_does_not_act():
    model = language_model("gpt2")
    add_choice_head(model)
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(3e38)
    assert len(act(model)) == len(PROMPTS)
    model.requires_grad_(False)
    with pytest.raises(ModelFailed, match="not finite"):
        act(model)
