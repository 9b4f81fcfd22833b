"""4-bit layers compute the same way on processors that bitsandbytes packs weights for (avx512_bf16) and on others."""

from __future__ import annotations

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from tiny import quantized
from tiny_models import LABELS, save_tiny

from reflectrl.core import InvalidInput
from reflectrl.models.adapters import check_4bit, prepare_quantized
from reflectrl.models.load import new_model


def layer(inputs: int, outputs: int, *, packs: bool) -> Linear4bit:
    """A 4-bit layer of which bitsandbytes believes that this processor packs its weights, or that it does not."""
    made = Linear4bit(inputs, outputs, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    made.load_state_dict({"weight": weight})
    made = made.to("cpu").eval()
    made.support_avx512bf16_for_cpu = packs
    return made


SIDES = [(64, 48), (96, 64), (32, 32)]


@pytest.mark.parametrize(("inputs", "outputs"), SIDES)
def test_a_layer_that_cannot_be_packed_is_refused_by_name_where_weights_are_packed(inputs, outputs):
    layers = {"first": layer(64, 64, packs=True), "h.0.mlp": layer(inputs, outputs, packs=True)}
    with pytest.raises(InvalidInput, match=rf"the layer 'h.0.mlp' of 'some/base', {outputs} x {inputs}, cannot be"):
        check_4bit("some/base", layers)


@pytest.mark.parametrize(("inputs", "outputs"), SIDES)
def test_the_same_layer_is_fine_where_they_are_not(inputs, outputs):
    check_4bit("some/base", {"h.0.mlp": layer(inputs, outputs, packs=False)})


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_prepared_base_never_packs_so_that_all_its_sides_work_and_gradients_flow(tmp_path, architecture):
    model = quantized(architecture, tmp_path, 4)
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    for each in layers:
        each.support_avx512bf16_for_cpu = True  # as on such a processor
    prepare_quantized(model)
    ids = torch.tensor([[2, 3, 4]])
    with torch.no_grad():
        played = model.eval()(ids).logits
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    updated = model(inputs_embeds=embedded).logits
    updated.sum().backward()
    assert not any(getattr(each.weight.quant_state, "packing_format_for_cpu", False) for each in layers)
    assert torch.equal(played, updated)
    assert embedded.grad.abs().min() > 0


def test_bases_are_prepared_as_they_are_loaded(tmp_path):
    section = save_tiny("llama", tmp_path).model_copy(update={"quantization": "4bit"})
    model = new_model(section, labels=LABELS, seed=0).model
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert layers
    assert all(each.support_avx512bf16_for_cpu is False for each in layers)  # bitsandbytes' own answer is a number
