from __future__ import annotations

import pytest
import torch
from tiny import LABELS, gpt2, language_model, tokenizer

from reflectrl.lm.adapters import add_lora
from reflectrl.lm.load import LanguageModel, adopt_kernels, load_model, new_model, round_frozen, save_model
from reflectrl.lm.section import BuiltinSection, LoraSection, ModelSection
from reflectrl.pipeline.compute import Shape, has_bfloat16, shape_of, with_precision

WIDE = BuiltinSection(width=256)
QUANTISED = ModelSection(name="no/model", quantization="8bit", lora=LoraSection())


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (ModelSection(), "float32"),  # a nano model
        (ModelSection(builtin=WIDE), "bfloat16" if has_bfloat16() else "float32"),
        (ModelSection(builtin=WIDE, compute="bfloat16"), "bfloat16"),
        (ModelSection(compute="bfloat16"), "bfloat16"),
        (ModelSection(name="no/model", dtype="bfloat16"), "bfloat16"),
        (QUANTISED, "float32"),
    ],
)
def test_the_precision_follows_from_the_model_and_the_device(section, expected):
    assert with_precision(section).compute == expected


def test_the_shape_of_a_model_is_read_from_its_configuration(tmp_path):
    section = ModelSection(name=str(tmp_path), max_length=128)
    language_model("llama").config.save_pretrained(tmp_path)
    assert shape_of(section) == Shape(layers=2, width=32)
    gpt2(layers=3).config.save_pretrained(tmp_path)
    assert shape_of(section) == Shape(layers=3, width=32)


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
