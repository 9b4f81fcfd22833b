"""Architectures whose heads are more than a matrix, or whose attention is not what a mask says."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from tiny import MAX_LENGTH, SHAPE, language_model, tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoConfig,
    OPTConfig,
    Qwen2MoeConfig,
    XLMConfig,
)

from reflectrl.core import InvalidInput
from reflectrl.engine.decode import Decoder, Sampler
from reflectrl.engine.head import add_choice_head, next_logits
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.reuse import prefix_cache_for, refusal
from reflectrl.engine.seeding import seeded
from reflectrl.engine.sequences import padded

VOCABULARY = {"vocab_size": len(tokenizer()), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
EXPERTS = {"num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "num_experts_per_tok": 1}


def named(kind, **options):
    """A tiny config of an architecture that keeps to the usual names."""
    given = {**SHAPE, **VOCABULARY, "moe_intermediate_size": 8, **EXPERTS}
    known = AutoConfig.for_model(kind)
    return AutoConfig.for_model(kind, **{k: v for k, v in given.items() if hasattr(known, k)}, **options)


def xlm(**options):
    return XLMConfig(
        vocab_size=len(tokenizer()), emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=MAX_LENGTH, **options
    )


def opt_350m():
    shape = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "init_std": 0.2}
    return OPTConfig(
        word_embed_proj_dim=16, do_layer_norm_before=False, max_position_embeddings=MAX_LENGTH, **shape, **VOCABULARY
    )


def neo(window, kinds=("global", "local")):
    return GPTNeoConfig(
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=512,
        attention_types=[[list(kinds), 1]],
        window_size=window,
        initializer_range=0.2,
        **VOCABULARY,
    )


CONFIGS = {
    "ModernBERT decoder": lambda: named("modernbert-decoder"),
    "BERT decoder": lambda: named("bert", is_decoder=True),
    "RemBERT decoder": lambda: named("rembert", is_decoder=True, output_embedding_size=24, input_embedding_size=16),
    "OPT-350m": opt_350m,
    "Llama 4": lambda: named("llama4_text", intermediate_size_mlp=16),
    "Inkling": lambda: named("inkling_text", logits_mup_width_multiplier=24.0),
    "XLM": lambda: xlm(causal=True),
    "GPT-Neo": lambda: neo(16),
}


def made(config):
    with seeded(0):
        return AutoModelForCausalLM.from_config(config).eval()


def words(seed, count):
    return tuple(random.Random(seed).choices(range(3, 60), k=count))


ROWS = [words(0, 9), words(1, 4), words(2, 6)]
CHOICES = torch.tensor([41, 7, 300])


def full_logits(model):
    """(3, V) what the untouched model says after each row by itself."""
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row])).logits[:, -1].float() for row in ROWS])


def choice_logits(model, **options):
    add_choice_head(model, **options)
    inputs = padded(ROWS, model.device)
    return model(input_ids=inputs.input_ids, choice_ids=CHOICES, last=inputs.last)


# ---- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_choices_and_of_next_tokens_are_those_of_the_model_itself(name, caplog):
    model = made(CONFIGS[name]())
    expected = full_logits(model)
    assert expected.std() > 0.02
    torch.testing.assert_close(next_logits(model, padded(ROWS, model.device)), expected, rtol=1e-4, atol=1e-5)
    logits, values = choice_logits(model, value_head=True)
    torch.testing.assert_close(logits, expected[:, CHOICES], rtol=1e-4, atol=1e-5)
    assert torch.equal(full_logits(model), expected)
    (values.sum() + logits.log_softmax(-1)[:, 0].sum()).backward()
    assert model.value_head.weight.grad.abs().sum() > 0
    assert said(caplog) == []


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("reflectrl")]


class Unasked(GPT2LMHeadModel):
    """Its forward never calls its output matrix."""

    def forward(self, *args, **given):
        output = super().forward(*args, **given)
        output.logits = F.linear(self.transformer(*args, **{**given, "use_cache": False})[0], self.lm_head.weight)
        return output


class Barring(GPT2LMHeadModel):
    """Bars tokens by their place in the vocabulary, as models that also speak in images do."""

    def forward(self, *args, **given):
        output = super().forward(*args, **given)
        output.logits[..., 2] = torch.finfo(output.logits.dtype).min
        return output


class Shared(GPT2LMHeadModel):
    """Its logits depend on those of other tokens."""

    def forward(self, *args, **given):
        output = super().forward(*args, **given)
        output.logits = output.logits + output.logits[..., :1]
        return output


@pytest.mark.parametrize("kind", [Unasked, Barring, Shared])
def test_a_head_that_cannot_be_asked_for_single_rows_is_asked_for_all_and_a_line_says_so(kind, caplog):
    source = language_model("gpt2")
    model = kind(source.config).eval()
    model.load_state_dict(source.state_dict())
    expected = full_logits(model)
    logits, values = choice_logits(model, value_head=True)
    torch.testing.assert_close(logits, expected[:, CHOICES], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(next_logits(model, padded(ROWS, model.device)), expected, rtol=1e-5, atol=1e-5)
    assert values.requires_grad
    if kind is not Shared:
        assert refusal(model, MAX_LENGTH) is None
    (line,) = said(caplog)
    assert line.startswith(f"{kind.__name__} computes the logits of its whole vocabulary")


@pytest.mark.parametrize("kind", [None, Barring])
def test_texts_are_those_of_generate_whatever_the_head(kind):
    model = made(named("modernbert-decoder"))
    if kind is not None:
        source = language_model("gpt2")
        model = kind(source.config).eval()
        model.load_state_dict(source.state_dict())
    texts = Decoder(model, PrefixCache(model.device, model.dtype), [1], 6).write(ROWS, Sampler([], 0.0))
    for row, text in zip(ROWS, texts, strict=True):
        ids = torch.tensor([row])
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        assert found[0, len(row) :].tolist()[: len(text)] == text


@pytest.mark.parametrize(
    "config", [named("bert"), xlm(causal=False, init_std=0.2, embed_init_std=0.2)], ids=["bert", "xlm"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_reads_what_comes_later_is_refused(config):
    with pytest.raises(InvalidInput, match="attends to tokens that come later.*set is_decoder .XLM: causal. to true"):
        add_choice_head(made(config))


def test_a_model_that_needs_more_than_text_is_refused():
    class Sighted(GPT2LMHeadModel):
        def forward(self, pixels, **given):  # noqa: ARG002
            raise AssertionError

    with pytest.raises(InvalidInput, match="Sighted could not read token ids alone .TypeError: .*set model.name"):
        add_choice_head(Sighted(language_model("gpt2").config))


# ---- reuse -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kinds", [("global", "local"), ("global", "global")])
def test_a_causal_mask_that_is_fixed_by_place_is_refused(kinds, dtype):
    model = made(neo(256, kinds)).to(dtype)
    assert "if beginnings are kept or shared" in refusal(model, MAX_LENGTH, 320)


class Near(GPT2Model):
    """In rows, attends to 48 places before each only, wherever the mask says; with key-value states to all."""

    def forward(self, *args, attention_mask=None, **given):
        if attention_mask is not None and given.get("past_key_values") is None:
            far = torch.ones_like(attention_mask, dtype=torch.bool).tril(-48)
            attention_mask = attention_mask.masked_fill(far, torch.finfo(attention_mask.dtype).min)
        return super().forward(*args, attention_mask=attention_mask, **given)


@pytest.mark.parametrize("spread", [0.2, 0.02])
def test_a_window_that_only_trees_outgrow_is_refused(spread):
    config = language_model("gpt2").config
    config.initializer_range = spread

    class Windowed(GPT2LMHeadModel):
        def __init__(self, config):
            super().__init__(config)
            self.transformer = Near(config)
            self.post_init()

    with seeded(0):
        model = Windowed(config).eval()
    assert refusal(model, 16, 40) is None
    assert "or an update (150)" in refusal(model, 16, 150)


def test_a_window_of_zero_tokens_is_one_that_is_off():
    config = Qwen2MoeConfig(
        sliding_window=0,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
        num_experts=2,
        num_experts_per_tok=1,
        **SHAPE,
        **VOCABULARY,
    )
    assert refusal(made(config), MAX_LENGTH) is None


def test_an_architecture_that_ends_in_an_assertion_is_refused_with_it(caplog):
    assert prefix_cache_for(made(xlm(causal=True)), MAX_LENGTH, "policy") is None
    (line,) = said(caplog)
    assert "its architecture does not take them (AssertionError" in line


def test_what_is_tried_leaves_all_random_numbers_as_they_were():
    model = made(neo(256))
    before = torch.get_rng_state(), random.getstate()
    refusal(model, MAX_LENGTH)
    add_choice_head(model)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
