from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from records import policy_prompt_of
from tiny import LABELS, LAYOUT, encoder, history, language_model, policy_prompt, reflector_prompt, tokenizer

from reflectrl.core import InvalidInput, Observation
from reflectrl.engine.head import add_choice_head
from reflectrl.models.encode import PromptEncoder, action_distribution
from reflectrl.models.tokenizer import label_ids

CPU = torch.device("cpu")


def probabilities(model, prompts):
    """(N, A) what the model would do."""
    with torch.no_grad():
        return action_distribution(model, encoder().batch(prompts, CPU))[0].probs


@pytest.fixture(params=["gpt2", "llama", "qwen2"])
def model(request):
    model = language_model(request.param)
    add_choice_head(model)
    return model


RAGGED = [
    policy_prompt(0),
    policy_prompt(1, actions=5, past=3),
    policy_prompt(2, actions=3, said=None),
    policy_prompt(3, actions=1, past=1, said="Mistake. The target is lower and it takes a while to get there."),
]

# ---- the distribution ------------------------------------------------------------------------------------------------


def test_padding_is_invisible(model):
    together = probabilities(model, RAGGED)
    for prompt, row in zip(RAGGED, together, strict=True):
        alone = probabilities(model, [prompt])[0]
        torch.testing.assert_close(row[: len(alone)], alone, rtol=0, atol=1e-5)


def test_an_illegal_action_has_probability_exactly_zero(model):
    for prompt, row in zip(RAGGED, probabilities(model, RAGGED), strict=True):
        legal = len(prompt.menu.actions)
        assert row[legal:].tolist() == [0.0] * (5 - legal)
        assert row[:legal].min() > 0
        assert row.sum().item() == pytest.approx(1.0, abs=1e-6)


def test_the_distribution_is_the_softmax_of_the_full_models_label_logits(model):
    prompt = RAGGED[1]
    ids = torch.tensor([tokenizer()(prompt.text)["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, -1, label_ids(tokenizer(), LABELS)[:5]]
    torch.testing.assert_close(probabilities(model, [prompt])[0], logits.softmax(-1), rtol=0, atol=1e-6)


def test_illegal_actions_add_nothing_to_the_entropy_and_get_no_gradient():
    model = language_model("llama")
    add_choice_head(model)
    distribution, _ = action_distribution(model, encoder().batch(RAGGED, CPU))
    alone, _ = action_distribution(model, encoder().batch(RAGGED[:1], CPU))
    torch.testing.assert_close(distribution.entropy()[0], alone.entropy()[0])
    (distribution.entropy()[0] + distribution.log_prob(torch.zeros(4, dtype=torch.long))[0]).backward()
    moved = model.get_output_embeddings().weight.grad.abs().sum(-1)
    ids = label_ids(tokenizer(), LABELS)
    assert (moved[ids[:2]] > 0).all()
    assert not moved[ids[2:]].any()


# ---- the batch -------------------------------------------------------------------------------------------------------


def test_equal_prompts_are_computed_once():
    batch = encoder().batch([RAGGED[0], RAGGED[1], replace(RAGGED[0]), RAGGED[1]], CPU)
    rows, width = batch.inputs.input_ids.shape
    assert rows == 2
    ends = [row * width + len(tokenizer()(RAGGED[row].text)["input_ids"]) - 1 for row in (0, 1)]
    assert batch.inputs.last.tolist() == [*ends, *ends]


def test_equal_prompts_have_equal_distributions_and_values():
    model = language_model("gpt2")
    add_choice_head(model, value_head=True)
    torch.nn.init.normal_(model.value_head.weight)
    distribution, values = action_distribution(model, encoder().batch([RAGGED[0], RAGGED[1], RAGGED[0]], CPU))
    assert torch.equal(distribution.probs[0], distribution.probs[2])
    assert values[0] == values[2] != values[1]


def test_a_batch_knows_each_menu_and_the_labels_of_the_longest():
    batch = encoder().batch(RAGGED, CPU)
    assert batch.menu_size.tolist() == [2, 5, 3, 1]
    assert tokenizer().convert_ids_to_tokens(batch.choice_ids.tolist()) == list("ABCDE")


def test_a_menu_longer_than_the_labels_is_refused():
    few = PromptEncoder(tokenizer(), label_ids(tokenizer(), LABELS[:4]), 128)
    with pytest.raises(InvalidInput, match="menu of 5 actions was given but the policy has 4 labels; raise"):
        few.batch(RAGGED, CPU)


def test_a_policy_batch_needs_menus():
    with pytest.raises(InvalidInput, match="given a reflector's prompt; expected one with a menu"):
        encoder().batch([RAGGED[0], reflector_prompt()], CPU)


# ---- the length ------------------------------------------------------------------------------------------------------


def test_a_prompt_that_fits_is_the_tokenized_text():
    assert encoder().tokens(RAGGED[1]) == tuple(tokenizer()(RAGGED[1].text)["input_ids"])


def test_a_prompt_that_is_too_long_loses_its_oldest_history_and_nothing_else():
    prompt = replace(policy_prompt(4), history=tuple(f"Past: {word}\n" for word in ("first", "second", "third")))
    full = encoder().tokens(prompt)
    kept = tokenizer().decode(encoder(len(full) - 1).tokens(prompt))
    assert kept == prompt.text.replace("Past: first\n", "")
    kept = tokenizer().decode(
        encoder(len(full)).tokens(prompt, reserve=len(full) - len(encoder().tokens(bare(prompt))))
    )
    assert kept == bare(prompt).text


def bare(prompt):
    return replace(prompt, history=())


def test_a_reserve_leaves_room_for_what_is_to_be_written():
    prompt = reflector_prompt(past=3)
    limit = len(encoder().tokens(prompt))
    assert encoder(limit).tokens(prompt, reserve=0) == encoder().tokens(prompt)
    assert len(encoder(limit).tokens(prompt, reserve=1)) <= limit - 1


def test_a_menu_that_does_not_fit_is_refused():
    with pytest.raises(InvalidInput, match=r"menu of 5 actions has \d+ tokens .* the model takes 12; use"):
        encoder(12).batch([policy_prompt(actions=5, past=3)], CPU)


@pytest.mark.parametrize("missing", [1, 5, 20])
def test_a_state_that_does_not_fit_is_cut_to_the_length_in_the_middle(missing):
    observation = Observation("Number 1. " + "The path so far: 1, 2, 3. " * 3 + "Target 7.", ("add one", "wait"))
    prompt = policy_prompt_of(LAYOUT, observation, history(3), "Higher.", LAYOUT.menu(observation, random.Random(0)))
    limit = len(encoder(4096).tokens(bare(prompt))) - missing
    kept = encoder(limit).tokens(prompt)
    assert limit - 3 <= len(kept) <= limit
    text = tokenizer().decode(kept)
    assert text.startswith("Number 1. The path")
    assert text.endswith("Target 7.\nReflection: Higher.\nA. add one\nB. wait\nAction:\n")
    assert "[...]" in text


def test_shortened_prompts_that_become_equal_share_a_row():
    texts = [replace(policy_prompt(4), history=(f"Past: {word}\n", "Past: last\n")) for word in ("this", "that")]
    limit = len(encoder().tokens(texts[0])) - 1
    batch = encoder(limit).batch(texts, CPU)
    assert batch.inputs.input_ids.size(0) == 1
    kept = encoder().tokens(replace(texts[0], history=("Past: last\n",)))
    assert batch.inputs.last.tolist() == [len(kept) - 1] * 2


# ---- the cache of tokens ---------------------------------------------------------------------------------------------


class CountingTokenizer:
    def __init__(self):
        self.calls = 0

    def __call__(self, text, **options):
        self.calls += 1
        return tokenizer()(text, **options)


def test_a_text_is_tokenized_once_until_newer_ones_push_it_out():
    counting = CountingTokenizer()
    small = PromptEncoder(counting, (), 128, cache_size=2)
    counting.calls = 0
    one, two, three = (reflector_prompt(number) for number in (1, 2, 3))
    first = small.tokens(one)
    assert small.tokens(one) == first
    assert counting.calls == 1
    small.tokens(two)
    small.tokens(three)
    assert counting.calls == 3
    assert small.tokens(one) == first
    assert counting.calls == 4
