"""``PrefixCache``: key-value states of the sequences read last, whose beginnings are not read again.

One slot holds one sequence. A new sequence goes to the slot that shares the longest beginning with it, and copies from
another slot where that one shares more. A beginning that all of them share and no slot holds, such as the instructions,
is read once. The states are valid for as long as the model's weights are: ``clear`` the cache when these change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from reflectrl.engine.beginnings import Beginnings, Table, beginnings
from reflectrl.engine.sequences import Inputs, Tokens, additive

_BLOCK_TOKENS = 64
"""Room for sequences grows by this many."""
_STEP_TOKENS = 8
"""On a processor, the width of a pass grows by this many."""
_WORTH_TOKENS = 16
"""Minimum length that is copied from another slot, or that is read by itself because all sequences share it."""


class _Layer(CacheLayerMixin):
    """The states of one attention layer: keys and values, each (slots, room, heads, head size)."""

    is_sliding = False

    def __init__(self, owner: PrefixCache) -> None:
        super().__init__()
        self._owner = owner
        self._kept: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room for as many slots and tokens as there are, keeping all states."""
        for number, states in enumerate((key_states, value_states)):
            self._grow(number, states)
        self.is_initialized = True

    def _grow(self, number: int, states: Tensor) -> None:
        count, room = self._owner.count, self._owner.room
        old = self._kept[number] if number < len(self._kept) else states[:0].transpose(1, 2)
        if old.size(0) < count or old.size(1) < room:
            new = old.new_zeros(count, room, *old.shape[2:])
            new[: old.size(0), : old.size(1)] = old
            self._kept[number : number + 1] = [new]

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new states into their places; return all states of the sequences at work."""
        self.lazy_initialization(key_states, value_states)
        owner = self._owner
        for kept, states in zip(self._kept, (key_states, value_states), strict=True):
            tokens = kept.view(-1, *kept.shape[2:])
            tokens.index_copy_(0, owner.places, states.transpose(1, 2).flatten(0, 1))
        keys, values = (kept[owner.at_work, : owner.width].transpose(1, 2) for kept in self._kept)
        return keys, values

    def move(self, targets: Tensor, sources: Tensor, length: int) -> None:
        """Copy the first ``length`` tokens of slots ``sources`` to slots ``targets``."""
        for number, kept in enumerate(self._kept):
            self._grow(number, kept.transpose(1, 2))
            self._kept[number][targets, :length] = self._kept[number][sources, :length]

    def get_seq_length(self) -> int:
        """Return 0: the model must take positions from ``position_ids`` alone."""
        return 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return sizes that no one reads, because the mask is given."""
        return query_length, 0


class PrefixCache:
    """Key-value states of sequences, one a slot; a slot is added whenever more sequences come than ever before.

    Args:
        device: of the model.
        dtype: of the model's weights.
        limit: sequences in a forward pass, at most.

    """

    def __init__(self, device: torch.device, dtype: torch.dtype, limit: int = 256) -> None:
        self.limit = limit
        self.given = 0
        """Tokens of the sequences given so far."""
        self.computed = 0
        """Tokens that the model had to read for them; the states of the others were kept."""
        self._device = device
        self._dtype = dtype
        # on a processor each column costs time; elsewhere kernels are prepared for each new shape
        self._step = _STEP_TOKENS if device.type == "cpu" else _BLOCK_TOKENS
        self.clear()

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._held = np.zeros((0, 0), dtype=np.int64)  # (slots, room) tokens; of no meaning behind a sequence's end
        self._lengths = np.zeros(0, dtype=np.int64)
        self._cache = Cache(layer_class_to_replicate=lambda: _Layer(self))
        self.room = 0
        """Tokens that fit into a slot."""
        self.at_work = slice(0, 0)
        """The B slots of the present pass."""
        self.width = 0
        """Number of tokens of each that the present pass can attend to."""
        self.places = torch.empty(0, dtype=torch.long)
        """(B T,) places of its tokens: ``slot * room + place``."""

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self._lengths)

    def read(self, rows: Sequence[Tokens], first: int = 0) -> Iterator[tuple[list[int], Inputs]]:
        """Read different sequences into slots ``first`` and following; those before are left alone.

        Yields:
            The indices in ``rows`` of the sequences that end in a forward pass, in the order of their slots (none for a
            beginning that all of them share), and its input, which the model must read before the next is asked for.

        """
        if not rows:
            return
        given = Table.of(rows)
        self._reserve(first + len(rows), given.tokens.shape[1])
        self.given += int(given.lengths.sum())
        shared = beginnings(self._table(), given, first)
        stem = given.common_beginning()
        if len(rows) > 1 and stem >= shared.most.max() + _WORTH_TOKENS:
            self._hold(first, given.tokens[:1], np.array([stem]))
            yield [], self._pass(first, np.zeros(1, dtype=np.int64))
            shared = beginnings(self._table(), given, first)
        owners = shared.owners.tolist()
        starts = np.minimum(self._copied(shared), given.lengths - 1)
        passes = _passes((given.lengths - starts).tolist(), self.limit)
        placed = self._arranged([[owners[index] for index in part] for part in passes], first)
        for part in passes:
            part.sort(key=lambda index: placed[owners[index]])
            slot = placed[owners[part[0]]]
            self._hold(slot, given.tokens[part], given.lengths[part])
            yield part, self._pass(slot, starts[part])

    def extend(self, tokens: Sequence[Sequence[int]]) -> Inputs:
        """Some more tokens for each of the first slots, which the model must read next; ``last`` is all of them."""
        counts = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        starts = self._lengths[: len(tokens)].copy()
        lengths = starts + counts
        self._reserve(self.count, int(lengths.max()))
        places = np.arange(self._held.shape[1])
        new = (places >= starts[:, None]) & (places < lengths[:, None])
        self._held[: len(tokens)][new] = np.fromiter(itertools.chain.from_iterable(tokens), dtype=np.int64)
        self._lengths[: len(tokens)] = lengths
        self.given += int(counts.sum())
        return self._pass(0, starts, every=True)

    def drop(self, counts: Sequence[int]) -> None:
        """Forget so many of the last tokens of each of the first slots, as if they had never been given."""
        self._lengths[: len(counts)] -= np.array(counts, dtype=np.int64)
        self.given -= sum(counts)
        self.computed -= sum(counts)

    def keep(self, slots: Sequence[int]) -> list[int]:
        """Bring ``slots`` to the front; returns them in the order in which they lie there."""
        placed = self._arranged([slots], 0)
        return sorted(slots, key=placed.__getitem__)

    def _reserve(self, count: int, width: int) -> None:
        """Have at least ``count`` slots, each with place for ``width`` tokens."""
        old, most = self._held.shape
        if count > old or width > most:
            held = np.zeros((max(count, old), max(_multiple(width, _BLOCK_TOKENS), most)), dtype=np.int64)
            held[:old, :most] = self._held
            self._held = held
            self._lengths = np.append(self._lengths, np.zeros(len(held) - old, dtype=np.int64))

    def _table(self) -> Table:
        return Table(self._held, self._lengths)

    def _hold(self, first: int, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Note that slots ``first`` and following hold other sequences from now on."""
        self._held[first : first + len(tokens), : tokens.shape[1]] = tokens
        self._lengths[first : first + len(tokens)] = lengths

    def _copied(self, shared: Beginnings) -> NDArray[np.int64]:
        """Copy beginnings from slots that hold more of them; return how much of each sequence its own slot holds."""
        copied = shared.most >= shared.own + _WORTH_TOKENS
        self._move(shared.owners[copied], shared.donors[copied])
        return np.where(copied, shared.most, shared.own)

    def _arranged(self, groups: Sequence[Sequence[int]], first: int) -> dict[int, int]:
        """Bring groups of slots to ``first`` and following with the fewest moves; return the place of each slot."""
        target: dict[int, int] = {}
        wanted = set(itertools.chain.from_iterable(groups))
        for group in [*groups, [slot for slot in range(first, self.count) if slot not in wanted]]:
            span = range(first, first + len(group))
            first = span.stop
            free = iter(sorted(set(span).difference(group)))
            target |= {slot: slot if slot in span else next(free) for slot in group}
        moved = [slot for slot, place in target.items() if slot != place]
        self._move(np.array([target[slot] for slot in moved], dtype=np.int64), np.array(moved, dtype=np.int64))
        return target

    def _move(self, targets: NDArray[np.int64], sources: NDArray[np.int64]) -> None:
        """Copy slots over others, all at once."""
        if not len(targets):
            return
        to, source = torch.from_numpy(np.stack([targets, sources])).to(self._device)
        for layer in self._cache.layers:
            layer.move(to, source, int(self._lengths[sources].max()))
        self._held[targets] = self._held[sources]
        self._lengths[targets] = self._lengths[sources]

    def _pass(self, first: int, starts: NDArray[np.int64], *, every: bool = False) -> Inputs:
        """Input of the tokens from ``starts`` on of slots ``first`` and following; ``last`` is their ends, or all."""
        self.at_work = slice(first, first + len(starts))
        lengths = self._lengths[self.at_work]
        counts = lengths - starts
        widest, longest = int(counts.max()), int(lengths.max())
        self.width = _multiple(longest, self._step)
        self.room = max(self.room, _multiple(longest, _BLOCK_TOKENS))
        self.computed += int(counts.sum())
        # a row is padded with its last token, which goes behind it, or, without room, to its own place again
        columns = np.minimum(starts[:, None] + np.arange(widest), lengths[:, None] - 1)
        ids = np.take_along_axis(self._held[self.at_work], columns, 1)
        if every:
            last = np.flatnonzero(np.arange(widest) < counts[:, None])
        else:
            last = np.arange(len(starts)) * widest + counts - 1
        sent = torch.from_numpy(np.concatenate([ids.ravel(), last, starts])).to(self._device)  # at once
        ids_there, last_there, starts_there = sent.split([ids.size, last.size, starts.size])
        places = (starts_there[:, None] + torch.arange(widest, device=self._device)).clamp_max(longest - 1)
        slots = torch.arange(first, self.at_work.stop, device=self._device)
        self.places = (slots[:, None] * self.room + places).flatten()
        sees = torch.arange(self.width, device=self._device) <= places[:, :, None]
        return Inputs(
            ids_there.view(ids.shape),
            last_there,
            {
                "position_ids": places,
                "attention_mask": additive(sees[:, None], self._dtype),
                "past_key_values": self._cache,
            },
        )


def _multiple(tokens: int, step: int) -> int:
    """Round up."""
    return -(-tokens // step) * step


def _passes(news: Sequence[int], limit: int) -> list[list[int]]:
    """Sequences, by how many new tokens they have, in passes of at most ``limit`` that are little more than half full.

    A new episode among many that only go on would make each of them as wide as itself.
    """
    passes: list[list[int]] = []
    total = 0
    for index in sorted(range(len(news)), key=lambda index: news[index]):
        total += news[index]
        if not passes or len(passes[-1]) == limit or news[index] * (len(passes[-1]) + 1) > 2 * total:
            passes.append([])
            total = news[index]
        passes[-1].append(index)
    return passes
