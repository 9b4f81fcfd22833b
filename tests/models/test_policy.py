from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from records import shown
from tiny import LABELS, LAYOUT, encoder, gpt2, language_model, policy_prompt, reflector_prompt, tokenizer

from reflectrl.config.schema import LoraSection
from reflectrl.core import InvalidInput
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.envs.number_line import NumberLine
from reflectrl.models.adapters import add_lora
from reflectrl.models.encode import action_distribution
from reflectrl.models.policy import LMPolicy
from reflectrl.models.tokenizer import label_ids
from reflectrl.players import ExpertReflector, reflecting
from reflectrl.rollout import Episode, rollout

LARGEST_DRAW = 1 - 2**-53
"""``random.random()`` never returns more."""
PROMPTS = [policy_prompt(number, actions=2 + number % 4, past=number % 3) for number in range(10)]


@pytest.fixture(scope="module")
def model():
    model = language_model("gpt2")
    add_choice_head(model)
    return model


def policy(model, **options):
    return LMPolicy(model, encoder(), **options)


def distribution(model, prompts):
    with torch.no_grad():
        return action_distribution(model, encoder().batch(prompts, torch.device("cpu")))[0]


def uniform(count, seed=0):
    rng = random.Random(seed)
    return [rng.random() for _ in range(count)]


# ---- sampling --------------------------------------------------------------------------------------------------------


def test_actions_come_with_the_frequencies_of_the_distribution(model):
    prompt = policy_prompt(3, actions=4)
    expected = distribution(model, [prompt]).probs[0].tolist()
    assert max(expected) < 0.9  # a choice that is worth sampling
    decisions = policy(model).act(shown([prompt] * 4000), uniform(4000))
    for index, share in enumerate(expected):
        found = sum(decision.choice.index == index for decision in decisions) / 4000
        assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / 4000) + 1e-9


def test_a_draw_picks_the_action_whose_share_of_the_unit_interval_it_falls_in(model):
    prompt = policy_prompt(3, actions=4)
    ends = distribution(model, [prompt]).probs[0].double().cumsum(0).tolist()
    draws = [0.0, *(end + side for end in ends[:-1] for side in (-1e-4, 1e-4)), LARGEST_DRAW]
    decisions = policy(model).act(shown([prompt] * len(draws)), draws)
    assert [decision.choice.index for decision in decisions] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_ends_of_the_unit_interval_are_legal_actions(model):
    lowest = policy(model).act(shown(PROMPTS), [0.0] * len(PROMPTS))
    highest = policy(model).act(shown(PROMPTS), [LARGEST_DRAW] * len(PROMPTS))
    assert [decision.choice.index for decision in lowest] == [0] * len(PROMPTS)
    assert [decision.choice.index for decision in highest] == [len(prompt.menu.actions) - 1 for prompt in PROMPTS]


def never_says(labels):
    """A model for which ``labels`` have probability exactly 0 after ``policy_prompt(0, actions=4)``."""
    model = language_model("llama")
    ids = torch.tensor([encoder().tokens(policy_prompt(0, actions=4))])
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids).last_hidden_state[0, -1]
        for label in labels:
            model.lm_head.weight[label_ids(tokenizer(), LABELS)[LABELS.index(label)]] = -1e4 * hidden
    add_choice_head(model)
    return model


@pytest.mark.parametrize(("labels", "first", "last"), [("A", 1, 3), ("D", 0, 2), ("AD", 1, 2), ("ABC", 3, 3)])
def test_a_legal_action_of_probability_zero_is_never_sampled(labels, first, last):
    model = never_says(labels)
    prompt = policy_prompt(0, actions=4)
    found = policy(model).act(shown([prompt] * 502), [0.0, *uniform(500), LARGEST_DRAW])
    assert found[0].choice.index == first
    assert found[-1].choice.index == last
    assert all(decision.choice.probabilities[decision.choice.index] > 0 for decision in found)


def test_rounding_never_leads_past_the_last_action():
    # float32 probabilities sum to a little more or less than 1: many models show many such sums
    for seed in range(24):
        model = gpt2(seed, spread=0.3).eval()
        add_choice_head(model)
        prompt = policy_prompt(seed % 10, actions=5)
        (decision,) = policy(model).act(shown([prompt]), [LARGEST_DRAW])
        assert decision.choice.index == 4


def test_decisions_do_not_depend_on_the_batch(model):
    draws = uniform(len(PROMPTS))
    together = policy(model).act(shown(PROMPTS), draws)
    by_threes = policy(model, batch_size=3).act(shown(PROMPTS), draws)
    alone = [policy(model).act(shown([prompt]), [draw])[0] for prompt, draw in zip(PROMPTS, draws, strict=True)]
    for one, two, three in zip(together, by_threes, alone, strict=True):
        assert one.choice.index == two.choice.index == three.choice.index
        assert one.logprob == pytest.approx(two.logprob, abs=1e-5)
        assert one.logprob == pytest.approx(three.logprob, abs=1e-5)


# ---- what a decision says --------------------------------------------------------------------------------------------


def test_a_decision_reports_the_distribution_it_was_drawn_from(model):
    expected = distribution(model, PROMPTS)
    decisions = policy(model).act(shown(PROMPTS), uniform(len(PROMPTS)))
    for row, (prompt, decision) in enumerate(zip(PROMPTS, decisions, strict=True)):
        assert decision.action == prompt.menu.actions[decision.choice.index]
        assert decision.choice.probabilities == pytest.approx(
            expected.probs[row, : len(prompt.menu.actions)].tolist(), abs=1e-6
        )
        assert decision.logprob == pytest.approx(
            math.log(decision.choice.probabilities[decision.choice.index]), abs=1e-5
        )
        assert decision.entropy == pytest.approx(-sum(p * math.log(p) for p in decision.choice.probabilities), abs=1e-5)


def test_greedy_takes_the_most_probable_action_whatever_the_draw(model):
    expected = distribution(model, PROMPTS).probs.argmax(-1).tolist()
    for draw in (0.0, LARGEST_DRAW):
        decisions = policy(model, greedy=True).act(shown(PROMPTS), [draw] * len(PROMPTS))
        assert [decision.choice.index for decision in decisions] == expected
    assert len(set(expected)) > 1


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_acting_is_without_dropout_and_leaves_the_model_in_its_mode(training):
    model = gpt2(spread=0.2, resid_pdrop=0.5, embd_pdrop=0.5).train(training)
    add_choice_head(model)
    first, second = (policy(model).act(shown(PROMPTS), uniform(len(PROMPTS))) for _ in range(2))
    assert first == second
    assert model.training is training


def test_nobody_to_act_for_is_no_work(model):
    assert policy(model).act(shown([]), []) == []


def test_a_policy_needs_a_menu_to_choose_from(model):
    with pytest.raises(InvalidInput, match="given a reflector's prompt; expected one with a menu"):
        policy(model).act(shown([reflector_prompt()]), [0.0])


# ---- what was read before --------------------------------------------------------------------------------------------


def slots(**options):
    return PrefixCache(torch.device("cpu"), torch.float32, **options)


LONG = replace(LAYOUT, instructions="add one or subtract one until the number is the target", history=6)
"""As real prompts are, most of one is as it was a step before."""


def played(player, side_by_side=5, count=14):
    """Whole episodes, in which prompts grow, part and end."""
    env = NumberLine(size=8)
    tasks = env.tasks("train")
    episodes = [Episode(tasks[number % 5], seed=number) for number in range(count)]
    envs = [NumberLine(size=8) for _ in range(side_by_side)]
    return rollout(envs, episodes, policy=player, seats=reflecting(ExpertReflector()), layout=LONG)


def assert_same_decisions(found, expected):
    assert [one.choice.index for one in found] == [other.choice.index for other in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.action == other.action
        assert one.choice.probabilities == pytest.approx(other.choice.probabilities, abs=1e-5)
        assert (one.logprob, one.entropy) == pytest.approx((other.logprob, other.entropy), abs=1e-5)
        assert one.value == pytest.approx(other.value, abs=1e-5)


@pytest.fixture(params=["gpt2", "llama", "lora"])
def valued(request):
    """With a value head, and perhaps adapters, away from where they start."""
    model = language_model("llama" if request.param == "lora" else request.param)
    lm = add_lora(model, LoraSection(r=4), []) if request.param == "lora" else model
    add_choice_head(model, value_head=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in lm.named_parameters():
            if "lora_B" in name or "value_head.weight" in name:
                weight.normal_(0, 0.1, generator=generator)
    return lm.eval()


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("limit", [256, 2])
def test_with_slots_whole_episodes_are_the_same(valued, greedy, limit):
    held = slots(limit=limit)
    found = played(policy(valued, greedy=greedy, prefix_cache=held))
    expected = played(policy(valued, greedy=greedy))
    assert [one.task for one in found] == [other.task for other in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.rewards == other.rewards
        assert_same_decisions([turn.decision for turn in one.turns], [turn.decision for turn in other.turns])
    assert len({turn.decision.value for one in found for turn in one.turns}) > 5
    assert len({len(one.turns) for one in found}) > 1
    assert held.computed < 0.8 * held.given


def test_with_slots_equal_prompts_are_read_once_and_each_gets_its_own_draw(model):
    prompts, draws = [*PROMPTS[:3], *PROMPTS[:3], PROMPTS[1]], uniform(7)
    held = slots()
    found = policy(model, prefix_cache=held).act(shown(prompts), draws)
    assert_same_decisions(found, policy(model).act(shown(prompts), draws))
    assert held.given == sum(len(encoder().tokens(prompt)) for prompt in PROMPTS[:3])
    assert (
        len({decision.choice.index for decision in found[1::3]}) > 1 or found[1].choice.index != found[6].choice.index
    )


def test_with_slots_nobody_to_act_for_is_no_work(model):
    player = policy(model, prefix_cache=slots())
    assert player.act(shown([]), []) == []
    assert_same_decisions(player.act(shown(PROMPTS), [0.5] * 10), policy(model).act(shown(PROMPTS), [0.5] * 10))
    assert player.act(shown([]), []) == []


def test_with_slots_new_weights_are_followed_once_the_old_are_forgotten():
    model = gpt2(0, spread=0.2).eval()
    add_choice_head(model)
    player = policy(model, prefix_cache=slots())
    early, late = policy_prompt(3, past=1), policy_prompt(3, past=2)  # which begin with the same
    player.act(shown([early]), [0.5])
    model.load_state_dict(gpt2(1, spread=0.2).state_dict())
    fresh = policy(model).act(shown([late]), [0.5])
    (stale,) = player.act(shown([late]), [0.5])
    assert stale.choice.probabilities != pytest.approx(fresh[0].choice.probabilities, abs=1e-3)
    player.forget()
    assert_same_decisions(player.act(shown([late]), [0.5]), fresh)
    policy(model).forget()  # nothing to forget without slots


@pytest.mark.parametrize("training", [True, False])
def test_with_slots_acting_is_without_dropout_and_leaves_the_model_in_its_mode(training):
    model = gpt2(spread=0.2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train(training)
    add_choice_head(model)
    draws = uniform(len(PROMPTS))
    assert_same_decisions(
        policy(model, prefix_cache=slots()).act(shown(PROMPTS), draws), policy(model).act(shown(PROMPTS), draws)
    )
    assert model.training is training
