"""Continuous batching of transformers writes what the engine's own loop does, with weights that change in between."""

from __future__ import annotations

import pytest
import torch
from tiny import draws, encoder, language_model, prefix_cache, reflector_prompt

from reflectrl.lm.decode import Sampler, write
from reflectrl.lm.load import adopt_kernels
from reflectrl.lm.paged import PagedWriter, writes_in_pages
from reflectrl.lm.section import ModelSection

pytestmark = pytest.mark.numerical

ROWS = [encoder().tokens(reflector_prompt(number, past=number % 4)) for number in range(16)]
LIMIT = 12
GIVEN = draws(len(ROWS))


def own(model, sampler, ends=()):
    return write(model, prefix_cache(), ROWS, sampler, ends=ends, limit=LIMIT)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_words_and_their_probabilities_are_those_of_the_own_loop(architecture):
    model = language_model(architecture, seed=4)
    for ends in ((), None):
        greedy = own(model, Sampler([], 0.0))
        ends = ends if ends is not None else sorted({greedy[0][5], own(model, Sampler(GIVEN, 1.0))[1][3]})
        writer = PagedWriter(model, ends=ends, limit=LIMIT)
        assert writer.write(ROWS, Sampler([], 0.0)) == own(model, Sampler([], 0.0), ends)
        theirs, ours = Sampler(GIVEN, 1.0), Sampler(GIVEN, 1.0)
        expected = own(model, ours, ends)
        assert len(set(map(tuple, expected))) > 8
        assert len(set(map(len, expected))) > (1 if ends else 0)
        assert writer.write(ROWS, theirs) == expected
        for number, text in enumerate(expected):
            assert theirs.logprobs(number, len(text)) == pytest.approx(ours.logprobs(number, len(text)), abs=1e-5)


def test_a_sample_depends_on_its_draw_alone_at_each_call():
    model = language_model("llama", seed=4)
    writer = PagedWriter(model, ends=(), limit=LIMIT)
    alone = [writer.write([row], Sampler([draw], 1.0))[0] for row, draw in zip(ROWS[:4], GIVEN, strict=False)]
    together = writer.write(ROWS, Sampler(GIVEN, 1.0))  # more texts than before, and longer ones
    assert together[:4] == alone
    assert writer.write(ROWS[::-1], Sampler(GIVEN[::-1], 1.0)) == together[::-1]
    assert writer.write(ROWS, Sampler(GIVEN[::-1], 1.0)) != together
    assert writer.write([], Sampler([], 1.0)) == []


def test_new_weights_write_new_words():
    model = language_model("llama", seed=4)
    writer = PagedWriter(model, ends=(), limit=LIMIT)
    before = writer.write(ROWS, Sampler(GIVEN, 1.0))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(-1.5 if "mlp" in name else 1.0)
    writer.forget()
    after = writer.write(ROWS, Sampler(GIVEN, 1.0))
    assert after == own(model, Sampler(GIVEN, 1.0))
    assert sum(old != new for old, new in zip(before, after, strict=True)) > 8


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_model_is_tried_first(architecture, caplog):
    assert writes_in_pages(language_model(architecture))
    model = language_model(architecture, seed=4)
    adopt_kernels(model, ModelSection(compute="bfloat16"))  # keys and values differ in their types
    assert writes_in_pages(model)
    words = PagedWriter(model, ends=(), limit=LIMIT).write(ROWS, Sampler([], 0.0))
    assert sum(said == wanted for said, wanted in zip(words, own(model, Sampler([], 0.0)), strict=True)) > 12
    assert not caplog.messages


def test_a_model_that_writes_otherwise_keeps_the_own_loop(caplog):
    assert not writes_in_pages(language_model("gemma2"))
    model = language_model("llama")
    whole = model.lm_head.forward
    model.lm_head.forward = lambda hidden: whole(-hidden if hidden.shape[:-1] == (1, 3) else hidden)  # of three texts
    assert not writes_in_pages(model)
    eager, off = (record.message for record in caplog.records if record.name == "reflectrl.lm.paged")
    assert eager == "Gemma2ForCausalLM writes without continuous batching: its attention kernel is eager, not sdpa."
    assert "standard deviations off" in off
