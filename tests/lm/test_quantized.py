"""Quantised bases give the same results at play and in updates, whether or not bitsandbytes packs their weights."""

from __future__ import annotations

import logging

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from tiny import MAX_LENGTH, quantized, token_ids

from reflectrl.core import InvalidInput
from reflectrl.lm.adapters import check_4bit, prepare_quantized
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.reuse import refusal
from reflectrl.lm.sequences import padded

pytestmark = pytest.mark.numerical


def layer(inputs: int, outputs: int, *, packs: bool) -> Linear4bit:
    """Return a 4-bit layer for which bitsandbytes assumes that this processor packs weights, or that it does not."""
    made = Linear4bit(inputs, outputs, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    made.load_state_dict({"weight": weight})
    made = made.to("cpu").eval()
    made.support_avx512bf16_for_cpu = packs
    return made


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (96, 64), (32, 32)])
def test_a_layer_that_cannot_be_packed_is_refused(inputs, outputs):
    layers = {"first": layer(64, 64, packs=True), "h.0.mlp": layer(inputs, outputs, packs=True)}
    with pytest.raises(InvalidInput, match=rf"'h.0.mlp' of 'some/base', {outputs} x {inputs}, .*model.quantization"):
        check_4bit("some/base", layers)
    check_4bit("some/base", {"h.0.mlp": layer(inputs, outputs, packs=False)})


@pytest.mark.parametrize(("architecture", "bits"), [("gpt2", 8), ("gpt2", 4), ("llama", 8), ("llama", 4)])
def test_a_quantised_base_is_read_exactly(tmp_path, architecture, bits, caplog):
    caplog.set_level(logging.ERROR, logger="bitsandbytes")  # it logs the type of computation at each call
    model = quantized(architecture, tmp_path, bits, llm_int8_skip_modules=["lm_head"])
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    for each in layers:
        each.support_avx512bf16_for_cpu = True  # as on a processor that packs weights
    prepare_quantized(model)
    assert refusal(model, MAX_LENGTH) is None
    inputs, choices = padded([token_ids(0, 9), token_ids(1, 4)], model.device), torch.tensor([41, 7, 300])
    with torch.no_grad():
        played = model.eval()(inputs.input_ids).logits
        add_choice_head(model)
        logits, _ = model(input_ids=inputs.input_ids, choice_ids=choices, last=inputs.last)
    torch.testing.assert_close(logits, played.flatten(0, 1)[inputs.last][:, choices], rtol=1e-5, atol=1e-5)
    embedded = model.get_input_embeddings()(inputs.input_ids).detach().requires_grad_()
    updated = model(inputs_embeds=embedded).logits
    updated.sum().backward()
    assert bool(layers) == (bits == 4)
    assert not any(getattr(each.weight.quant_state, "packing_format_for_cpu", False) for each in layers)
    assert torch.equal(played, updated)
    assert embedded.grad.abs().min() > 0


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_lm_head_is_refused(tmp_path, bits):
    with pytest.raises(InvalidInput, match="lm_head.*model.quantization"):
        add_choice_head(quantized("llama", tmp_path, bits, llm_int8_skip_modules=[]))
