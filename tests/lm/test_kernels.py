from __future__ import annotations

import copy

import pytest
import setuptools  # noqa: F401 - the compiler's, which cannot be imported after a package that imports distutils
import torch
from records import shown
from tiny import MAX_LENGTH, encoder, language_model, policy_prompt, prefix_cache
from transformers import GPT2LMHeadModel
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from reflectrl.core import InvalidInput
from reflectrl.lm.encode import action_distribution
from reflectrl.lm.head import add_choice_head, next_logits
from reflectrl.lm.load import adopt_kernels
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.reuse import refusal
from reflectrl.lm.section import ModelSection
from reflectrl.lm.sequences import read_tree

PROMPTS = [policy_prompt(number, actions=2 + number % 3, past=number % 3) for number in range(6)]


def probabilities(model):
    return action_distribution(model, encoder().batch(PROMPTS, model.device))[0].probs


def with_kernels(architecture, **options):
    model = language_model(architecture)
    adopt_kernels(model, ModelSection(**options))
    add_choice_head(model)
    return model


def test_the_fused_activation_of_gpt2_computes_the_same():
    plain, fused = language_model("gpt2"), with_kernels("gpt2")
    assert any(isinstance(module, NewGELUActivation) for module in plain.modules())
    assert not any(isinstance(module, NewGELUActivation) for module in fused.modules())
    add_choice_head(plain)
    for own in (plain, fused):
        probabilities(own)[:, 0].log().sum().backward()
    torch.testing.assert_close(probabilities(fused), probabilities(plain), rtol=0, atol=1e-6)
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(dict(fused.named_parameters())[name].grad, weight.grad, rtol=1e-4, atol=1e-6)


def test_weights_in_bfloat16_keep_path_attention():
    model = language_model("llama").to(torch.bfloat16)
    adopt_kernels(model, ModelSection(dtype="bfloat16", compute="bfloat16"))
    assert refusal(model, MAX_LENGTH) is None
    assert "paths" in read_tree([(1, 2, 3), (1, 2, 4)], model).extra


@pytest.mark.parametrize("length", [40, 400])  # attention in float32, and in bfloat16
def test_a_tree_in_bfloat16_has_the_gradients_of_float32_up_to_rounding(length):
    rows = [(*(1 + place % 9 for place in range(length)), 1 + row) for row in range(3)]
    norms = []
    for compute in ("float32", "bfloat16"):
        model = language_model("llama", max_position_embeddings=512)
        adopt_kernels(model, ModelSection(compute=compute))
        assert refusal(model, length + 1) is None
        tree = read_tree(rows, model)
        assert (tree.extra["paths"].keys.size(1) < 256) is (length == 40)
        next_logits(model, tree).log_softmax(-1)[:, 0].sum().backward()
        norms.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    exact, cast = norms
    assert exact.keys() == cast.keys()
    for name, slope in exact.items():
        assert 0 < (cast[name] - slope).norm() < 0.1 * slope.norm() + 1e-6, name


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_pass_in_bfloat16_trains_float32_weights(architecture):
    plain, cast = with_kernels(architecture), with_kernels(architecture, compute="bfloat16")
    seen = []
    layer = next(module for module in cast.modules() if isinstance(module, torch.nn.Linear | Conv1D))
    layer.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    probs, exact = probabilities(cast), probabilities(plain)
    assert seen == [torch.bfloat16]
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs, exact, rtol=0, atol=0.03)
    assert not torch.equal(probs, exact)
    probs[:, 0].log().sum().backward()
    assert {weight.grad.dtype for weight in cast.parameters() if weight.grad is not None} == {torch.float32}
    assert layer.weight.grad.abs().sum() > 0
    assert refusal(cast, 128) is None
    ids = torch.tensor([[2, 3, 4, 5]])
    said = cast.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    assert said.shape == (1, 8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.filterwarnings("ignore:Distutils was imported before Setuptools")  # by another test's package
@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # likewise
def test_a_compiled_model_says_the_same_and_plays_with_a_prefix_cache():
    plain, compiled = (language_model("gpt2", num_hidden_layers=1) for _ in range(2))
    add_choice_head(plain)
    add_choice_head(compiled)  # first, because each way to call it takes seconds to compile
    adopt_kernels(compiled, ModelSection(compile=True))
    torch.testing.assert_close(probabilities(compiled), probabilities(plain), rtol=0, atol=1e-5)
    for own in (plain, compiled):
        own.zero_grad()
        probabilities(own)[:, 0].log().sum().backward()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(dict(compiled.named_parameters())[name].grad, weight.grad, rtol=1e-4, atol=1e-5)
    draws = [0.5] * len(PROMPTS)
    cached = LMPolicy(compiled, encoder(), prefix_cache=prefix_cache()).act(shown(PROMPTS), draws)
    expected = LMPolicy(copy.deepcopy(plain), encoder()).act(shown(PROMPTS), draws)
    assert [decision.choice.index for decision in cached] == [decision.choice.index for decision in expected]


def test_a_model_without_a_named_trunk_is_refused():
    class Nameless(GPT2LMHeadModel):
        base_model_prefix = "nothing"

    model = Nameless(language_model("gpt2").config)
    with pytest.raises(InvalidInput, match="Nameless.*model.compute=float32"):
        adopt_kernels(model, ModelSection(compute="bfloat16"))
    adopt_kernels(model, ModelSection())
    assert "forward" not in vars(model)
