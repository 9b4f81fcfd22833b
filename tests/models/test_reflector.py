from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from records import reflector_prompt_of, shown
from tiny import ACTIONS, LAYOUT, MAX_LENGTH, encoder, gpt2, history, language_model, reflector_prompt, tokenizer

from reflectrl.config.schema import LoraSection
from reflectrl.core import InvalidInput, Observation
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.models.adapters import add_lora
from reflectrl.models.reflector import LMReflector

PROMPTS = [reflector_prompt(number, past=number % 4) for number in range(8)]
ZEROS = [0.0] * len(PROMPTS)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    return language_model(request.param)


@pytest.fixture(scope="module")
def talker():
    """Which model does not matter to what is tested with this one."""
    return language_model("gpt2", seed=3)


def reflector(model, **options):
    return LMReflector(
        model, options.pop("tokenizer", tokenizer()), max_length=MAX_LENGTH, **{"max_new_tokens": 12, **options}
    )


def generated(model, prompt, tokens=12):
    """What ``model.generate`` says to one prompt, as token ids."""
    ids = torch.tensor([tokenizer()(prompt.text)["input_ids"]])
    with torch.no_grad():
        said = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return said[0, ids.size(1) :].tolist()


def text_of(ids):
    return " ".join(tokenizer().decode(ids, skip_special_tokens=True).split())


# ---- greedy ----------------------------------------------------------------------------------------------------------


def test_greedy_says_what_generate_says_one_by_one(model):
    said = reflector(model).say(shown(PROMPTS), ZEROS)
    assert [words.text for words in said] == [text_of(generated(model, prompt)) for prompt in PROMPTS]
    assert len({words.text for words in said}) > 1


def test_words_do_not_depend_on_the_batch(model):
    together = reflector(model).say(shown(PROMPTS), ZEROS)
    assert reflector(model, batch_size=3).say(shown(PROMPTS), ZEROS) == together
    assert [reflector(model).say(shown([prompt]), [0.0])[0] for prompt in PROMPTS] == together


def test_a_models_own_repetition_penalty_does_not_make_words_depend_on_the_batch():
    model = language_model("gpt2")
    expected = reflector(model).say(shown(PROMPTS), ZEROS)
    model.generation_config.repetition_penalty = 5.0
    assert reflector(model).say(shown(PROMPTS), ZEROS) == expected


def test_a_reflection_ends_at_the_end_of_text_token(talker):
    prompt = PROMPTS[0]
    ids = generated(talker, prompt)
    stop = next(n for n in range(1, len(ids)) if ids[n] not in ids[:n])
    short = copy.deepcopy(tokenizer())
    short.eos_token = short.convert_ids_to_tokens(ids[stop])
    (words,) = reflector(talker, tokenizer=short).say(shown([prompt]), [0.0])
    assert words.text == text_of(ids[:stop])
    assert words.tokens == stop


def test_a_row_that_ends_early_does_not_disturb_the_others(talker):
    expected = reflector(talker).say(shown(PROMPTS), ZEROS)
    ids = generated(talker, PROMPTS[0])
    stop = next(n for n in range(1, len(ids)) if ids[n] not in ids[:n])
    short = copy.deepcopy(tokenizer())
    short.eos_token = short.convert_ids_to_tokens(ids[stop])
    alone = [reflector(talker, tokenizer=short).say(shown([prompt]), [0.0])[0] for prompt in PROMPTS]
    assert reflector(talker, tokenizer=short).say(shown(PROMPTS), ZEROS) == alone
    assert alone != expected
    assert len({words.tokens for words in alone}) > 1


def test_a_reflection_is_at_most_max_new_tokens_long(model):
    said = reflector(model, max_new_tokens=5).say(shown(PROMPTS), ZEROS)
    assert max(words.tokens for words in said) == 5
    assert [words.text for words in said] == [text_of(generated(model, prompt, tokens=5)) for prompt in PROMPTS]


def test_a_reflection_is_one_line():
    newline = tokenizer()("\n")["input_ids"][0]
    model = language_model("llama")
    with torch.no_grad():  # a model that says a new line after everything
        model.lm_head.weight.zero_()
        hidden = model.base_model(input_ids=torch.tensor([encoder().tokens(PROMPTS[0])])).last_hidden_state[0, -1]
        model.lm_head.weight[newline] = hidden
    (words,) = reflector(model, max_new_tokens=1).say(shown(PROMPTS[:1]), [0.0])
    assert (words.text, words.tokens) == ("", 1)
    model = language_model("llama")
    said = reflector(model, max_new_tokens=60).say(shown(PROMPTS), ZEROS)
    raw = [tokenizer().decode(generated(model, prompt, tokens=60)) for prompt in PROMPTS]
    assert any("\n" in text.strip() for text in raw)
    assert not any("\n" in words.text or "  " in words.text for words in said)


def test_a_prompt_leaves_room_for_its_reflection(talker):
    prompt = PROMPTS[3]
    full = len(encoder().tokens(prompt))
    tight = LMReflector(talker, tokenizer(), max_length=full + 11, max_new_tokens=12)
    shorter = replace(prompt, history=prompt.history[1:])
    assert tight.say(shown([prompt]), [0.0])[0].text == text_of(generated(talker, shorter))
    with pytest.raises(InvalidInput, match="a prompt has .* without anything that may be cut, but the model takes 3"):
        LMReflector(talker, tokenizer(), max_length=15, max_new_tokens=12).say(shown([prompt]), [0.0])


# ---- the cache -------------------------------------------------------------------------------------------------------


def written(player, prompts):
    """Number of reflections that the player has to write for these prompts, shown one after the other."""
    before = player.written
    for prompt in prompts:
        player.say(shown([prompt]), [0.0])
    return player.written - before


def test_what_was_said_once_is_not_written_again(talker):
    player = reflector(talker)
    assert player.hit_rate == 0.0
    first = player.say(shown(PROMPTS), ZEROS)
    assert (player.asked, player.written, player.hit_rate) == (8, 8, 0.0)
    second = player.say(shown(PROMPTS), ZEROS)
    assert (player.asked, player.written, player.hit_rate) == (16, 8, 0.5)
    assert [words.text for words in second] == [words.text for words in first]


def test_a_prompt_repeated_within_a_batch_is_written_once(talker):
    player = reflector(talker)
    said = player.say(shown([PROMPTS[0], PROMPTS[1], PROMPTS[0]]), [0.0, 0.5, 0.9])
    assert (player.asked, player.written) == (3, 2)
    assert said[2].text == said[0].text


def test_the_cache_is_exact(talker):
    player = reflector(talker)
    player.say(shown(PROMPTS[:5]), ZEROS[:5])
    fresh = reflector(talker).say(shown(PROMPTS), ZEROS)
    assert [words.text for words in player.say(shown(PROMPTS), ZEROS)] == [words.text for words in fresh]


def test_the_cache_drops_what_was_used_least_recently(talker):
    one, two, three = PROMPTS[:3]
    player = reflector(talker, cache_size=2)
    for prompt in (one, two, one, three):  # three pushes two out
        player.say(shown([prompt]), [0.0])
    assert player.written == 3
    assert written(player, [one, three]) == 0
    assert written(player, [two]) == 1
    assert written(player, [one]) == 1  # two pushed it out


def test_within_a_batch_too_the_last_used_are_kept(talker):
    one, two, three, four = PROMPTS[:4]
    player = reflector(talker, cache_size=3)
    player.say(shown([one, two]), [0.0] * 2)
    player.say(shown([two, three, four, one]), [0.0] * 4)  # two is the oldest of four
    assert written(player, [three, four, one]) == 0
    assert written(player, [two]) == 1


def test_a_cache_smaller_than_a_batch_still_answers_the_whole_batch(talker):
    player = reflector(talker, cache_size=3)
    expected = reflector(talker).say(shown(PROMPTS), ZEROS)
    for _ in range(2):
        assert [words.text for words in player.say(shown(PROMPTS), ZEROS)] == [words.text for words in expected]
    assert player.written > 8
    last = player.written
    player.say(shown(PROMPTS[-3:]), ZEROS[-3:])
    assert player.written == last


def test_without_a_cache_every_reflection_is_written(talker):
    player = reflector(talker, cache_size=0)
    for _ in range(2):
        player.say(shown(PROMPTS), ZEROS)
    assert (player.asked, player.written, player.hit_rate) == (16, 16, 0.0)


def test_a_cleared_cache_follows_the_new_weights():
    model = gpt2(0, spread=0.2)
    player = reflector(model)
    assert player.speaks_with(model)
    assert not player.speaks_with(gpt2(0))
    player.say(shown(PROMPTS), ZEROS)
    model.load_state_dict(gpt2(1, spread=0.2).state_dict())
    player.clear()
    said = [words.text for words in player.say(shown(PROMPTS), ZEROS)]
    assert said == [words.text for words in reflector(model).say(shown(PROMPTS), ZEROS)]


# ---- sampling --------------------------------------------------------------------------------------------------------


def draws(count, seed=0):
    rng = random.Random(seed)
    return [rng.random() for _ in range(count)]


def test_sampled_reflections_are_a_function_of_prompt_and_draw(model):
    given = draws(len(PROMPTS))
    together = reflector(model, temperature=1.0).say(shown(PROMPTS), given)
    assert reflector(model, temperature=1.0).say(shown(PROMPTS), given) == together
    assert reflector(model, temperature=1.0, batch_size=3).say(shown(PROMPTS), given) == together
    assert reflector(model, temperature=1.0).say(shown(PROMPTS[::-1]), given[::-1]) == together[::-1]
    alone = [reflector(model, temperature=1.0).say(shown([p]), [d])[0] for p, d in zip(PROMPTS, given, strict=True)]
    assert alone == together


def test_other_draws_say_other_words_and_nothing_is_cached(talker):
    player = reflector(talker, temperature=1.0)
    said = player.say(shown([PROMPTS[0]] * 8), draws(8))
    assert len({words.text for words in said}) > 4
    assert (player.asked, player.written, player.hit_rate) == (8, 8, 0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_tokens_follow_the_softmax_at_the_temperature(talker, temperature):
    prompt, count = PROMPTS[0], 2000
    ids = torch.tensor([encoder().tokens(prompt)])
    with torch.no_grad():
        expected = (talker(input_ids=ids).logits[0, -1] / temperature).softmax(-1)
    player = reflector(talker, temperature=temperature, max_new_tokens=1)
    found = Counter(words.text for words in player.say(shown([prompt] * count), draws(count)))
    shares: Counter[str] = Counter()
    for token, share in enumerate(expected.tolist()):
        shares[text_of([token])] += share
    likely = [text for text, share in shares.items() if share > 0.02]
    assert len(likely) >= 3
    for text in likely:
        spread = (shares[text] * (1 - shares[text]) / count) ** 0.5
        assert abs(found[text] / count - shares[text]) < 4 * spread


def test_a_low_temperature_is_nearly_greedy(model):
    greedy = [words.text for words in reflector(model).say(shown(PROMPTS), ZEROS)]
    cold = [words.text for words in reflector(model, temperature=1e-4).say(shown(PROMPTS), draws(8))]
    assert cold == greedy


# ---- the model -------------------------------------------------------------------------------------------------------


def test_reflecting_leaves_weights_mode_and_gradients_alone():
    model = gpt2(spread=0.2, resid_pdrop=0.5).train()
    before = copy.deepcopy(model.state_dict())
    said = reflector(model).say(shown(PROMPTS), ZEROS)
    assert model.training
    assert said == reflector(model).say(shown(PROMPTS), ZEROS)  # no dropout
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


# ---- what was read before --------------------------------------------------------------------------------------------


def slots(**options):
    return PrefixCache(torch.device("cpu"), torch.float32, **options)


def steps_of_episodes():
    """Prompts of four steps of six episodes, each with the draws of its step."""
    long = replace(LAYOUT, instructions="add one or subtract one until the number is the target", history=6)
    for step in range(4):
        seen = [Observation(f"Number {(number + step) % 10}, target {number}.", ACTIONS[:2]) for number in range(6)]
        yield [reflector_prompt_of(long, each, history(step)) for each in seen], draws(6, seed=step)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2", "granite"])
def test_with_slots_the_same_words_are_said(architecture, temperature):
    model = language_model(architecture)
    held = slots()
    plain, reusing = (
        reflector(model, temperature=temperature, cache_size=0),
        reflector(model, temperature=temperature, cache_size=0, prefix_cache=held),
    )
    texts = set()
    for prompts, given in steps_of_episodes():
        said = reusing.say(shown(prompts), given)
        assert said == plain.say(shown(prompts), given)
        texts |= {words.text for words in said}
    assert len(texts) > 3
    assert held.computed < 0.8 * held.given


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_slots_equal_prompts_and_an_end_of_text_are_no_different(talker, temperature):
    ids = generated(talker, PROMPTS[0])
    stop = next(n for n in range(1, len(ids)) if ids[n] not in ids[:n])
    short = copy.deepcopy(tokenizer())
    short.eos_token = short.convert_ids_to_tokens(ids[stop])
    options = {"tokenizer": short, "temperature": temperature, "cache_size": 0}
    prompts = [PROMPTS[index] for index in (0, 0, 3, 0, 3, 5, 6, 7)] * 5
    expected = reflector(talker, **options).say(shown(prompts), draws(40))
    assert reflector(talker, **options, prefix_cache=slots()).say(shown(prompts), draws(40)) == expected
    assert reflector(talker, **options, prefix_cache=slots(limit=3)).say(shown(prompts), draws(40)) == expected
    assert len({words.tokens for words in expected}) > 1


def test_with_slots_a_single_player_with_adapters_says_the_same():
    base = language_model("llama")
    model = add_lora(base, LoraSection(r=4), [40, 41])
    add_choice_head(base, value_head=True)
    bare = reflector(model).say(shown(PROMPTS), ZEROS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or "trainable_tokens_delta" in name:
                weight.normal_(0, 0.3, generator=generator)
    model.train()
    said = reflector(model, prefix_cache=slots()).say(shown(PROMPTS), ZEROS)
    assert model.training
    assert said == reflector(model).say(shown(PROMPTS), ZEROS)
    assert said != bare


def test_clearing_forgets_the_states_of_the_old_weights_too():
    model = gpt2(0, spread=0.2)
    held = slots()
    player = reflector(model, prefix_cache=held)
    player.say(shown(PROMPTS), ZEROS)
    model.load_state_dict(gpt2(1, spread=0.2).state_dict())
    assert held.count > 0
    player.clear()
    assert held.count == 0
    fresh = [words.text for words in reflector(model).say(shown(PROMPTS), ZEROS)]
    assert [words.text for words in player.say(shown(PROMPTS), ZEROS)] == fresh


def test_with_slots_nobody_to_reflect_for_is_no_work(talker):
    assert reflector(talker, prefix_cache=slots(), temperature=1.0).say(shown([]), []) == []
    assert reflector(talker, temperature=1.0).say(shown([]), []) == []
