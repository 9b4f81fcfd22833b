"""``PrefixCache``: key-value states of the sequences read last, whose beginnings are not read again.

One slot holds one sequence. A new sequence goes to the slot that shares the longest beginning with it, and copies from
another slot where that one shares more. A beginning that all of them share and no slot holds, such as the instructions,
is read once. The states are valid for as long as the model's weights are: ``clear`` the cache when these change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from reflectrl.engine.sequences import Inputs, Tokens, additive

_BLOCK_TOKENS = 64
"""Room for sequences grows by this many."""
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
        self.clear()

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._held: list[Tokens] = []
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
        return len(self._held)

    def read(self, rows: Sequence[Tokens], first: int = 0) -> Iterator[tuple[list[int], Inputs]]:
        """Read different sequences into slots ``first`` and following; those before are left alone.

        Yields:
            The indices in ``rows`` of the sequences that end in a forward pass, in the order of their slots (none for a
            beginning that all of them share), and its input, which the model must read before the next is asked for.

        """
        if not rows:
            return
        self._held += [()] * (first + len(rows) - self.count)
        self.given += sum(map(len, rows))
        shared = self._shared(rows)
        stem = _common_beginning(rows)
        if len(rows) > 1 and len(stem) >= shared.max() + _WORTH_TOKENS:
            yield [], self._pass(first, [0], [stem])
            shared = self._shared(rows)
        owners = [first + owner for owner in _owners(shared[:, first:])]
        known = self._copied(shared, owners)
        starts = [min(length, len(row) - 1) for length, row in zip(known, rows, strict=True)]
        passes = _passes([len(row) - start for row, start in zip(rows, starts, strict=True)], self.limit)
        placed = self._arranged([[owners[index] for index in part] for part in passes], first)
        for part in passes:
            part.sort(key=lambda index: placed[owners[index]])
            slot = placed[owners[part[0]]]
            yield part, self._pass(slot, [starts[index] for index in part], [rows[index] for index in part])

    def extend(self, tokens: Sequence[int]) -> Inputs:
        """One more token for each of the first slots, which the model must read next."""
        rows = [(*held, token) for held, token in zip(self._held, tokens, strict=False)]
        self.given += len(rows)
        return self._pass(0, [len(row) - 1 for row in rows], rows)

    def keep(self, slots: Sequence[int]) -> list[int]:
        """Bring ``slots`` to the front; returns them in the order in which they lie there."""
        placed = self._arranged([list(slots)], 0)
        return sorted(slots, key=lambda slot: placed[slot])

    def _shared(self, rows: Sequence[Tokens]) -> NDArray[np.int64]:
        """(rows, slots) lengths of the beginnings that each sequence shares with each slot."""
        width = max(map(len, rows))
        given = np.array([row + (-1,) * (width - len(row) + 1) for row in rows])
        held = np.array([row[:width] + (-2,) * (width - len(row[:width]) + 1) for row in self._held])
        return (given[:, None] != held[None]).argmax(-1)

    def _copied(self, shared: NDArray[np.int64], owners: Sequence[int]) -> list[int]:
        """Copy beginnings from slots that hold more of them; return how much of each sequence its own slot holds."""
        donors = shared.argmax(1).tolist()
        own = [int(shared[row, owner]) for row, owner in enumerate(owners)]
        most = [int(shared[row, donor]) for row, donor in enumerate(donors)]
        copied = [row for row in range(len(owners)) if most[row] >= own[row] + _WORTH_TOKENS]
        self._move([owners[row] for row in copied], [donors[row] for row in copied])
        return [most[row] if row in copied else own[row] for row in range(len(owners))]

    def _arranged(self, groups: Sequence[Sequence[int]], first: int) -> dict[int, int]:
        """Bring groups of slots to ``first`` and following with the fewest moves; return the place of each slot."""
        target: dict[int, int] = {}
        wanted = {slot for group in groups for slot in group}
        for group in [*groups, [slot for slot in range(first, self.count) if slot not in wanted]]:
            span = range(first, first + len(group))
            first = span.stop
            target |= {slot: slot for slot in group if slot in span}
            free = iter([place for place in span if place not in group])
            target |= {slot: next(free) for slot in group if slot not in span}
        moved = [slot for slot, place in target.items() if slot != place]
        self._move([target[slot] for slot in moved], moved)
        return target

    def _move(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        """Copy slots over others, all at once."""
        if not targets:
            return
        held = [self._held[source] for source in sources]
        length = max(map(len, held))
        for layer in self._cache.layers:
            layer.move(torch.tensor(targets, device=self._device), torch.tensor(sources, device=self._device), length)
        for target, tokens in zip(targets, held, strict=True):
            self._held[target] = tokens

    def _pass(self, first: int, starts: Sequence[int], rows: Sequence[Tokens]) -> Inputs:
        """Input of the tokens from ``starts`` on of sequences for slots ``first`` and following."""
        news = [row[start:] for row, start in zip(rows, starts, strict=True)]
        widest, longest = max(map(len, news)), max(map(len, rows))
        self.at_work = slice(first, first + len(rows))
        self.width = -(-longest // 8) * 8
        self.room = max(self.room, -(-self.width // _BLOCK_TOKENS) * _BLOCK_TOKENS)
        # a row is padded with its last token, which goes behind it, or, without room, to its own place again
        after = torch.tensor(starts, device=self._device)[:, None] + torch.arange(widest, device=self._device)
        places = after.clamp_max(longest - 1)
        slots = torch.arange(first, first + len(rows), device=self._device)
        self.places = (slots[:, None] * self.room + places).flatten()
        sees = torch.arange(self.width, device=self._device) <= places[:, :, None]
        self._held[self.at_work] = rows
        self.computed += sum(map(len, news))
        return Inputs(
            torch.tensor([new + new[-1:] * (widest - len(new)) for new in news], device=self._device),
            torch.tensor([row * widest + len(new) - 1 for row, new in enumerate(news)], device=self._device),
            {
                "position_ids": places,
                "attention_mask": additive(sees[:, None], self._dtype),
                "past_key_values": self._cache,
            },
        )


def _common_beginning(rows: Sequence[Tokens]) -> Tokens:
    """Return the common prefix of all sequences, which is that of the first and the last in lexicographic order."""
    low, high = min(rows), max(rows)
    length = next((index for index, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    return low[:length]


def _owners(shared: NDArray[np.int64]) -> list[int]:
    """A slot for each sequence, no slot twice: the pair that shares most is made first, then the next."""
    left = shared.copy()
    owners = [-1] * len(left)
    for _ in owners:
        row, slot = divmod(int(left.argmax()), left.shape[1])
        owners[row] = slot
        left[row], left[:, slot] = -1, -1
    return owners


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
