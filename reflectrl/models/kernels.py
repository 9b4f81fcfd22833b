"""Faster computation of the same function: fused activations, bfloat16 by autocast, ``torch.compile``."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.pytorch_utils import Conv1D

from reflectrl.core import InvalidInput
from reflectrl.models.section import ModelSection

if TYPE_CHECKING:  # see adapters.py
    from peft import PeftModel


def adopt_kernels(model: PreTrainedModel, section: ModelSection) -> None:
    """Make the trunk of ``model`` compute as ``section`` says.

    GPT-2's activation is computed by one kernel instead of eight, each of which keeps a tensor for the gradient.
    Compiled code is used for prompts and updates, not for passes over cached key-value states, whose shapes change with
    each step. Under autocast the output of the trunk keeps the type of the weights. The caller has to replace ``auto``
    before.

    Raises:
        InvalidInput: an architecture whose trunk has no name.

    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, GELUTanh())
    autocast = section.compute == "bfloat16"
    if not (autocast or section.compile):
        return
    trunk = model.base_model
    if trunk is model:
        raise InvalidInput(
            f"{type(model).__name__} has no trunk that transformers knows by name, so it can neither compute in "
            "bfloat16 nor be compiled; set model.compute=float32, model.dtype=float32 and model.compile=false."
        )
    plain = trunk.forward.__func__
    compiled = torch.compile(plain, dynamic=True) if section.compile else plain

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = compiled if kwargs.get("past_key_values") is None and not kwargs.get("use_cache") else plain
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            done = run(self, *args, **kwargs)
        done.last_hidden_state = done.last_hidden_state.to(self.dtype)
        return done

    trunk.forward = types.MethodType(forward, trunk)
    model.compiled = section.compile
    if autocast:
        model.autocast_dtype = torch.bfloat16


def round_frozen(model: PreTrainedModel | PeftModel, section: ModelSection) -> None:
    """Round the frozen matrices of the trunk once as autocast would at each pass: equal products in less time.

    Torch caches the rounded copies of trained weights only, and the time of a reflector's token is that of reading
    weights.
    """
    if section.compute != "bfloat16" or section.quantization != "none":
        return
    base: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    for module in base.base_model.modules():
        if isinstance(module, nn.Linear | Conv1D) and not any(weight.requires_grad for weight in module.parameters()):
            module.to(torch.bfloat16)
