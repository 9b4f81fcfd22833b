from __future__ import annotations

import logging

import pytest
import torch
from tiny import MAX_LENGTH, SHAPE, gpt2, language_model, quantized, tokenizer
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2LMHeadModel,
    GPT2Model,
    MistralConfig,
)

from reflectrl.config.schema import LoraSection
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.reuse import prefix_cache_for, refusal
from reflectrl.models.adapters import add_lora

# ---- who can ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "gemma2", "granite", "cohere"])
def test_architectures_with_attention_alone_can(architecture):
    model = language_model(architecture)
    kernels = {model.config._attn_implementation, "eager"}
    assert kernels == ({"eager"} if architecture == "gemma2" else {"sdpa", "eager"})
    for kernel in sorted(kernels):
        model.set_attn_implementation(kernel)
        assert refusal(model, MAX_LENGTH) is None


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_models_in_half_precision_can(architecture):
    assert refusal(language_model(architecture).to(torch.bfloat16), MAX_LENGTH) is None


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_models_can(tmp_path, architecture, bits, caplog):
    caplog.set_level(logging.ERROR, logger="bitsandbytes")  # it says at each call in what it computes
    assert refusal(quantized(architecture, tmp_path, bits), MAX_LENGTH) is None


def test_models_with_adapters_and_a_choice_head_can():
    model = add_lora(language_model("llama"), LoraSection(r=4), [])
    add_choice_head(model.get_base_model(), value_head=True)
    assert refusal(model.get_base_model(), MAX_LENGTH) is None


@pytest.mark.parametrize("training", [True, False])
def test_asking_is_without_dropout_and_leaves_the_model_as_it_was(training):
    model = gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train(training)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert refusal(model, MAX_LENGTH) is None
    assert model.training is training
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


# ---- who cannot ------------------------------------------------------------------------------------------------------


def test_a_state_that_is_no_attention_is_refused():
    assert refusal(language_model("falcon_h1"), MAX_LENGTH).startswith("its architecture does not take them (")
    assert refusal(language_model("recurrent_gemma"), MAX_LENGTH) == "its architecture reads them wrongly"


WINDOWED = {"mistral": MistralConfig, "gemma2": Gemma2Config}


def windowed(architecture, window):
    config = WINDOWED[architecture](
        vocab_size=len(tokenizer()), pad_token_id=0, bos_token_id=1, eos_token_id=1, sliding_window=window, **SHAPE
    )
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_window_that_prompts_outgrow_is_refused(architecture):
    model = windowed(architecture, 8)
    assert "as with a window of attention shorter than a prompt (9 tokens)" in refusal(model, 9)
    assert refusal(model, 8) is None


def test_an_architecture_whose_window_is_off_can():
    assert refusal(windowed("mistral", None), MAX_LENGTH) is None


def test_a_kernel_without_masks_is_refused():
    model = language_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    assert refusal(model, MAX_LENGTH) == "its attention kernel flash_attention_2 takes no mask of one's own"


class NoMaskForTrees(GPT2Model):
    def forward(self, *args, attention_mask=None, past_key_values=None, **given):
        mask = None if past_key_values is None else attention_mask
        return super().forward(*args, attention_mask=mask, past_key_values=past_key_values, **given)


class NoMaskForSlots(GPT2Model):
    def forward(self, *args, attention_mask=None, past_key_values=None, **given):
        mask = attention_mask if past_key_values is None else torch.zeros_like(attention_mask)
        return super().forward(*args, attention_mask=mask, past_key_values=past_key_values, **given)


class CountsForItself(GPT2Model):
    def forward(self, *args, position_ids=None, **given):  # noqa: ARG002
        return super().forward(*args, **given)


@pytest.mark.parametrize("careless", [NoMaskForTrees, NoMaskForSlots, CountsForItself])
@pytest.mark.parametrize("seed", range(3))
def test_a_mask_or_position_that_is_ignored_shows_even_in_a_model_close_to_uniform(careless, seed):
    class Careless(GPT2LMHeadModel):
        def __init__(self, config):
            super().__init__(config)
            self.transformer = careless(config)
            self.post_init()

    careful = gpt2(seed)
    assert careful.config.initializer_range == 0.02
    model = Careless(careful.config)
    model.load_state_dict(careful.state_dict())
    assert refusal(careful, MAX_LENGTH) is None
    assert refusal(model.eval(), MAX_LENGTH) == "its architecture reads them wrongly"


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_who_cannot_is_named_with_the_reason_and_what_to_do(caplog):
    assert prefix_cache_for(language_model("recurrent_gemma"), MAX_LENGTH, "reflector") is None
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "the reflector reads every prompt from its beginning: its architecture reads them wrongly; "
            "set model.prefix_reuse=false, or another model.attn_implementation.",
        )
    ]


def test_who_can_gets_empty_slots_of_its_own_type_without_a_word(caplog):
    for dtype in (torch.float32, torch.bfloat16):
        model = language_model("llama").to(dtype)
        held = prefix_cache_for(model, MAX_LENGTH, "policy")
        assert (held.count, held.given, held.computed) == (0, 0, 0)
        (inputs,) = [inputs for _, inputs in held.read([(1, 2, 3)])]
        assert inputs.extra["attention_mask"].dtype == dtype
    assert caplog.records == []
