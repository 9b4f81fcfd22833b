from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import ACTIONS, LABELS, encoder, language_model, policy_prompt, reflector_prompt, tokenizer

from reflectrl.core import InvalidInput
from reflectrl.lm.encode import PromptEncoder, action_distribution
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.tokenizer import label_ids
from reflectrl.prompts.menu import make_menu

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
LABEL_IDS = label_ids(tokenizer(), LABELS)
RAGGED = [
    policy_prompt(0),
    policy_prompt(1, actions=5, past=3),
    policy_prompt(2, actions=3, said=None),
    policy_prompt(3, actions=1, past=1, said="Mistake. The target is lower and it takes a while to get there."),
    policy_prompt(0),
]
LISTED = [
    policy_prompt(0, common=("wait", "add one")),
    policy_prompt(1, actions=4, common=("sing", "go home", "add one")),
    policy_prompt(2, actions=1, common=("add one",)),
    policy_prompt(3, actions=3),
]
LEGAL = [[1, 2], [1, 2, 3, 4], [0], [0, 1, 2]]
"""Positions of the labels of each prompt's legal actions."""


def tokens_of(text):
    return tuple(tokenizer()(text)["input_ids"])


def bare(prompt):
    return replace(prompt, history=())


# ---- the distribution ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2"])
def test_the_distribution_is_a_softmax_over_labels(architecture):
    model = language_model(architecture)
    add_choice_head(model, value_head=True)
    torch.nn.init.normal_(model.value_head.weight)
    distribution, values = action_distribution(model, encoder().batch(RAGGED, CPU))
    for prompt, row in zip(RAGGED, distribution.probs.detach(), strict=True):
        legal = len(prompt.menu.actions)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens_of(prompt.text)])).logits[0, -1, LABEL_IDS[:legal]]
        torch.testing.assert_close(row[:legal], logits.softmax(-1), rtol=0, atol=1e-5)  # padding is invisible
        assert row[legal:].tolist() == [0.0] * (5 - legal)
        assert row[:legal].min() > 0
    torch.testing.assert_close(distribution.probs[0], distribution.probs[4], rtol=0, atol=1e-6)  # the same prompt
    assert values[0].item() == pytest.approx(values[4].item(), abs=1e-5) != values[1].item()


def test_an_illegal_label_has_no_probability():
    model = language_model("llama")
    add_choice_head(model)
    batch = encoder().batch(LISTED, CPU)
    distribution, _ = action_distribution(model, batch)
    for prompt, legal, row in zip(LISTED, LEGAL, distribution.probs.detach(), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens_of(prompt.text)])).logits[0, -1]
        expected = logits[[LABEL_IDS[at] for at in legal]].softmax(-1)
        torch.testing.assert_close(row[: len(legal)], expected, rtol=0, atol=1e-5)
        assert row[len(legal) :].tolist() == [0.0] * (4 - len(legal))
    assert batch.choice_ids.tolist() == LABEL_IDS[:5]
    (distribution.log_prob(torch.tensor([1, 2, 0, 0])) + distribution.entropy())[0].backward()
    moved = model.get_output_embeddings().weight.grad[LABEL_IDS].abs().sum(-1) > 0
    assert moved.tolist() == [at in LEGAL[0] for at in range(len(LABEL_IDS))]


def test_the_probability_of_a_known_action_is_that_of_its_own_label():
    model = language_model("llama")
    add_choice_head(model)
    actions = ACTIONS[:5]
    prompts = [
        replace(prompt, menu=make_menu(prompt.menu.actions, "letters", known=actions[::-1])) for prompt in RAGGED[:2]
    ]
    rows = action_distribution(model, encoder().batch(prompts, CPU))[0].probs.detach()
    for row, legal in zip(rows, ([4, 3], [4, 3, 2, 1, 0]), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens_of(prompts[len(legal) > 2].text)])).logits[0, -1]
        expected = logits[[LABEL_IDS[at] for at in legal]].softmax(-1)
        torch.testing.assert_close(row[: len(legal)], expected, rtol=0, atol=1e-5)


# ---- the batch -------------------------------------------------------------------------------------------------------


def test_a_batch_computes_equal_prompts_once_and_knows_each_menu():
    batch = encoder().batch(RAGGED, CPU)
    rows, width = batch.inputs.input_ids.shape
    assert rows == 4
    ends = [row * width + len(tokens_of(RAGGED[row].text)) - 1 for row in (0, 1, 2, 3)]
    assert batch.inputs.last.tolist() == [*ends, ends[0]]
    assert batch.menu_size.tolist() == [2, 5, 3, 1, 2]
    assert tokenizer().convert_ids_to_tokens(batch.choice_ids.tolist()) == list("ABCDE")


def test_shortened_prompts_that_become_equal_share_a_row():
    texts = [replace(policy_prompt(4), history=(f"Past: {word}\n", "Past: last\n")) for word in ("this", "that")]
    limit = len(encoder().tokens(texts[0])) - 1
    batch = encoder(limit).batch(texts, CPU)
    assert batch.inputs.input_ids.size(0) == 1
    kept = encoder().tokens(replace(texts[0], history=("Past: last\n",)))
    assert batch.inputs.last.tolist() == [len(kept) - 1] * 2


@pytest.mark.parametrize(
    ("player", "prompts", "facts"),
    [
        (PromptEncoder(tokenizer(), LABEL_IDS[:4], 128), RAGGED, "menu of 5 actions.*4 labels.*max_actions"),
        (PromptEncoder(tokenizer(), LABEL_IDS[:4], 128), LISTED, "menu of 5 actions.*4 labels.*max_actions"),
        (encoder(), [RAGGED[0], reflector_prompt()], "menu"),
        (encoder(12), [policy_prompt(actions=5, past=3)], r"menu of 5 actions has \d+ tokens .* the model takes 12"),
    ],
)
def test_a_menu_that_is_missing_too_large_or_too_long_is_refused(player, prompts, facts):
    with pytest.raises(InvalidInput, match=facts):
        player.batch(prompts, CPU)


# ---- the length ------------------------------------------------------------------------------------------------------


def test_a_prompt_loses_no_more_history_than_it_must():
    prompt = replace(policy_prompt(4), history=tuple(f"Past: {word}\n" for word in ("first", "second", "third")))
    full = encoder().tokens(prompt)
    assert encoder(len(full)).tokens(prompt) == full == tokens_of(prompt.text)
    for limit, reserve in ((len(full) - 1, 0), (len(full), 1)):
        kept = tokenizer().decode(encoder(limit).tokens(prompt, reserve=reserve))
        assert kept == prompt.text.replace("Past: first\n", "")
    reserve = len(full) - len(encoder().tokens(bare(prompt)))
    assert tokenizer().decode(encoder(len(full)).tokens(prompt, reserve=reserve)) == bare(prompt).text
