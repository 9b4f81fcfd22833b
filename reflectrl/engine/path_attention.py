"""Path attention: the tokens of a prefix tree attend to their own beginnings, without a mask over the whole tree.

In depth-first order a token's beginning lies before it: a chunk of neighbours needs the keys of the chunk itself and of
what the first of them goes on from, which is about as long as one sequence however large the tree is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

_NAME = "reflectrl_path"


@dataclass(frozen=True)
class Paths:
    """What T tokens attend to, in C chunks of n tokens, the last of which may be shorter."""

    keys: Tensor
    """(C, L) places in the tree of the tokens that a chunk may attend to."""
    mask: Tensor
    """(C, 1, n, L) numbers to add to the scores: 0 where a token attends to a key, else the least number."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,  # noqa: ARG001 - one number, see ``read_tree``
    *,
    paths: tuple[str, Paths],
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: ``query`` (1, H, T, D), the others with H or fewer heads, to (1, T, H, D)."""
    kernel, along = paths
    chunks, _, size, _ = along.mask.shape
    tokens, heads = query.size(2), key.size(1)
    chunked = F.pad(query[0], (0, 0, 0, chunks * size - tokens)).unflatten(1, (chunks, size)).transpose(0, 1)
    # both at once, and as an embedding, whose gradient is the fastest of a gather's
    rows = F.embedding(along.keys, torch.cat([states[0].transpose(0, 1).flatten(1) for states in (key, value)], -1))
    gathered = rows.split([heads * key.size(-1), heads * value.size(-1)], -1)
    keys, values = (states.unflatten(-1, (heads, -1)).transpose(1, 2) for states in gathered)
    if kernel == "eager":
        eager = sys.modules[type(module).__module__].eager_attention_forward
        out = eager(module, chunked, keys, values, along.mask, **options)[0]
    else:  # queries that share keys are put side by side, instead of repeating the keys
        groups = query.size(1) // heads
        together = chunked.unflatten(1, (heads, groups)).flatten(2, 3)
        mask = along.mask if groups == 1 else along.mask.repeat(1, 1, groups, 1)
        dropout, scale = options.get("dropout", 0.0), options.get("scaling")
        out = F.scaled_dot_product_attention(together, keys, values, mask, dropout, scale=scale)
        out = out.unflatten(2, (groups, size)).flatten(1, 2).transpose(1, 2)
    return out.flatten(0, 1)[None, :tokens].contiguous(), None  # as transformers' own kernels do


AttentionInterface.register(_NAME, _attend)


def attending(model: PreTrainedModel, forward: Callable[..., Any], paths: Paths) -> Callable[..., Any]:
    """Return ``forward`` of ``model`` as one that attends along ``paths``, with its own kernel."""
    config = model.config.get_text_config()
    own = config._attn_implementation  # transformers has no public name for it

    def along(*args: Any, **kwargs: Any) -> Any:
        config._attn_implementation = _NAME
        try:
            return forward(*args, paths=(own, paths), **kwargs)
        finally:
            config._attn_implementation = own

    return along
