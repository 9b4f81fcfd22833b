"""States below the first trained layer are computed once, and training gives the same results."""

from __future__ import annotations

import pytest
import torch
from tiny import gpt2, language_model, token_ids
from torch import nn

from reflectrl.engine.frozen_layers import FrozenLayers, frozen_layers
from reflectrl.engine.head import next_logits
from reflectrl.engine.sequences import padded, read_tree
from reflectrl.models.adapters import add_lora
from reflectrl.models.load import adopt_kernels
from reflectrl.models.section import LoraSection, ModelSection

ROWS = [token_ids(number // 3, 20) + token_ids(50 + number, 4 + number) for number in range(9)]
MINIBATCHES = (ROWS[:4], ROWS[2:7], ROWS[::-1], [*ROWS, ROWS[0]])
"""Minibatches of which the second has some new rows, and the third rows of all earlier passes."""


def upper(architecture, below=2, **options):
    """Return a model of four layers of which only the upper ones are trained."""
    model = language_model(architecture, num_hidden_layers=4, **options).requires_grad_(False)
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    for layer in layers[below:]:
        layer.requires_grad_(True)
    return model


def learned(model, rows, frozen=None, *, tree):
    """Return the logits of ``rows``, and the gradient of all weights as one vector."""
    inputs = read_tree(rows, model) if tree else padded(rows, model.device)
    if frozen is None:
        logits = next_logits(model, inputs)
    else:
        with frozen.skipped(rows, inputs):
            logits = next_logits(model, inputs)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    grads = torch.autograd.grad(logits.logsumexp(-1).sum(), trained, allow_unused=True)
    return logits.detach(), torch.cat([grad.flatten() for grad in grads if grad is not None])


def assert_same(model, frozen, minibatches=MINIBATCHES, *, tree=True, atol=1e-5):
    for rows in minibatches:
        (own, expected), (logits, grads) = (learned(model, rows, each, tree=tree) for each in (None, frozen))
        torch.testing.assert_close(logits, own, rtol=0, atol=atol * own.abs().max().item())
        torch.testing.assert_close(grads, expected, rtol=0, atol=atol * expected.abs().max().item())


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert", "opt", "gemma2"])
@pytest.mark.parametrize("tree", [True, False])
def test_logits_and_gradients_are_those_of_reading_everything(architecture, tree):
    model = upper(architecture)
    assert_same(model, frozen_layers(model), tree=tree)


def test_in_bfloat16_they_are_as_near_as_trees_of_other_rows():
    model = upper("llama")
    adopt_kernels(model, ModelSection(compute="bfloat16"))
    assert_same(model, frozen_layers(model), atol=0.05)


def test_a_token_goes_through_the_frozen_layers_once_until_they_forget():
    model = upper("llama")
    frozen, read = frozen_layers(model), []
    model.base_model.layers[1].self_attn.register_forward_pre_hook(
        lambda _, __, given: read.append(given["hidden_states"].size(1)), with_kwargs=True
    )

    def tokens(rows):
        read.clear()
        learned(model, rows, frozen, tree=True)
        return read

    whole = read_tree(ROWS, model).input_ids.numel()
    assert tokens(ROWS) == [whole]
    assert tokens(ROWS[:5]) == tokens(ROWS[::-1]) == []
    assert tokens([*ROWS, (60, 61)]) == [2]
    frozen.clear()
    assert tokens(ROWS) == [whole]


def test_states_beyond_the_limit_are_computed_each_time():
    model = upper("llama")
    layers, states = model.base_model.layers, 32 * 4  # bytes of a token
    for kept in (0, read_tree(ROWS[:4], model).input_ids.numel()):
        frozen = FrozenLayers(model, layers, 2, most_bytes=kept * states)
        assert_same(model, frozen)
        assert frozen.held_bytes == kept * states


def test_adapters_decide_where_training_begins_and_added_labels_that_there_is_no_such_place():
    for tokens, layers, below in (([], "2-3", 2), ([], None, None), ([40, 41], "2-3", None)):
        base = language_model("llama", num_hidden_layers=4)
        add_lora(base, LoraSection(r=2, layers=layers), tokens)
        frozen = frozen_layers(base)
        assert (frozen and frozen.count) == below


def test_what_cannot_begin_at_a_layer_is_left_alone():
    assert frozen_layers(gpt2(layers=2)) is None  # all of it is trained
    assert frozen_layers(upper("bloom")) is None  # its layers return more than states
    model, noted = upper("llama"), []
    layers = model.base_model.layers
    layers[0].mlp.register_forward_hook(lambda _, __, out: noted.append(out.sum()))
    layers[3].mlp.register_forward_hook(lambda _, __, out: out + noted[-1])
    assert frozen_layers(model) is None  # an upper layer reads more than the states


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the compiler itself
def test_a_compiled_model_is_left_alone():
    model = upper("llama")
    adopt_kernels(model, ModelSection(compile=True))
    assert frozen_layers(model) is None
