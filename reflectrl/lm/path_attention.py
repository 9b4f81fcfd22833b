"""Path attention: each token of a prefix tree attends to its prefix, without a mask over the whole tree.

In depth-first order the prefix of a token comes before it. A chunk of adjacent tokens needs the keys of the chunk and
of the prefix of its first token, which is at most as long as a sequence, however large the tree is.
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
_SHORT = 256
"""Number of keys below which torch computes attention faster in float32 than in bfloat16 on a CPU with AMX."""


@dataclass(frozen=True)
class Paths:
    """Keys to which T tokens attend, in C chunks of n tokens, the last of which may be shorter."""

    keys: Tensor
    """(C, L) positions in the tree of the tokens to which the tokens of a chunk may attend."""
    mask: Tensor
    """(C, 1, n, L) additive mask: 0 where a token attends to a key, else the smallest finite number."""


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
    """Return the (1, T, H, D) attention of ``query`` (1, H, T, D) to keys and values with H or fewer heads."""
    kernel, along = paths
    chunks, _, size, _ = along.mask.shape
    tokens, heads = query.size(2), key.size(1)
    chunked = F.pad(query[0], (0, 0, 0, chunks * size - tokens)).unflatten(1, (chunks, size)).transpose(0, 1)
    # one gather for both, as an embedding, which has the fastest gradient
    rows = F.embedding(along.keys, torch.cat([states[0].transpose(0, 1).flatten(1) for states in (key, value)], -1))
    gathered = rows.split([heads * key.size(-1), heads * value.size(-1)], -1)
    keys, values = (states.unflatten(-1, (heads, -1)).transpose(1, 2) for states in gathered)
    if kernel == "eager":
        eager = sys.modules[type(module).__module__].eager_attention_forward
        out = eager(module, chunked, keys, values, along.mask, **options)[0]
    else:  # queries that share a key head are concatenated, instead of repeating the keys
        groups = query.size(1) // heads
        together = chunked.unflatten(1, (heads, groups)).flatten(2, 3)
        mask = along.mask if groups == 1 else along.mask.repeat(1, 1, groups, 1)
        dropout, scale = options.get("dropout", 0.0), options.get("scaling")
        kind = query.device.type
        if kind == "cpu" and keys.size(2) < _SHORT and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                wide = (states.float() for states in (together, keys, values))
                out = F.scaled_dot_product_attention(*wide, mask, dropout, scale=scale).to(query.dtype)
        else:
            out = F.scaled_dot_product_attention(together, keys, values, mask, dropout, scale=scale)
        out = out.unflatten(2, (groups, size)).flatten(1, 2).transpose(1, 2)
    return out.flatten(0, 1)[None, :tokens].contiguous(), None  # as transformers' own kernels do


AttentionInterface.register(_NAME, _attend)
# with a mask, the gradient of cuDNN's attention is NaN for some lengths on Hopper (pytorch issue 196678)
torch.backends.cuda.enable_cudnn_sdp(False)


def attending(model: PreTrainedModel, forward: Callable[..., Any], paths: Paths) -> Callable[..., Any]:
    """Return a variant of ``forward`` of ``model`` that attends along ``paths``, with the model's attention kernel."""
    config = model.config.get_text_config()
    own = config._attn_implementation  # transformers has no public name for it

    def along(*args: Any, **kwargs: Any) -> Any:
        config._attn_implementation = _NAME
        try:
            return forward(*args, paths=(own, paths), **kwargs)
        finally:
            config._attn_implementation = own

    return along
