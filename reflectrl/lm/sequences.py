"""Token sequences as model input: padded rows, or prefix trees that hold shared prefixes once.

A prefix tree is one row of tokens in which each token attends to its own prefix only, so tokens that the steps of many
episodes share are computed once. Both forms give the same hidden states and gradients.

Path attention needs no mask over the whole tree: in depth-first order the prefix of a token comes before it, so a chunk
of adjacent tokens needs the keys of the chunk and of the prefix of its first token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

Tokens = tuple[int, ...]
_CHUNK_TOKENS = 64
"""Minimum number of tokens of a chunk in path attention."""


@dataclass(frozen=True)
class Tree:
    """Prefix tree of sequences, in depth-first order, so that a token comes after its prefix."""

    tokens: NDArray[np.int64]
    """(T,) token ids."""
    positions: NDArray[np.int64]
    """(T,) position of each token in its sequences, from 0."""
    exits: NDArray[np.int64]
    """(T,) end of the subtree below each token: token i attends to token j if ``j <= i < exits[j]``."""
    ends: NDArray[np.int64]
    """(N,) index in ``tokens`` of the last token of each sequence."""


@dataclass(frozen=True)
class Inputs:
    """Input of one forward pass, and the positions in it where sequences end."""

    input_ids: Tensor
    """(B, T) token ids."""
    last: Tensor
    """(N,) flat position of the last token of each of N sequences, ``row * T + column``."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments of ``forward``, empty for padded rows; else ``position_ids`` (B, T), ``past_key_values`` or
    ``paths``, and unless attention is causal an additive float ``attention_mask`` (B, 1, T, L)."""
    tree: Tree | None = None
    """Prefix tree of the sequences; ``None`` for padded rows."""

    def paths(self) -> list[list[int]]:
        """Return the flat positions of each sequence's tokens, in order; padded rows begin at the first column."""
        ends, width = self.last.tolist(), self.input_ids.size(1)
        if self.tree is None:
            return [[*range(end - end % width, end + 1)] for end in ends]
        return [np.flatnonzero(self.tree.exits[: end + 1] > end).tolist() for end in ends]


def padded(rows: Sequence[Tokens], device: torch.device) -> Inputs:
    """Return N sequences as U distinct rows, padded on the right, where causal attention does not see the padding."""
    number: dict[Tokens, int] = {}
    index = [number.setdefault(row, len(number)) for row in rows]
    width = max(map(len, number))
    # padded with the last token of each row; any id would do, because nothing attends to it
    ids = torch.tensor([row + row[-1:] * (width - len(row)) for row in number], device=device)
    ends = [len(row) - 1 for row in number]
    return Inputs(ids, torch.tensor([row * width + ends[row] for row in index], device=device))


def make_tree(rows: Sequence[Tokens]) -> Tree:
    """Return the prefix tree of ``rows``."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    tokens: list[int] = []
    positions: list[int] = []
    path: list[int] = []
    ends = np.zeros(len(rows), dtype=np.int64)
    exits = np.full(sum(map(len, rows)), -1)
    before: Tokens = ()
    for index in order:
        row = rows[index]
        length = _common(before, row)
        exits[path[length:]] = len(tokens)
        path[length:] = range(len(tokens), len(tokens) + len(row) - length)
        tokens += row[length:]
        positions += range(length, len(row))
        ends[index] = path[-1]
        before = row
    exits[path] = len(tokens)
    return Tree(np.array(tokens), np.array(positions), exits[: len(tokens)], ends)


def _common(one: Tokens, other: Tokens) -> int:
    """Return the length of the prefix that both sequences share."""
    stop = min(len(one), len(other))
    if one[:stop] == other[:stop]:
        return stop
    return int((np.array(one[:stop]) != np.array(other[:stop])).argmax())


def read_tree(rows: Sequence[Tokens], model: PreTrainedModel, *, path_attention: bool | None = None) -> Inputs:
    """Return the input of one forward pass of ``model`` over the prefix tree of ``rows``; ``last`` is in their order.

    Without ``path_attention``, the input has a mask over the whole tree. The default is ``model.path_attention``, which
    ``refusal`` sets, or true if the model has not been checked.
    """
    if len(set(rows)) == 1:  # without branches, causal attention is sufficient and faster
        return padded(rows, model.device)
    tree = make_tree(rows)
    ids, positions, exits = torch.from_numpy(np.stack([tree.tokens, tree.positions, tree.exits])).to(model.device)
    extra: dict[str, Any] = {"position_ids": positions[None]}
    if getattr(model, "path_attention", True) if path_attention is None else path_attention:
        extra["paths"] = _paths(tree, exits, model.dtype)
        extra["attention_mask"] = exits.new_zeros(1, 1, 1, 1, dtype=model.dtype)  # else transformers makes a (T, T) one
    else:
        places = torch.arange(len(exits), device=model.device)[None]
        extra["attention_mask"] = _mask(places, places, exits, model.dtype)
    return Inputs(ids[None], torch.from_numpy(tree.ends).to(model.device), extra, tree)


def _paths(tree: Tree, exits: Tensor, dtype: torch.dtype) -> Paths:
    """Return chunks of half the length of a sequence, with which path attention is cheapest."""
    tokens = len(tree.tokens)
    size = max(_CHUNK_TOKENS, int(tree.positions.max()) // 2)
    size = -(-tokens // -(-tokens // size))
    starts = range(0, tokens, size)
    found = [
        np.concatenate([np.flatnonzero(tree.exits[:start] > start), np.arange(start, min(start + size, tokens))])
        for start in starts
    ]
    width = -(-max(map(len, found)) // 8) * 8  # a multiple of 8, which GPU kernels require of a mask
    keys = np.full((len(found), width), tokens)
    for row, places in zip(keys, found, strict=True):
        row[: len(places)] = places
    padded_keys = torch.from_numpy(keys).to(exits.device)
    # padding after the last token attends like the last token: a softmax over no keys is NaN
    queries = torch.arange(len(starts) * size, device=exits.device).clamp_max(tokens - 1).view(-1, size)
    return Paths(padded_keys.clamp_max(tokens - 1), _mask(queries, padded_keys, exits, dtype))


def _mask(queries: Tensor, keys: Tensor, exits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the (C, 1, n, L) mask for positions ``queries`` (C, n) and ``keys`` (C, L) of a tree."""
    until = exits[keys.clamp_max(len(exits) - 1)]
    sees = (keys[:, None] <= queries[:, :, None]) & (queries[:, :, None] < until[:, None])
    return additive(sees[:, None], dtype)


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 for ``sees``, else the smallest finite number: eager attention would add booleans without an error."""
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)


def shares_enough(rows: Sequence[Tokens], width: int) -> bool:
    """Return whether a prefix tree of ``rows`` is cheaper than padded rows for a model of ``width``, with gradients.

    A token costs ``24 width²`` operations per layer, and ``4 width`` for each key. A token of a tree has as many keys
    as the longest sequence and half a chunk; a token of a row has half as many as the longest sequence, because causal
    attention skips the rest.
    """
    longest = max(map(len, rows), default=0)
    read_once, padded_tokens = tree_tokens(rows), sum(map(len, set(rows)))
    return read_once * (6 * width + 1.5 * longest) < padded_tokens * (6 * width + 0.5 * longest)


def tree_tokens(rows: Sequence[Tokens]) -> int:
    """Return the number of tokens of the prefix tree of ``rows``."""
    distinct = sorted(set(rows))
    return sum(map(len, distinct)) - sum(_common(one, other) for one, other in pairwise(distinct))


def split(rows: Sequence[Tokens], *, tokens: int, trees: bool) -> Iterator[list[int]]:
    """Divide an update into forward passes of at most ``tokens`` tokens, padding included.

    Args:
        rows: the sequences; equal ones are always in the same pass.
        tokens: maximum number of tokens of a forward pass; a longer sequence has a separate pass.
        trees: read each pass as a tree of sequences that are neighbours in lexicographic order and share the longest
            prefixes; otherwise as padded rows of similar length.

    Yields:
        Indices in ``rows`` of the sequences of a pass.
    """
    same: dict[Tokens, list[int]] = {}
    for index, row in enumerate(rows):
        same.setdefault(row, []).append(index)
    part: list[int] = []
    count = size = 0
    before: Tokens = ()
    for row in sorted(same) if trees else sorted(same, key=len):
        after = size + len(row) - _common(before, row) if trees else len(row) * (count + 1)
        if part and after > tokens:
            yield part
            part, count, after = [], 0, len(row)
        part += same[row]
        count, size, before = count + 1, after, row
    yield part


def state_bytes(model: PreTrainedModel) -> int:
    """Return the size of a token's key-value states in all layers, in bytes."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)


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
                wide = (together.float(), keys.float(), values.float())
                out = F.scaled_dot_product_attention(*wide, mask.float(), dropout, scale=scale).to(query.dtype)
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
