"""The masked action head: ``lm_head`` restricted to the label rows, inside ``forward`` (section 4.3).

It sits inside ``forward`` because only calls through the outermost wrapper (DDP, FSDP, PEFT) keep gradients
synchronised; calling the unwrapped module would train each rank on its own, silently.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from reflectrl.core import InvalidInput


def _logit_scale(config: Any) -> float:
    """The factor some architectures (Cohere, Granite, Falcon-H1) put on their logits."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)


def _softcap(config: Any) -> float | None:
    """Where some architectures (Gemma 2, RecurrentGemma, xLSTM) bend their logits with a tanh."""
    names = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    return next((cap for name in names if (cap := getattr(config, name, None)) is not None), None)


def bent(config: Any, logits: Tensor) -> Tensor:
    """Logits as the model's own ``forward`` gives them: scaled and capped where its architecture does so."""
    config = config.get_text_config()
    logits = logits * _logit_scale(config)
    softcap = _softcap(config)
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def _choice_logits(head: nn.Module, hidden: Tensor, choice_ids: Tensor) -> Tensor:
    """(N, D) hidden states to (N, A) float32 logits of the label rows."""
    if type(head) is not nn.Linear:  # e.g. peft's trainable tokens: only the module itself knows its true rows
        return head(hidden)[:, choice_ids].float()
    weight = head.weight.full_tensor() if hasattr(head.weight, "full_tensor") else head.weight  # FSDP2 shards
    bias = None if head.bias is None else head.bias[choice_ids].float()
    with torch.autocast(hidden.device.type, enabled=False):  # autocast would bring the product down to bfloat16
        return F.linear(hidden.float(), weight[choice_ids].float(), bias)


def check_choice_head(model: nn.Module) -> None:
    """Refuse heads whose label rows cannot be read.

    Raises:
        InvalidInput: LoRA on the lm_head, or a quantised lm_head.

    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    if hasattr(head, "lora_A"):
        raise InvalidInput(
            "the lm_head of the policy carries a LoRA adapter; the label rows would ignore it: leave lm_head out of "
            "model.lora.target_modules."
        )
    weight = getattr(head, "weight", None)
    if weight is not None and not weight.dtype.is_floating_point:
        raise InvalidInput(
            f"the lm_head of the policy is quantised ({weight.dtype}); its label rows cannot be read: load the model "
            "without quantising lm_head (the default of model.quantization)."
        )


def add_choice_head(model: PreTrainedModel, *, value_head: bool = False) -> None:
    """Teach ``model.forward`` two more arguments; call it before DDP wraps the model.

    ``forward(input_ids=(B, T), choice_ids=(A,), last=(N,))`` returns ``(logits, values)``: float32 logits (N, A) of the
    rows ``choice_ids`` of the lm_head at the positions ``last``, counted through all rows, and (N,) values in units of
    return (zeros without a value head). Without ``choice_ids`` the forward is the original one.

    Args:
        model: any causal language model of transformers.
        value_head: add a linear value head on the last hidden state, whose error also trains the trunk; it is left
            out of what ``save_pretrained`` writes.

    Raises:
        InvalidInput: see ``check_choice_head``.

    """
    check_choice_head(model)
    if value_head:
        model.value_head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=model.device)
        nn.init.zeros_(model.value_head.weight)
        nn.init.zeros_(model.value_head.bias)
        model._keys_to_ignore_on_save = {"value_head.weight", "value_head.bias"}
    bound = model.forward
    # unbound, because there may be copies of this model; behind accelerate's hooks there is no method to unbind
    original = getattr(bound, "__func__", lambda _, *args, **kwargs: bound(*args, **kwargs))

    @functools.wraps(type(model).forward)  # generate() reads the signature
    def forward(
        self: Any, *args: Any, choice_ids: Tensor | None = None, last: Tensor | None = None, **kwargs: Any
    ) -> Any:
        if choice_ids is None or last is None:
            return original(self, *args, **kwargs)
        hidden = self.base_model(*args, use_cache="past_key_values" in kwargs, **kwargs).last_hidden_state
        hidden = hidden.flatten(0, 1)[last]
        logits = bent(self.config, _choice_logits(self.get_output_embeddings(), hidden, choice_ids))
        if not hasattr(self, "value_head"):
            return logits, logits.new_zeros(logits.size(0))
        return logits, self.value_head(hidden.float()).squeeze(-1)

    model.forward = types.MethodType(forward, model)
