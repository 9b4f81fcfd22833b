"""Checks that a model's states can be reused, by tests with the model itself, because its config does not tell."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.core.foreign import message_of
from reflectrl.lm.head import known_tokens, next_logits, off, trying
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.sequences import Tokens, padded, read_tree

_log = logging.getLogger(__name__)
_SHORT = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 5), (1, 4, 2, 5))
"""Sequences with common prefixes, whose last logits change if masks or positions are wrong."""
_EXACT = 1e-3
"""Maximum relative error of correct logits in float32."""
_COARSE, _ROUNDED = 0.01, 0.5
"""For bfloat16 and quantised weights, the maximum error after short sequences: absolute, or as a fraction of the error
with an ignored mask or position, whichever is larger."""
_COARSE_LONG, _ROUNDED_LONG = 0.03, 0.25
"""For bfloat16 and quantised weights, the maximum error after long sequences: absolute, or as a fraction of the error
without their first quarter, whichever is larger. Trained models amplify rounding: SmolLM2 with a LoRA adapter is off by
0.04 to 0.09 of its logits' norm."""


def prefix_cache_for(model: PreTrainedModel, max_length: int, role: str, tree_tokens: int = 0) -> PrefixCache | None:
    """Return a cache for ``model``, or log a warning why ``role`` cannot reuse states and return ``None``."""
    reason = refusal(model, max_length, tree_tokens)
    if reason is not None:
        _log.warning(
            "the %s reads every prompt from its beginning: %s; set model.prefix_reuse=false, or another "
            "model.attn_implementation.",
            role,
            reason,
        )
        return None
    return PrefixCache(model.device, model.dtype)


def refusal(model: PreTrainedModel, max_length: int, tree_tokens: int = 0) -> str | None:
    """Return why ``model`` supports neither prefix trees nor cache slots, as a clause; ``None`` if it supports both.

    Both need custom masks and positions, and attention to all tokens. Trees are read by path attention, or with a mask
    over the whole tree if only that is correct (``model.path_attention`` records which). The check compares the last
    logits of sequences that are read alone, in a tree and through slots: first of short ones, then of some with
    ``max_length`` tokens, because an attention window or a fixed mask affects only long ones.

    Args:
        model: a causal language model.
        max_length: maximum number of tokens of a sequence.
        tree_tokens: maximum number of tokens of a tree; trees of ``max_length`` tokens are always tested.
    """
    if hasattr(model, "pictures"):
        return "it reads images, whose states are not kept"
    kernel = model.config.get_text_config()._attn_implementation  # transformers has no public name for it
    if kernel not in ("eager", "sdpa"):
        return f"its attention kernel {kernel} takes no custom mask"
    reason = None
    for path_attention in (True, False):
        model.path_attention = path_attention
        try:
            with trying(model):
                reason = _difference(model, max_length, max(tree_tokens, max_length))
        except Exception as error:  # noqa: BLE001 - an architecture may answer with an error of any kind
            reason = f"its architecture does not take them ({type(error).__name__}: {message_of(error)[:100]})"
        if reason is None:
            break
    return reason


def _difference(model: PreTrainedModel, max_length: int, tree_tokens: int) -> str | None:
    tokens = known_tokens(model, 1000)
    short = [tuple(tokens[number] for number in row) for row in _SHORT]
    alone = _alone(model, short)
    autocast = getattr(model, "autocast_dtype", model.dtype)
    coarse = getattr(model, "is_quantized", False) or autocast not in (torch.float32, torch.float64)
    worst = _worst(model, short, short, alone)
    if not worst < (max(_COARSE, _ROUNDED * _careless(model, short, alone[:, 1])) if coarse else _EXACT):
        return "its architecture reads them wrongly"
    long = _long(tokens, max_length, tree_tokens)
    some = [row for longest in (True, False) for row in [r for r in long if (len(r) == max_length) == longest][-2:]]
    alone = _alone(model, some)
    worst = _worst(model, long, some, alone)
    if worst < (max(_COARSE_LONG, _ROUNDED_LONG * _forgetful(model, some, alone)) if coarse else _EXACT):
        return None
    return (
        f"its logits after {max_length} tokens are off by {worst:.1g} of their norm if beginnings are kept or shared, "
        f"as with a window of attention shorter than a prompt ({max_length} tokens) or an update ({tree_tokens})"
    )


def _long(tokens: Tokens, length: int, total: int) -> list[Tokens]:
    """Return sorted sequences of up to ``length`` tokens that share a quarter of it and have a tree of ``total``."""
    rng = random.Random(0)
    shared = length // 4
    stem = tuple(rng.choices(tokens[: len(tokens) // 2], k=shared))
    rows: list[Tokens] = []
    size = shared
    while size < total or len(rows) < 4:
        new = max(2, (length - shared) // (1 + len(rows) % 3))
        rows.append((*stem, *rng.choices(tokens[len(tokens) // 2 :], k=new)))
        size += new
    return sorted(set(rows))


def _worst(model: PreTrainedModel, tree: Sequence[Tokens], rows: Sequence[Tokens], alone: Tensor) -> float:
    """Return the largest error of ``rows`` in a tree and through slots, against the (N, 2, V) logits of each alone."""
    inputs = read_tree(tree, model)
    in_tree = next_logits(model, replace(inputs, last=inputs.last[[tree.index(row) for row in rows]]))
    before, after = _through_slots(model, rows)
    errors = (off(in_tree, alone[:, 1]), off(before, alone[:, 0]), off(after, alone[:, 1]))
    return float(torch.tensor(errors).max())  # unlike max(), NaN where one of them is


def _alone(model: PreTrainedModel, rows: Sequence[Tokens]) -> Tensor:
    """Return the (N, 2, V) logits before and after the last token of each row, read alone."""
    inputs = [padded([row], model.device) for row in rows]
    ends = [replace(each, last=torch.cat([each.last - 1, each.last])) for each in inputs]
    return torch.stack([next_logits(model, each).float() for each in ends])


def _through_slots(model: PreTrainedModel, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Return the (N, V) logits before and after the last token of each row, read through slots in three parts."""
    cache = PrefixCache(model.device, model.dtype)
    begun = [row[: len(row) * (2 + number % 3) // 6] for number, row in enumerate(rows)]
    for _, inputs in cache.read(begun):
        next_logits(model, inputs)
    order: list[int] = []
    before = []
    for indices, inputs in cache.read([row[:-1] for row in rows]):
        logits = next_logits(model, inputs)
        if indices:
            order += indices
            before.append(logits)
    after = next_logits(model, cache.extend([rows[index][-1:] for index in order]))
    back = torch.tensor(order, device=model.device).argsort()
    return torch.cat(before)[back], after[back]


def _careless(model: PreTrainedModel, rows: Sequence[Tokens], alone: Tensor) -> float:
    """Return the error of rows in a tree without its mask or without its positions, whichever is smaller."""
    inputs = read_tree(rows, model, path_attention=False)
    without = (replace(inputs, extra={name: inputs.extra[name]}) for name in ("position_ids", "attention_mask"))
    return min(off(next_logits(model, each), alone) for each in without)


def _forgetful(model: PreTrainedModel, rows: Sequence[Tokens], alone: Tensor) -> float:
    """Return the error of rows without their first quarter."""
    return off(_alone(model, [row[len(row) // 4 :] for row in rows])[:, 1], alone[:, 1])
