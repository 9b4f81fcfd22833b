"""Faster computation of the same function: fused activations, bfloat16 by autocast, ``torch.compile``."""

from __future__ import annotations

import types
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation

from reflectrl.config.schema import ModelSection
from reflectrl.core import InvalidInput


def adopt_kernels(model: PreTrainedModel, section: ModelSection) -> None:
    """Have the trunk of ``model``, which everything goes through, compute as ``section`` says.

    GPT-2's activation is computed by one kernel instead of eight, each of which keeps a tensor for the gradient.
    Compiled code reads prompts and updates; passes over kept key-value states, whose shapes change with each step, stay
    as they are. Under autocast the trunk still ends in the type of the weights.

    Raises:
        InvalidInput: an architecture without a trunk of its own name.

    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, GELUTanh())
    if not (section.autocast or section.compile):
        return
    trunk = model.base_model
    if trunk is model:
        raise InvalidInput(
            f"{type(model).__name__} has no trunk that transformers knows by name, so neither autocast nor compile can "
            "be applied to it; set model.autocast=false and model.compile=false."
        )
    plain = trunk.forward.__func__
    compiled = torch.compile(plain, dynamic=True) if section.compile else plain

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = compiled if kwargs.get("past_key_values") is None and not kwargs.get("use_cache") else plain
        with torch.autocast(self.device.type, torch.bfloat16, enabled=section.autocast):
            done = run(self, *args, **kwargs)
        done.last_hidden_state = done.last_hidden_state.to(self.dtype)
        return done

    trunk.forward = types.MethodType(forward, trunk)
    if section.autocast:
        model.autocast_dtype = torch.bfloat16
