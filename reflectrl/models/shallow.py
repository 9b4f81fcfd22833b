"""A model of the recipe's shape with random weights and few layers, to measure what a layer costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from reflectrl.config.model import ModelSection
from reflectrl.engine.seeding import seeded
from reflectrl.models.builtin import make_base
from reflectrl.models.load import BUILTIN, LanguageModel, load_processor, new_model, no_progress_bars, read_config


def shallow_model(
    section: ModelSection, layers: int, folder: Path, *, corpus: Sequence[str], labels: Sequence[str]
) -> LanguageModel:
    """Return a model of ``layers`` layers with random weights, and the adapters, precision and kernels of ``section``.

    The layers that ``section`` gives adapters must be among these.

    Args:
        section: the recipe's model, of which only configuration and tokenizer are read.
        layers: number of layers, instead of the section's.
        folder: folder for the weights.
        corpus: texts that the tokenizer of the built-in model is trained on.
        labels: all menu labels.

    Raises:
        InvalidInput: the configuration cannot be read.

    """
    if section.name == BUILTIN:
        builtin = section.builtin.model_copy(update={"layers": layers})
        made = make_base(section.model_copy(update={"builtin": builtin}), folder, corpus=corpus, labels=labels, seed=0)
        return new_model(made, labels=labels, seed=0)
    config = read_config(section.name, section)
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    with seeded(0), no_progress_bars():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, section.dtype))
        model.save_pretrained(folder)
        load_processor(section.name, section)[1].save_pretrained(folder)
    return new_model(section.model_copy(update={"name": str(folder)}), labels=labels, seed=0)
