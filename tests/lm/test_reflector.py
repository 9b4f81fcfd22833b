from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from records import reflector_prompt_of, shown
from tiny import (
    ACTIONS,
    GENERATION,
    LAYOUT,
    MAX_LENGTH,
    asking_for,
    draws,
    encoder,
    gpt2,
    history,
    language_model,
    prefix_cache,
    reflector_prompt,
    shaken,
    tokenizer,
)

from reflectrl.core import InvalidInput, Observation
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.section import LoraSection
from reflectrl.lm.writer import LMReflector

pytestmark = pytest.mark.numerical

PROMPTS = [reflector_prompt(number, past=number % 4) for number in range(8)]
DRAWS = draws(len(PROMPTS))


@pytest.fixture(scope="module")
def talker():
    return language_model("gpt2", seed=4)


def reflector(model, words=None, **options):
    settings = {"max_length": MAX_LENGTH, "max_new_tokens": 12, **options}
    return LMReflector(model, words or tokenizer(), **settings)


def say(model, prompts=PROMPTS, at=DRAWS, words=None, **options):
    return reflector(model, words, **options).say(shown(prompts), at)


def generated(model, prompt, tokens=12):
    """Return the token ids that ``model.generate`` writes after one prompt."""
    ids = torch.tensor([tokenizer()(prompt.text)["input_ids"]])
    said = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return said[0, ids.size(1) :].tolist()


def text_of(ids):
    return " ".join(tokenizer().decode(ids, skip_special_tokens=True).split())


def in_any_batch(model, **options):
    """Check that words are the same in one batch, in batches of three, one by one and with a prefix cache."""
    said = say(model, **options)
    assert say(model, **options, batch_size=3) == said
    assert say(model, PROMPTS[::-1], DRAWS[::-1], **options) == said[::-1]
    assert [say(model, [prompt], [draw], **options)[0] for prompt, draw in zip(PROMPTS, DRAWS, strict=True)] == said
    for limit in (256, 3):
        assert say(model, **options, prefix_cache=prefix_cache(limit=limit)) == said
    return said


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_greedy_says_what_generate_says_one_by_one_in_any_batch(architecture):
    model = language_model(architecture)
    expected = [generated(model, prompt) for prompt in PROMPTS]
    said = in_any_batch(model)
    assert [words.text for words in said] == [text_of(ids) for ids in expected]
    assert len({words.text for words in said}) > 1
    short = say(model, max_new_tokens=5)
    assert [words.text for words in short] == [text_of(ids[:5]) for ids in expected]
    assert max(words.tokens for words in short) == 5


@pytest.mark.parametrize("setting", GENERATION)
def test_the_settings_of_a_model_for_generating_do_not_change_its_words(setting, talker):
    """Nor do they change samples, as ``test_thinking.py`` shows."""
    model = asking_for(language_model("gpt2", seed=4), GENERATION[setting])
    assert say(model) == say(model, prefix_cache=prefix_cache()) == say(talker)


@pytest.mark.slow
def test_a_reflection_ends_at_the_end_of_text(talker):
    ids = generated(talker, PROMPTS[0])
    stop = next(n for n in range(1, len(ids)) if ids[n] not in ids[:n])
    short = copy.deepcopy(tokenizer())
    short.eos_token = short.convert_ids_to_tokens(ids[stop])
    said = in_any_batch(talker, words=short)
    assert (said[0].text, said[0].tokens) == (text_of(ids[:stop]), stop)
    assert len({words.tokens for words in said}) > 1
    assert in_any_batch(talker, words=short, temperature=1.0) != said


@pytest.mark.slow
def test_a_reflection_is_one_line():
    model = language_model("llama")
    raw = [tokenizer().decode(generated(model, prompt, tokens=60)) for prompt in PROMPTS]
    assert any("\n" in text.strip() for text in raw)
    assert [words.text for words in say(model, max_new_tokens=60)] == [" ".join(text.split()) for text in raw]


def test_a_prompt_leaves_room_for_its_reflection(talker):
    prompt = PROMPTS[3]
    full = len(encoder().tokens(prompt))
    shorter = replace(prompt, history=prompt.history[1:])
    assert say(talker, [prompt], [0.0], max_length=full + 11)[0].text == text_of(generated(talker, shorter))
    with pytest.raises(InvalidInput, match="the model takes 3"):
        say(talker, [prompt], [0.0], max_length=15)


def test_sampled_reflections_depend_on_prompt_and_draw(talker):
    in_any_batch(talker, temperature=1.0)
    player = reflector(talker, temperature=1.0)
    said = player.say(shown([PROMPTS[0]] * 8), DRAWS)
    assert len({words.text for words in said}) > 4
    assert (player.asked, player.written, player.hit_rate) == (8, 8, 0.0)
    assert player.say([], []) == reflector(talker, temperature=1.0, prefix_cache=prefix_cache()).say([], []) == []


# ---- the model -------------------------------------------------------------------------------------------------------


def test_reflecting_is_without_dropout_and_leaves_weights_mode_and_gradients_alone():
    model = gpt2(spread=0.2, resid_pdrop=0.5).train()
    before = copy.deepcopy(model.state_dict())
    assert say(model) == say(model)
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_cleared_reflector_follows_the_new_weights():
    model, held = gpt2(0, spread=0.2), prefix_cache()
    player = reflector(model, prefix_cache=held)
    assert player.speaks_with(model)
    assert not player.speaks_with(gpt2(0))
    old = player.say(shown(PROMPTS), DRAWS)
    model.load_state_dict(gpt2(1, spread=0.2).state_dict())
    assert held.count > 0
    assert player.say(shown(PROMPTS), DRAWS) == old  # greedy words are cached
    player.clear()
    assert held.count == 0
    assert player.say(shown(PROMPTS), DRAWS) == say(model) != old


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "temperature"), [("gpt2", 0.0), ("gemma2", 0.7)])
def test_a_prefix_cache_changes_no_reflection(architecture, temperature):
    model, held = language_model(architecture), prefix_cache()
    options = {"temperature": temperature, "cache_size": 0}
    plain, reusing = reflector(model, **options), reflector(model, **options, prefix_cache=held)
    layout = replace(LAYOUT, instructions="add one or subtract one until the number is the target", history=6)
    texts = set()
    for step in range(4):
        states = [Observation(f"Number {(number + step) % 10}, target {number}.", ACTIONS[:2]) for number in range(6)]
        views = shown([reflector_prompt_of(layout, state, history(step)) for state in states])
        said = reusing.say(views, draws(6, seed=step))
        assert said == plain.say(views, draws(6, seed=step))
        texts |= {words.text for words in said}
    assert len(texts) > 3
    assert held.computed < 0.8 * held.given


def test_a_single_player_with_adapters_says_the_same_with_a_prefix_cache():
    base = language_model("llama")
    model = add_lora(base, LoraSection(r=4), [40, 41])
    add_choice_head(base, value_head=True)
    bare = say(model)
    shaken(model, "lora_B", "trainable_tokens_delta").train()
    said = say(model, prefix_cache=prefix_cache())
    assert model.training
    assert said == say(model) != bare
