"""Whether a model's states can be reused: asked of the model itself, because architectures do not say."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.models.sequences import Inputs, padded, read
from reflectrl.models.slots import Slots

_log = logging.getLogger(__name__)
_ROWS = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 5), (1, 4, 2, 5))
"""Sequences with a beginning in common: wrong masks or positions change what they end in."""
_EXACT = 0.01
"""States that are off by less, relative to their norm, are right ..."""
_ROUNDED = 0.25
"""... and so are those of coarse arithmetic if they are off by less of what ignoring mask or positions would do."""


def slots_for(model: PreTrainedModel, max_length: int, role: str) -> Slots | None:
    """Slots of ``model``, or a warning that says why ``role`` has to do without and computes everything anew."""
    reason = refusal(model, max_length)
    if reason is not None:
        _log.warning(
            "the %s reads every prompt from its beginning: %s; set model.prefix_reuse=false, or another "
            "model.attn_implementation.",
            role,
            reason,
        )
        return None
    return Slots(model.device, model.dtype)


def refusal(model: PreTrainedModel, max_length: int) -> str | None:
    """Why ``model`` can be given neither prefix trees nor slots, as the end of a sentence; ``None`` if it can.

    Both need a mask of one's own, positions of one's own, and attention to all of at most ``max_length`` tokens. The
    same short sequences are read alone, as a tree and through slots, and what they end in is compared.
    """
    config = model.config.get_text_config()
    kernel = config._attn_implementation  # transformers has no public name for it
    if kernel not in ("eager", "sdpa"):
        return f"its attention kernel {kernel} takes no mask of one's own"
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(config, name, None)
        if window is not None and window < max_length:
            return f"it attends to {window} tokens only ({name}) but may read {max_length}"
    try:
        reads_alike = _reads_alike(model)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"its architecture does not take them ({type(error).__name__})"
    return None if reads_alike else "its architecture reads them wrongly"


@torch.no_grad()
def _reads_alike(model: PreTrainedModel) -> bool:
    was_training = model.training
    model.eval()
    try:
        alone = torch.cat([_ends(model, padded([row], model.device)) for row in _ROWS])
        inputs = read(_ROWS, [range(len(_ROWS))], model.device, model.dtype)
        tree, *careless = (
            _ends(model, replace(inputs, extra={name: inputs.extra[name] for name in names}))
            for names in (("position_ids", "attention_mask"), ("position_ids",), ("attention_mask",))
        )
        slots = Slots(model.device, model.dtype)
        for _, inputs in slots.read([row[:4] for row in _ROWS[:2]]):
            _ends(model, inputs)
        through = torch.empty_like(alone)
        for indices, inputs in slots.read(_ROWS):
            through[indices] = _ends(model, inputs)
    finally:
        model.train(was_training)
    errors = [float((states - alone).norm() / alone.norm()) for states in (tree, through, *careless)]
    return max(errors[:2]) < max(_EXACT, _ROUNDED * min(errors[2:]))


def _ends(model: PreTrainedModel, inputs: Inputs) -> Tensor:
    use_cache = "past_key_values" in inputs.extra
    hidden = model.base_model(input_ids=inputs.input_ids, use_cache=use_cache, **inputs.extra).last_hidden_state
    ends: Tensor = hidden.flatten(0, 1)[inputs.last]
    return ends
