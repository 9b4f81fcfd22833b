from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from records import shown
from tiny import MAX_LENGTH, draws, encoder, language_model, policy_prompt, prefix_cache, shaken, tokenizer

from reflectrl.core import InvalidInput
from reflectrl.lm.adapters import add_lora, load_lora
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.reflecting import ACTING, REFLECTING, ReflectingPolicy, add_reflector, take_reflector
from reflectrl.lm.section import LoraSection
from reflectrl.lm.writer import LMReflector
from reflectrl.prompts.format import before_reflection, with_reflection

ARCHITECTURES = {"gpt2": [], "llama": [40, 41]}
"""Architectures with their added label tokens, whose embeddings each adapter trains."""
PROMPTS = [policy_prompt(number, actions=2 + number % 3, past=number % 3, said=None) for number in range(6)]


def adapter(architecture, seed):
    """Return a fixed base with an adapter that depends on the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = add_lora(language_model(architecture), LoraSection(r=4), ARCHITECTURES[architecture])
        for name, weight in model.named_parameters():
            if "lora_" in name or "trainable_tokens" in name:
                torch.nn.init.normal_(weight, std=0.3)
    return LanguageModel(model, tokenizer())


def both(architecture, folder):
    """Return both players on one base, with the reflector loaded from the folder that it is saved in."""
    adapter(architecture, 1).model.save_pretrained(str(folder), save_embedding_layers=False)
    lm = adapter(architecture, 2)
    add_reflector(lm, folder)
    add_choice_head(lm.base, value_head=True)
    shaken(lm.base, "value_head.weight", spread=0.1)
    return lm


def policy_of(lm, *, held=False):
    caches = (prefix_cache(), prefix_cache()) if held else (None, None)
    actor = LMPolicy(lm.model, encoder(), prefix_cache=caches[1])
    return ReflectingPolicy(lm, encoder(), actor, max_new_tokens=7, temperature=0.8, caches=caches)


def scored(policy, decisions):
    """Return the (N, 3) scores of label, reflection and value, in the order of the decisions."""
    found = torch.zeros(len(decisions), 3)
    for part in policy.divide(shown(PROMPTS), decisions, max_tokens=300):
        scores = policy.score(part)
        found[list(part.indices)] = torch.stack([scores.logprobs, scores.thought_logprobs, scores.values], 1).detach()
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("held", [True, False])
def test_both_adapters_score_what_they_sampled_with_its_probability(architecture, held, tmp_path):
    policy = policy_of(both(architecture, tmp_path), held=held)
    decisions = policy.act(shown(PROMPTS), draws(6))
    played = [(each.logprob, each.choice.written.thought_logprob, each.value) for each in decisions]
    assert torch.allclose(scored(policy, decisions), torch.tensor(played), atol=1e-4)
    assert len({each.value for each in decisions}) > 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_they_say_and_do_what_two_players_of_their_own_would(architecture, tmp_path):
    policy = policy_of(both(architecture, tmp_path)).greedy()
    decisions = policy.act(shown(PROMPTS), draws(6))
    alone = adapter(architecture, 1)
    reflector = LMReflector(alone.model, alone.tokenizer, max_length=MAX_LENGTH, max_new_tokens=7)
    words = reflector.say(shown([before_reflection(prompt) for prompt in PROMPTS]), draws(6))
    assert [" ".join(each.choice.written.text.split()) for each in decisions] == [each.text for each in words]
    assert len({each.text for each in words}) > 1
    acting = adapter(architecture, 2)
    add_choice_head(acting.base)
    reading = [with_reflection(prompt, each.text) for prompt, each in zip(PROMPTS, words, strict=True)]
    expected = LMPolicy(acting.model, encoder(), greedy=True).act(shown(reading), draws(6))
    for one, other in zip(decisions, expected, strict=True):
        assert one.choice.probabilities == pytest.approx(other.choice.probabilities, abs=1e-5)


def test_each_adapter_learns_from_its_own_text_and_the_base_from_none(tmp_path):
    lm = both("llama", tmp_path)
    policy = policy_of(lm)
    decisions = policy.act(shown(PROMPTS), draws(6))
    [part] = policy.divide(shown(PROMPTS), decisions, max_tokens=10_000)

    def learning(loss):
        lm.model.zero_grad()
        loss.sum().backward(retain_graph=True)
        moved = [name for name, weight in lm.model.named_parameters() if weight.grad is not None and weight.grad.any()]
        kinds = ("value_head", ACTING, REFLECTING)
        return {next((kind for kind in kinds if kind in name.split(".")), "base") for name in moved}

    scores = policy.score(part)
    assert learning(scores.logprobs) == {ACTING}
    assert learning(scores.thought_logprobs) == {REFLECTING}
    assert learning(scores.values) == {"value_head", REFLECTING}  # read before anything is written


def test_after_training_the_two_are_adapters_like_any_other(tmp_path):
    lm = both("llama", tmp_path / "before")
    take_reflector(lm, tmp_path / "after")
    assert list(lm.model.peft_config) == [ACTING]
    before, after = (
        load_lora(language_model("llama"), tmp_path / each, trainable=False).state_dict()
        for each in ("before", "after")
    )
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert (tmp_path / "after" / "tokenizer.json").is_file()


def test_another_reflector_beside_it_is_refused(tmp_path):
    policy = policy_of(both("gpt2", tmp_path))
    views = [replace(view, said={"reflector": "Good."}) for view in shown(PROMPTS[:1])]
    with pytest.raises(InvalidInput, match="another reflector was given"):
        policy.act(views, [0.0])
