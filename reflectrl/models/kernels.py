"""Faster computation of the same function: fused activations, bfloat16 by autocast, ``torch.compile``."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.pytorch_utils import Conv1D

from reflectrl.config.model import ModelSection
from reflectrl.core import InvalidInput

if TYPE_CHECKING:  # see adapters.py
    from peft import PeftModel


def adopt_kernels(model: PreTrainedModel, section: ModelSection) -> None:
    """Have the trunk of ``model``, which everything goes through, compute as ``section`` says.

    GPT-2's activation is computed by one kernel instead of eight, each of which keeps a tensor for the gradient.
    Compiled code reads prompts and updates; passes over kept key-value states, whose shapes change with each step, stay
    as they are. Under autocast the trunk still ends in the type of the weights. ``compute: auto`` is
    for the caller to decide.

    Raises:
        InvalidInput: an architecture without a trunk of its own name.

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
    """Store the frozen matrices of the trunk as autocast would round them at each pass: the same products, sooner.

    Torch keeps what it has rounded of trained weights only; a reflector's token is bound by reading its weights.
    """
    if section.compute != "bfloat16" or section.quantization != "none":
        return
    base: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    for module in base.base_model.modules():
        if isinstance(module, nn.Linear | Conv1D) and not any(weight.requires_grad for weight in module.parameters()):
            module.to(torch.bfloat16)
