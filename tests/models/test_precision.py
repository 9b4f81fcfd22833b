from __future__ import annotations

import pytest
import torch
from tiny import LABELS, gpt2, language_model, tokenizer

from reflectrl.config.model import BuiltinSection, LoraSection, ModelSection
from reflectrl.models.adapters import add_lora
from reflectrl.models.kernels import adopt_kernels, round_frozen
from reflectrl.models.load import LanguageModel, load_model, new_model, save_model
from reflectrl.models.precision import Shape, bfloat16_speedup, given_precision, shape_of

WIDE = BuiltinSection(width=256)
QUANTISED = ModelSection(name="no/model", quantization="8bit", lora=LoraSection())


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (ModelSection(), "float32"),  # a nano model
        (ModelSection(builtin=WIDE), None),
        (ModelSection(builtin=WIDE, compute="bfloat16"), "bfloat16"),
        (ModelSection(compute="bfloat16"), "bfloat16"),
        (ModelSection(name="no/model", dtype="bfloat16"), "bfloat16"),
        (QUANTISED, "float32"),
    ],
)
def test_small_rounded_and_quantised_models_leave_no_choice(section, expected):
    assert given_precision(section) == expected


def test_the_shape_of_a_model_is_read_from_its_configuration(tmp_path):
    section = ModelSection(name=str(tmp_path), max_length=128)
    language_model("llama").config.save_pretrained(tmp_path)
    assert shape_of(section) == Shape(layers=2, width=32, inner=48)
    gpt2(layers=3).config.save_pretrained(tmp_path)
    assert shape_of(section) == Shape(layers=3, width=32, inner=128)


def test_a_trial_leaves_random_numbers_and_threads_alone():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    assert 0.01 < bfloat16_speedup(Shape(layers=1, width=96, inner=200), seconds=0) < 100
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_frozen_matrices_are_stored_as_autocast_would_round_them(architecture):
    section, ids = ModelSection(compute="bfloat16"), torch.tensor([[2, 3, 4, 5]])
    cast, stored = (add_lora(language_model(architecture), LoraSection(r=4), []) for _ in range(2))
    for model in (cast, stored):
        adopt_kernels(model.get_base_model(), section)
    round_frozen(stored, section)
    assert torch.equal(stored(input_ids=ids).logits, cast(input_ids=ids).logits)
    rounded = {name.rpartition(".")[0] for name, weight in stored.named_parameters() if weight.dtype == torch.bfloat16}
    assert rounded
    assert all("base_layer" in name for name in rounded)


def test_adapters_are_put_in_the_layers_that_are_named(tmp_path):
    base = gpt2(layers=3)
    save_model(LanguageModel(base, tokenizer()), tmp_path / "base")
    section = ModelSection(name=str(tmp_path / "base"), max_length=64, lora=LoraSection(r=2, layers="1-2"))
    lm = new_model(section, labels=LABELS, seed=0)
    adapted = {name.split(".h.")[1][0] for name, weight in lm.model.named_parameters() if weight.requires_grad}
    assert adapted == {"1", "2"}
    save_model(lm, tmp_path / "policy")
    again = load_model(tmp_path / "policy", section, trainable=True).model
    assert {n for n, w in again.named_parameters() if w.requires_grad} == {
        n for n, w in lm.model.named_parameters() if w.requires_grad
    }
