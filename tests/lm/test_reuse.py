"""Prefix reuse is accepted for models that compute the same with it, and refused for all others."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import MAX_LENGTH, gpt2, language_model
from transformers import GPT2LMHeadModel, GPT2Model

from reflectrl.lm.head import add_choice_head
from reflectrl.lm.reuse import prefix_cache_for, refusal
from reflectrl.lm.seeding import seeded
from reflectrl.lm.sequences import read_tree

pytestmark = pytest.mark.numerical


def around(trunk):
    """Return a class of GPT-2 with another trunk."""

    class Model(GPT2LMHeadModel):
        def __init__(self, config):
            super().__init__(config)
            self.transformer = trunk(config)
            self.post_init()

    return Model


# ---- accepted --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("gemma2", {}),
        ("cohere", {}),
        ("mistral", {"sliding_window": None}),
        ("qwen2_moe", {"sliding_window": 0, "shared_expert_intermediate_size": 8}),  # 0 means no window
    ],
)
def test_attention_alone_is_accepted_with_every_kernel_and_type(architecture, options):
    model = language_model(architecture, **options)
    kernels = {model.config._attn_implementation, "eager"}
    assert kernels == ({"eager"} if architecture == "gemma2" else {"sdpa", "eager"})
    for kernel in sorted(kernels):
        model.set_attn_implementation(kernel)
        assert refusal(model, MAX_LENGTH) is None
    assert refusal(model.to(torch.bfloat16), MAX_LENGTH) is None


@pytest.mark.slow
def test_rounding_that_a_deep_model_amplifies_is_accepted():
    model = language_model("llama", seed=1, num_hidden_layers=30, initializer_range=0.5)
    assert refusal(model.to(torch.bfloat16), MAX_LENGTH) is None


def test_an_accepted_model_gets_a_cache_of_its_type(caplog):
    for dtype in (torch.float32, torch.bfloat16):
        held = prefix_cache_for(language_model("llama").to(dtype), MAX_LENGTH, "policy")
        assert (held.count, held.given, held.computed) == (0, 0, 0)
        next(held.read([(1, 2, 3)]))
        assert held.extend([(4,)]).extra["attention_mask"].dtype == dtype
    assert not [record for record in caplog.records if record.name.startswith("reflectrl")]


@pytest.mark.parametrize("training", [True, False])
def test_the_check_changes_neither_model_nor_random_state(training):
    model = gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train(training)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    numbers = torch.get_rng_state(), random.getstate()
    assert refusal(model, MAX_LENGTH) is None
    add_choice_head(model)
    assert model.training is training
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), numbers[0])
    assert random.getstate() == numbers[1]


# ---- refused ---------------------------------------------------------------------------------------------------------


class NoPaths(GPT2Model):
    def forward(self, *args, paths=None, **given):  # noqa: ARG002
        return super().forward(*args, **given)


def test_trees_are_read_with_a_mask_where_path_attention_does_not_reach():
    with seeded(0):
        reached, other = gpt2(), around(NoPaths)(gpt2().config).eval()
    for model in (reached, other):
        assert refusal(model, MAX_LENGTH) is None
    assert (reached.path_attention, other.path_attention) == (True, False)
    assert "paths" not in read_tree([(1, 2), (1, 3)], other).extra


class NoMaskForTrees(NoPaths):
    def forward(self, *args, attention_mask=None, past_key_values=None, **given):
        mask = None if past_key_values is None else attention_mask
        return super().forward(*args, attention_mask=mask, past_key_values=past_key_values, **given)


class NoMaskForSlots(GPT2Model):
    def forward(self, *args, attention_mask=None, past_key_values=None, **given):
        mask = attention_mask if past_key_values is None or attention_mask is None else torch.zeros_like(attention_mask)
        return super().forward(*args, attention_mask=mask, past_key_values=past_key_values, **given)


class CountsForItself(GPT2Model):
    def forward(self, *args, position_ids=None, **given):  # noqa: ARG002
        return super().forward(*args, **given)


@pytest.mark.parametrize("careless", [NoMaskForTrees, NoMaskForSlots, CountsForItself])
def test_an_ignored_mask_or_position_shows(careless):
    careful = gpt2()
    assert careful.config.initializer_range == 0.02
    model = around(careless)(careful.config)
    model.load_state_dict(careful.state_dict())
    assert refusal(careful, MAX_LENGTH) is None
    assert refusal(model.eval(), MAX_LENGTH) == "its architecture reads them wrongly"


@pytest.mark.parametrize("architecture", ["mistral", "gemma2"])
def test_a_window_that_prompts_outgrow_is_refused(architecture):
    model = language_model(architecture, sliding_window=8)
    assert "a prompt (9 tokens)" in refusal(model, 9)
    assert refusal(model, 8) is None


class Near(NoPaths):
    """Model that attends to 48 previous places in plain rows, whatever the mask, and to all with key-value states."""

    def forward(self, *args, attention_mask=None, **given):
        if attention_mask is not None and given.get("past_key_values") is None:
            far = torch.ones_like(attention_mask, dtype=torch.bool).tril(-48)
            attention_mask = attention_mask.masked_fill(far, torch.finfo(attention_mask.dtype).min)
        return super().forward(*args, attention_mask=attention_mask, **given)


@pytest.mark.parametrize("spread", [0.2, 0.02])
def test_a_window_that_only_trees_outgrow_is_refused(spread):
    with seeded(0):
        model = around(Near)(gpt2(spread=spread).config).eval()
    assert refusal(model, 16, 40) is None
    assert "an update (150)" in refusal(model, 16, 150)


@pytest.mark.parametrize("kinds", [("global", "local"), ("global", "global")])
def test_a_causal_mask_that_is_fixed_by_place_is_refused(kinds):
    size = {"max_position_embeddings": 512, "window_size": 256}
    model = language_model("gpt_neo", attention_types=[[list(kinds), 1]], **size)
    for dtype in (torch.float32, torch.bfloat16):
        assert "if beginnings are kept or shared" in refusal(model.to(dtype), MAX_LENGTH, 320)


def test_the_reason_for_a_refusal_is_logged_with_the_setting_to_change(caplog):
    flash = language_model("llama")
    flash.config._attn_implementation = "flash_attention_2"
    models = [*map(language_model, ("falcon_h1", "xlm", "recurrent_gemma")), flash]
    assert [prefix_cache_for(model, MAX_LENGTH, "reflector") for model in models] == [None] * 4
    reasons = ["does not take them (", "(AssertionError", "reads them wrongly", "kernel flash_attention_2"]
    ours = [record for record in caplog.records if record.name.startswith("reflectrl")]
    for reason, record in zip(reasons, ours, strict=True):
        assert record.levelname == "WARNING"
        for fact in ("reflector", reason, "model.prefix_reuse=false", "model.attn_implementation"):
            assert fact in record.getMessage()
