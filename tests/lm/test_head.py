"""Logits of next tokens and of menu labels equal those of the model itself, for heads of any kind."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from accelerate import dispatch_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tiny import ARCHITECTURES, MAX_LENGTH, language_model, shaken, token_ids
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from reflectrl.core import InvalidInput
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.head import LogitScale, add_choice_head, next_logits
from reflectrl.lm.reuse import refusal
from reflectrl.lm.section import LoraSection
from reflectrl.lm.sequences import padded

pytestmark = pytest.mark.numerical

ROWS = [token_ids(0, 9), token_ids(1, 4), token_ids(2, 6)]
CHOICES = torch.tensor([41, 7, 300])


def own_logits(model):
    """Return the (3, V) logits of the model's own forward after each row alone."""
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row]), use_cache=False).logits[:, -1].float() for row in ROWS])


def asked(model):
    """Return the (3, 3) logits of the choices and the (3,) values."""
    inputs = padded(ROWS, model.device)
    return model(input_ids=inputs.input_ids, choice_ids=CHOICES, last=inputs.last)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("reflectrl")]


# ---- logits ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_the_model_itself(architecture, caplog):
    model = language_model(architecture)
    expected = own_logits(model)
    assert expected.std() > 0.02
    assert_close(next_logits(model, padded(ROWS, model.device)), expected)
    add_choice_head(model, value_head=True)
    logits, values = asked(model)
    assert_close(logits, expected[:, CHOICES])
    assert torch.equal(own_logits(model), expected)
    assert values.tolist() == [0.0] * 3
    (values.sum() + logits.log_softmax(-1)[:, 0].sum()).backward()
    assert model.value_head.weight.grad.abs().sum() > 0
    assert warnings_in(caplog) == []


@pytest.mark.parametrize(("architecture", "labels"), [("gpt2", [41, 300]), ("llama", [41, 300]), ("gemma2", [])])
def test_adapters_and_trained_label_tokens_are_part_of_the_choice_logits(architecture, labels):
    model = language_model(architecture)
    bare = own_logits(model)
    model = shaken(add_lora(model, LoraSection(r=4), labels), "lora_B", "trainable_tokens_delta")
    expected = own_logits(model)
    add_choice_head(model.get_base_model())
    logits, _ = asked(model)
    assert_close(logits, expected[:, CHOICES])
    assert (expected - bare).abs().max() > 0.01
    logits.log_softmax(-1)[:, 0].sum().backward()
    trained = [weight for name, weight in model.named_parameters() if "lora_B" in name]
    assert trained
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in trained)


def test_choice_logits_are_computed_in_float32_in_half_precision():
    model = language_model("llama")
    add_choice_head(model)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = asked(model)
    for logits in (cast, asked(model.to(torch.bfloat16))[0]):
        assert logits.dtype == torch.float32
        assert not torch.equal(logits, logits.bfloat16().float())  # not cast afterwards


class Unasked(GPT2LMHeadModel):
    """Model with a forward that does not call its output matrix."""

    def forward(self, *args, **given):
        output = super().forward(*args, **given)
        output.logits = F.linear(self.transformer(*args, **{**given, "use_cache": False})[0], self.lm_head.weight)
        return output


class Barring(GPT2LMHeadModel):
    """Model that masks tokens by their place in the vocabulary, as models that also generate images do."""

    def forward(self, *args, **given):
        output = super().forward(*args, **given)
        output.logits[..., 2] = torch.finfo(output.logits.dtype).min
        return output


@pytest.mark.parametrize("kind", [Unasked, Barring])
def test_a_head_without_single_rows_is_computed_whole(kind, caplog):
    source = language_model("gpt2")
    model = kind(source.config).eval()
    model.load_state_dict(source.state_dict())
    expected = own_logits(model)
    add_choice_head(model, value_head=True)
    logits, values = asked(model)
    assert_close(logits, expected[:, CHOICES])
    assert_close(next_logits(model, padded(ROWS, model.device)), expected)
    assert values.requires_grad
    assert refusal(model, MAX_LENGTH) is None
    (line,) = warnings_in(caplog)
    assert line.startswith(kind.__name__)


# ---- the model is otherwise the same ---------------------------------------------------------------------------------


def test_a_choice_head_changes_nothing_else():
    model = language_model("gpt2")
    ids = torch.tensor([token_ids(seed, 9) for seed in range(3)])
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # left padding, for which generate passes positions if it finds that forward accepts them

    def state():
        words = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
        return words, model(input_ids=ids, labels=ids).loss

    before = state()
    add_choice_head(model)
    assert all(map(torch.equal, state(), before))
    expected = own_logits(model), asked(model)[0]
    add_choice_head(model)  # a second one changes nothing
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    assert all(map(torch.equal, (own_logits(other), asked(other)[0]), expected))
    assert not torch.allclose(own_logits(model), expected[0])


def test_a_model_that_accelerate_has_dispatched_takes_a_choice_head():
    model = language_model("llama")
    expected = own_logits(model)
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    add_choice_head(model)
    logits, values = asked(model)
    assert_close(logits, expected[:, CHOICES])
    assert_close(own_logits(model), expected)
    assert (values.tolist(), values.requires_grad) == ([0.0] * 3, False)


# ---- the value head --------------------------------------------------------------------------------------------------


def test_a_value_head_is_linear_and_not_saved(tmp_path):
    model = language_model("gpt2")
    add_choice_head(model, value_head=True)
    torch.nn.init.normal_(model.value_head.weight)
    inputs = padded(ROWS, model.device)
    hidden = model.base_model(input_ids=inputs.input_ids).last_hidden_state.flatten(0, 1)[inputs.last]
    torch.testing.assert_close(asked(model)[1], hidden @ model.value_head.weight[0])
    model.save_pretrained(tmp_path)
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    torch.testing.assert_close(own_logits(again.eval()), own_logits(model))


@pytest.mark.parametrize("trunk", [True, False])
def test_the_loss_of_values_trains_the_layers_below_only_where_it_should(trunk):
    model = language_model("gpt2")
    add_choice_head(model, value_head=True, value_trains_trunk=trunk)
    torch.nn.init.normal_(model.value_head.weight)
    asked(model)[1].square().sum().backward()
    assert model.value_head.weight.grad.abs().sum() > 0
    below = [weight.grad for name, weight in model.named_parameters() if not name.startswith("value_head")]
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in below) == trunk


def test_the_value_head_stays_out_of_the_adapter(tmp_path):
    model = add_lora(language_model("gpt2"), LoraSection(r=4), [])
    add_choice_head(model.get_base_model(), value_head=True)
    (asked(model)[1] - 1).square().sum().backward()
    assert model.get_base_model().value_head.weight.grad.abs().sum() > 0
    model.save_pretrained(str(tmp_path), save_embedding_layers=False)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert saved
    assert not [name for name in saved if "value_head" in name]


# ---- refusals --------------------------------------------------------------------------------------------------------


class Sighted(GPT2LMHeadModel):
    def forward(self, pixels, **given):  # noqa: ARG002
        raise AssertionError


def lora_on_the_head():
    return get_peft_model(
        language_model("llama"), LoraConfig(r=2, target_modules=["q_proj", "lm_head"])
    ).get_base_model()


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "gpt_neox"])
def test_all_logits_are_multiplied_exactly(architecture):
    model = language_model(architecture)
    before = own_logits(model)
    scale = LogitScale(model)
    assert torch.equal(own_logits(model), before)
    for factor in (3.0, 0.5):
        scale.set(factor)
        assert_close(own_logits(model), factor * before)


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: language_model("gemma2"), "not proportional to its last norm"),
        (lambda: get_peft_model(language_model("llama"), LoraConfig(r=2)).get_base_model(), "model.lora=null"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of peft at each wrapping
def test_logits_that_cannot_be_multiplied_are_refused(make, facts):
    with pytest.raises(InvalidInput, match=facts):
        LogitScale(make())


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: language_model("bert", is_decoder=False), "BertLMHeadModel.*is_decoder"),
        (lambda: language_model("xlm", causal=False), "XLMWithLMHeadModel.*is_decoder .XLM: causal."),
        (lambda: Sighted(language_model("gpt2").config), "Sighted.*TypeError.*model.name"),
        (lora_on_the_head, "lm_head.*model.lora.target_modules"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of transformers for encoders, of peft at each wrapping
def test_a_model_whose_label_rows_cannot_be_read_is_refused(make, facts):
    model = make()
    with pytest.raises(InvalidInput, match=facts):
        add_choice_head(model, value_head=True)
    assert not hasattr(model, "value_head")
