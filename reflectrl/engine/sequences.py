"""Token sequences as model input: padded rows, or prefix trees that hold shared beginnings once.

A prefix tree is one row of tokens in which each token attends to those on its own path, so the steps of an episode, or
of many, cost as many tokens as they differ in. Both give the same hidden states and gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

Tokens = tuple[int, ...]
_MAX_SEQUENCES = 512
"""Distinct sequences in a tree, at most: more gain little, and the search for the best division takes time."""


@dataclass(frozen=True)
class Inputs:
    """Input of one forward pass, and the positions in it where sequences end."""

    input_ids: Tensor
    """(B, T) token ids."""
    last: Tensor
    """(N,) where each of N sequences ends: ``row * T + column`` of its last token."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Empty for ordinary rows; else ``position_ids`` (B, T), an additive float ``attention_mask`` (B, 1, T, L), and
    perhaps ``past_key_values``."""


def padded(rows: Sequence[Tokens], device: torch.device) -> Inputs:
    """N sequences as U distinct rows, padded on the right, where causal attention cannot see the padding."""
    number: dict[Tokens, int] = {}
    index = [number.setdefault(row, len(number)) for row in rows]
    width = max(map(len, number))
    # padded with their own last token: any id does, since nothing attends to it
    ids = torch.tensor([row + row[-1:] * (width - len(row)) for row in number], device=device)
    ends = [len(row) - 1 for row in number]
    return Inputs(ids, torch.tensor([row * width + ends[row] for row in index], device=device))


@dataclass(frozen=True)
class Tree:
    """Sequences in lexicographic order, each continuing the beginning that it shares with the one before."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    """Position of each token in its sequence, from 0."""
    ends: tuple[int, ...]
    """Index of the last token of each sequence."""
    sees: NDArray[np.bool_]
    """(T, T) whether a token (row) attends to another (column): to itself and to those before it in its sequence."""


def make_tree(rows: Sequence[Tokens]) -> Tree:
    """The prefix tree of ``rows``, which are in lexicographic order."""
    shared = [0, *(_common(before, row) for before, row in pairwise(rows))]
    size = sum(map(len, rows)) - sum(shared)
    sees = np.zeros((size, size), dtype=np.bool_)
    tokens: list[int] = []
    positions: list[int] = []
    path: list[int] = []
    ends = []
    for row, length in zip(rows, shared, strict=True):
        start, stop = len(tokens), len(tokens) + len(row) - length
        path = path[:length]
        sees[start:stop, path] = True
        sees[start:stop, start:stop] = np.tri(stop - start, dtype=np.bool_)
        path += range(start, stop)
        tokens += row[length:]
        positions += range(length, len(row))
        ends.append(path[-1])
    return Tree(tuple(tokens), tuple(positions), tuple(ends), sees)


def _common(one: Tokens, other: Tokens) -> int:
    """Length of the beginning that both share."""
    stop = min(len(one), len(other))
    if one[:stop] == other[:stop]:
        return stop
    return int((np.array(one[:stop]) != np.array(other[:stop])).argmax())


def packed(trees: Sequence[Tree], device: torch.device, dtype: torch.dtype) -> Inputs:
    """Trees as the rows of one forward pass; ``last`` goes through the sequences of each tree in turn."""
    width = max(len(tree.tokens) for tree in trees)
    sees = np.zeros((len(trees), 1, width, width), dtype=np.bool_)
    sees[:, :, range(width), range(width)] = True  # padding sees itself, because a softmax over nothing is no number
    ids = np.zeros((len(trees), width), dtype=np.int64)
    positions = np.zeros((len(trees), width), dtype=np.int64)
    last: list[int] = []
    for row, tree in enumerate(trees):
        size = len(tree.tokens)
        sees[row, 0, :size, :size] = tree.sees
        ids[row, :size], positions[row, :size] = tree.tokens, tree.positions
        last += (row * width + end for end in tree.ends)
    return Inputs(
        torch.from_numpy(ids).to(device),
        torch.tensor(last, device=device),
        {
            "position_ids": torch.from_numpy(positions).to(device),
            "attention_mask": additive(torch.from_numpy(sees).to(device), dtype),
        },
    )


def attention_break_even_tokens(model: PreTrainedModel) -> float:
    """Number of tokens whose attention to each other costs as much as all the rest of a layer.

    At width d in GPT-2's layers the rest is 24 d² operations a token, thrice with the backward pass; attention is 4 d a
    pair of tokens, and 3.5 times that with the backward pass.
    """
    return 72 / 14 * float(model.config.get_text_config().hidden_size)


def read(rows: Sequence[Tokens], part: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype) -> Inputs:
    """One forward pass of ``split(rows, ...)``; ``last`` goes through the indices of each tree of ``part`` in turn."""
    trees = [[rows[index] for index in tree] for tree in part]
    if all(tree[0] == tree[-1] for tree in trees):  # no branches: causal attention does, which is faster
        return padded([row for tree in trees for row in tree], device)
    return packed([make_tree(tree) for tree in trees], device, dtype)


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 for ``sees`` and the least number for the rest: eager attention would add booleans without an error."""
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)


def split(rows: Sequence[Tokens], *, tokens: int, square: float | None) -> Iterator[list[list[int]]]:
    """Divide an update into forward passes of at most ``tokens`` tokens, padding included, each a list of trees.

    Args:
        rows: the sequences; equal ones always fall into one tree.
        tokens: of a forward pass, at most; a longer sequence has a pass of its own.
        square: trees of T tokens are made where they cost less, at ``T * (square + T)``; see
            ``attention_break_even_tokens``. ``None`` makes no trees: each distinct sequence is on its own.

    Yields:
        Trees as the indices of their sequences in ``rows``, in lexicographic order of the sequences. Those of a pass
        are of similar size.

    """
    same: dict[Tokens, list[int]] = {}
    for index, row in enumerate(rows):
        same.setdefault(row, []).append(index)
    distinct = sorted(same)
    # the tree of sequences start to last has begin[start] + new[last] tokens: new ones over the sequence before, summed
    new = np.cumsum([0, *(len(row) - _common(before, row) for before, row in pairwise(distinct))])
    begin = np.array([len(row) for row in distinct]) - new
    bounds = range(len(distinct) + 1) if square is None else _cheapest(begin, new, tokens, square)
    groups = sorted((int(begin[start] + new[stop - 1]), start, stop) for start, stop in pairwise(bounds))
    part: list[list[int]] = []
    for size, start, stop in groups:
        if part and size * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append([index for row in distinct[start:stop] for index in same[row]])
    yield part


def _cheapest(begin: NDArray[np.int64], new: NDArray[np.int64], tokens: int, square: float) -> list[int]:
    """Cuts between N sequences into trees whose sum of costs is least, by dynamic programming; see ``split``."""
    count = len(new)
    cost = np.zeros(count + 1)
    first = np.zeros(count + 1, dtype=np.int64)
    for last in range(count):
        start = max(0, last + 1 - _MAX_SEQUENCES)
        size = begin[start : last + 1] + new[last]
        total = cost[start : last + 1] + size * (square + size)
        total[:-1][size[:-1] > tokens] = np.inf
        best = int(total.argmin())
        cost[last + 1], first[last + 1] = total[best], start + best
    cuts = [count]
    while cuts[-1]:
        cuts.append(int(first[cuts[-1]]))
    return cuts[::-1]
