from __future__ import annotations

import copy

import pytest
import torch
from accelerate import dispatch_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tiny import ARCHITECTURES, language_model, quantized, tokenizer
from transformers import AutoModelForCausalLM

from reflectrl.config.schema import LoraSection
from reflectrl.core import InvalidInput
from reflectrl.engine.head import add_choice_head
from reflectrl.models.adapters import add_lora

CHOICES = torch.tensor([41, 7, 300])
LAST = torch.tensor([8, 3, 5])
"""Of each of three rows."""
ENDS = LAST + 9 * torch.arange(3)
"""Counted through all rows."""


def token_ids(rows=3):
    return torch.randint(2, len(tokenizer()), (rows, 9), generator=torch.Generator().manual_seed(0))


def full_logits(model):
    """What the untouched model says about the choices at the last positions."""
    with torch.no_grad():
        logits = model(input_ids=token_ids(), use_cache=False).logits.float()
    return logits[torch.arange(3), LAST][:, CHOICES]


def choice_logits(model):
    with torch.no_grad():
        return model(input_ids=token_ids(), choice_ids=CHOICES, last=ENDS)[0]


def shaken(model, names=("lora_B", "trainable_tokens_delta")):
    """Adapters away from their start, where they change nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in names):
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


# ---- the logits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["gpt2", *ARCHITECTURES])
def test_choice_logits_are_the_label_rows_of_the_full_logits(architecture):
    model = language_model(architecture)
    expected = full_logits(model)
    add_choice_head(model)
    torch.testing.assert_close(choice_logits(model), expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 0.05  # the comparison is not one of zeros


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_adapters_are_part_of_the_choice_logits(architecture):
    model = language_model(architecture)
    bare = full_logits(model)
    model = shaken(add_lora(model, LoraSection(r=4), []))
    expected = full_logits(model)
    add_choice_head(model.get_base_model())
    torch.testing.assert_close(choice_logits(model), expected, rtol=1e-5, atol=1e-5)
    assert (expected - bare).abs().max() > 0.01


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])  # embeddings tied and not
def test_trained_label_tokens_are_part_of_the_choice_logits(architecture):
    model = language_model(architecture)
    bare = full_logits(model)
    model = shaken(add_lora(model, LoraSection(r=4), [41, 300]), names=["trainable_tokens_delta"])
    expected = full_logits(model)
    add_choice_head(model.get_base_model())
    torch.testing.assert_close(choice_logits(model), expected, rtol=1e-5, atol=1e-5)
    assert (expected - bare).abs().max() > 0.01


def test_gradients_reach_the_adapters():
    model = add_lora(language_model("llama"), LoraSection(r=4), [])
    add_choice_head(model.get_base_model())
    logits, _ = model(input_ids=token_ids(), choice_ids=CHOICES, last=ENDS)
    logits.log_softmax(-1)[:, 0].sum().backward()
    trained = [weight for name, weight in model.named_parameters() if "lora_B" in name]
    assert trained
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in trained)


@pytest.mark.parametrize("casting", ["autocast", "weights"])
def test_choice_logits_are_float32_in_half_precision(casting):
    model = language_model("llama")
    add_choice_head(model)
    if casting == "weights":
        logits = choice_logits(model.to(torch.bfloat16))
    else:
        with torch.autocast("cpu", torch.bfloat16):
            logits = choice_logits(model)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())  # they were computed in float32, not cast afterwards


# ---- the model is otherwise the same ---------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_generate_and_the_ordinary_forward_still_work(architecture):
    model = language_model(architecture)
    ids = token_ids()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # padding on the left, for which generate counts positions if it sees that forward takes them

    def speak():
        return model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)

    words, loss = speak(), model(input_ids=ids, labels=ids).loss
    add_choice_head(model)
    assert torch.equal(speak(), words)
    assert torch.equal(model(input_ids=ids, labels=ids).loss, loss)


def test_a_second_choice_head_changes_nothing():
    model = language_model("gpt2")
    add_choice_head(model)
    expected = choice_logits(model)
    add_choice_head(model)
    assert torch.equal(choice_logits(model), expected)


def test_a_copy_has_a_forward_and_a_choice_head_of_its_own():
    model = language_model("gpt2")
    add_choice_head(model)
    other = copy.deepcopy(model)
    expected = full_logits(other), choice_logits(other)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    assert torch.equal(full_logits(other), expected[0])
    assert torch.equal(choice_logits(other), expected[1])
    assert not torch.allclose(full_logits(model), expected[0])


def test_a_model_that_accelerate_has_dispatched_takes_a_choice_head():
    model = language_model("llama")
    expected = full_logits(model)
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    add_choice_head(model)
    torch.testing.assert_close(choice_logits(model), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(full_logits(model), expected)


# ---- the value head --------------------------------------------------------------------------------------------------


def values_of(model):
    return model(input_ids=token_ids(), choice_ids=CHOICES, last=ENDS)[1]


def test_values_are_zero_before_training_and_without_a_value_head():
    plain, valued = language_model("gpt2"), language_model("gpt2")
    add_choice_head(plain)
    add_choice_head(valued, value_head=True)
    assert torch.equal(values_of(plain), torch.zeros(3))
    assert torch.equal(values_of(valued), torch.zeros(3))
    assert not values_of(plain).requires_grad
    assert values_of(valued).requires_grad


def test_a_value_is_linear_in_the_last_hidden_state():
    model = language_model("gpt2")
    add_choice_head(model, value_head=True)
    torch.nn.init.normal_(model.value_head.weight)
    hidden = model.base_model(input_ids=token_ids()).last_hidden_state[torch.arange(3), LAST]
    torch.testing.assert_close(values_of(model), hidden @ model.value_head.weight[0])


def test_the_value_head_stays_out_of_the_saved_model(tmp_path):
    model = language_model("gpt2")
    expected = full_logits(model)
    add_choice_head(model, value_head=True)
    model.save_pretrained(tmp_path)
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    torch.testing.assert_close(full_logits(again.eval()), expected)


def test_the_value_head_under_adapters_is_trained_and_stays_out_of_the_adapter(tmp_path):
    model = add_lora(language_model("gpt2"), LoraSection(r=4), [])
    add_choice_head(model.get_base_model(), value_head=True)
    (values_of(model) - 1).square().sum().backward()
    assert model.get_base_model().value_head.weight.grad.abs().sum() > 0
    model.save_pretrained(str(tmp_path), save_embedding_layers=False)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert saved
    assert not [name for name in saved if "value_head" in name]


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft asks for it at each wrapping
def test_lora_on_the_lm_head_is_refused():
    model = get_peft_model(language_model("llama"), LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))
    with pytest.raises(InvalidInput, match="carries a LoRA adapter.*leave lm_head out of model.lora.target_modules"):
        add_choice_head(model.get_base_model(), value_head=True)
    assert not hasattr(model.get_base_model(), "value_head")


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_lm_head_is_refused(tmp_path, bits):
    with pytest.raises(InvalidInput, match="lm_head of the policy is quantised .*without quantising lm_head"):
        add_choice_head(quantized("llama", tmp_path, bits, llm_int8_skip_modules=[]))


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_base_with_a_plain_lm_head_is_read_exactly(tmp_path, bits):
    model = quantized("llama", tmp_path, bits, llm_int8_skip_modules=["lm_head"])
    expected = full_logits(model)
    add_choice_head(model)
    torch.testing.assert_close(choice_logits(model), expected, rtol=1e-5, atol=1e-5)
