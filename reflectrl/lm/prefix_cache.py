"""``PrefixCache``: key-value states of the latest sequences, so that prefixes shared with them are not read again.

A slot holds one sequence. A new sequence takes the slot that shares the longest prefix with it, and copies a longer one
from another slot, if any. A prefix that all new sequences share and no slot holds, such as the instructions, is read
once. The states are valid only for the weights that computed them: ``clear`` the cache when the weights change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from reflectrl.lm.sequences import Inputs, Tokens, additive


@dataclass(frozen=True)
class Table:
    """Sequences as rows of an array."""

    tokens: NDArray[np.int64]
    """(N, W) token ids; values after the end of a sequence are arbitrary."""
    lengths: NDArray[np.int64]
    """(N,) length of each sequence, in tokens."""

    @classmethod
    def of(cls, rows: Sequence[Tokens]) -> Table:
        """Return the table of sequences, none of which is empty."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        tokens = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.fromiter(
            itertools.chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())
        )
        return cls(tokens, lengths)

    def common_beginning(self) -> int:
        """Return the length of the prefix that all sequences share."""
        shortest = int(self.lengths.min())
        differs = (self.tokens[:, :shortest] != self.tokens[0, :shortest]).any(0)
        return int(differs.argmax()) if differs.any() else shortest


@dataclass(frozen=True)
class Beginnings:
    """For each of R sequences, the slots that share the longest prefixes with it; all arrays are (R,)."""

    owners: NDArray[np.int64]
    """Slot assigned to each sequence, each slot at most once, greedily by the length of the shared prefix."""
    own: NDArray[np.int64]
    """Length of the prefix that each sequence shares with its owner slot."""
    donors: NDArray[np.int64]
    """First of the slots that share the longest prefix with each sequence."""
    most: NDArray[np.int64]
    """Length of the prefix that each sequence shares with its donor slot."""


@dataclass
class _Branch:
    """Sequences that share a prefix."""

    depth: int
    """Length of the shared prefix, in tokens."""
    rows: list[int] = field(default_factory=list)
    """New sequences without an owner slot."""
    slots: list[int] = field(default_factory=list)
    """Slots that can still become owners."""
    alone: list[int] = field(default_factory=list)
    """New sequences without a donor slot."""
    donor: int | None = None
    """First slot of the branch."""

    def add(self, other: _Branch) -> None:
        """Merge a branch with a longer prefix into this one."""
        self.rows += other.rows
        self.slots += other.slots
        self.alone += other.alone
        if other.donor is not None:
            self.donor = other.donor if self.donor is None else min(self.donor, other.donor)


def beginnings(held: Table, given: Table, first: int) -> Beginnings:
    """Match the ``given`` sequences with slots that hold ``held``; slots before ``first`` can only be donors."""
    found = Beginnings(*np.zeros((4, len(given.lengths)), dtype=np.int64))
    count = len(held.lengths)
    order, common = _sorted(held, given)
    open_branches: list[_Branch] = []
    for number, after in zip(order, [*common, -1], strict=True):
        if number < count:
            branch = _Branch(0, slots=[number] if number >= first else [], donor=number)
        else:
            branch = _Branch(0, rows=[number - count], alone=[number - count])
        while open_branches and open_branches[-1].depth > after:
            whole = open_branches.pop()
            whole.add(branch)
            _settle(whole, found)
            branch = whole
        if not open_branches or open_branches[-1].depth < after:
            open_branches.append(_Branch(after))
        open_branches[-1].add(branch)
    return found


def _settle(branch: _Branch, found: Beginnings) -> None:
    """Match the sequences and slots that no branch with a longer prefix has matched."""
    if branch.donor is not None and branch.alone:
        found.donors[branch.alone], found.most[branch.alone] = branch.donor, branch.depth
        branch.alone = []
    pairs = min(len(branch.rows), len(branch.slots))
    if pairs:
        rows, slots = sorted(branch.rows), sorted(branch.slots)
        found.owners[rows[:pairs]], found.own[rows[:pairs]] = slots[:pairs], branch.depth
        branch.rows, branch.slots = rows[pairs:], slots[pairs:]


def _sorted(held: Table, given: Table) -> tuple[list[int], list[int]]:
    """Return a sorted order of all sequences, numbered from the held ones, and the prefix lengths of neighbours."""
    count, width = len(held.lengths), given.tokens.shape[1]
    lengths = np.concatenate([np.minimum(held.lengths, width), given.lengths])
    tokens = np.zeros((len(lengths), width), dtype=np.int64)
    tokens[:count], tokens[count:] = held.tokens[:, :width], given.tokens
    tokens[np.arange(width) >= lengths[:, None]] = -1
    # any consistent order of tokens is sufficient, so they are sorted by their bytes
    order = tokens.view(np.dtype((np.void, tokens.itemsize * width)))[:, 0].argsort()
    tokens, lengths = tokens[order], lengths[order]
    differs = tokens[1:] != tokens[:-1]
    common = np.where(differs.any(1), differs.argmax(1), width)
    return order.tolist(), np.minimum(common, np.minimum(lengths[1:], lengths[:-1])).tolist()


_BLOCK_TOKENS = 64
"""Granularity, in tokens, of the room for sequences."""
_STEP_TOKENS = 8
"""Granularity, in tokens, of the width of a pass on a CPU."""
_WORTH_TOKENS = 16
"""Minimum number of tokens gained by copying from another slot, or by reading a shared prefix once."""


class _Layer(CacheLayerMixin):
    """States of one attention layer: keys and values, each (slots, room, heads, head size)."""

    is_sliding = False

    def __init__(self, owner: PrefixCache) -> None:
        super().__init__()
        self._owner = owner
        self._kept: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Grow the tensors to the cache's number of slots and room, keeping all states."""
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
        """Write the new states to their positions; return all states of the slots of the current pass."""
        self.lazy_initialization(key_states, value_states)
        owner = self._owner
        for kept, states in zip(self._kept, (key_states, value_states), strict=True):
            tokens = kept.view(-1, *kept.shape[2:])
            tokens.index_copy_(0, owner.places, states.transpose(1, 2).flatten(0, 1))
        keys, values = (kept[owner.at_work, : owner.width].transpose(1, 2) for kept in self._kept)
        return keys, values

    def move(self, targets: Tensor, sources: Tensor, length: int) -> None:
        """Copy the states of the first ``length`` tokens of slots ``sources`` to slots ``targets``."""
        for number, kept in enumerate(self._kept):
            self._grow(number, kept.transpose(1, 2))
            self._kept[number][targets, :length] = self._kept[number][sources, :length]

    def get_seq_length(self) -> int:
        """Return 0: positions are given by ``position_ids``, and a pass without a mask begins at position 0."""
        return 0

    def get_max_length(self) -> int:
        """Return -1, which means no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the sizes of a pass without a mask, which has no earlier tokens."""
        return query_length, 0


class PrefixCache:
    """Key-value states of sequences, one per slot; slots are added when more sequences are read at once than before.

    ``limit`` is the maximum number of sequences in a forward pass.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, limit: int = 256) -> None:
        self.limit = limit
        self.given = 0
        """Number of tokens of the sequences given so far."""
        self.computed = 0
        """Number of these tokens that the model had to read; the states of the others were in the cache."""
        self._device = device
        self._dtype = dtype
        # on a CPU each column costs time; on an accelerator each new shape needs new kernels
        self._step = _STEP_TOKENS if device.type == "cpu" else _BLOCK_TOKENS
        self.clear()

    def clear(self) -> None:
        """Clear the cache; needed when the weights have changed."""
        self._held = np.zeros((0, 0), dtype=np.int64)  # (slots, room) tokens; arbitrary after the end of a sequence
        self._lengths = np.zeros(0, dtype=np.int64)
        self._cache = Cache(layer_class_to_replicate=lambda: _Layer(self))
        self.room = 0
        """Number of tokens that fit into a slot."""
        self.at_work = slice(0, 0)
        """The B slots of the current pass."""
        self.width = 0
        """Number of tokens of each slot to which the current pass can attend."""
        self.places = torch.empty(0, dtype=torch.long)
        """(B T,) flat positions of the current pass's tokens, ``slot * room + position in the slot``."""

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self._lengths)

    def read(self, rows: Sequence[Tokens], first: int = 0) -> Iterator[tuple[list[int], Inputs]]:
        """Read distinct sequences into slots ``first`` and following; the slots before them are unchanged.

        Yields:
            For each forward pass, the indices in ``rows`` of the sequences that it completes, in the order of their
            slots (none for a prefix that all of them share), and its input, which the model must read before the next
            pass is requested.
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
        """Append tokens to each of the first slots; return the input, which the model must read next.

        ``last`` are the positions of all these tokens.
        """
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

    def keep(self, slots: Sequence[int]) -> list[int]:
        """Move ``slots`` to the front; return them in their new order."""
        placed = self._arranged([slots], 0)
        return sorted(slots, key=placed.__getitem__)

    def _reserve(self, count: int, width: int) -> None:
        """Grow to at least ``count`` slots with room for ``width`` tokens each."""
        old, most = self._held.shape
        if count > old or width > most:
            held = np.zeros((max(count, old), max(_multiple(width, _BLOCK_TOKENS), most)), dtype=np.int64)
            held[:old, :most] = self._held
            self._held = held
            self._lengths = np.append(self._lengths, np.zeros(len(held) - old, dtype=np.int64))

    def _table(self) -> Table:
        return Table(self._held, self._lengths)

    def _hold(self, first: int, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self._held[first : first + len(tokens), : tokens.shape[1]] = tokens
        self._lengths[first : first + len(tokens)] = lengths

    def _copied(self, shared: Beginnings) -> NDArray[np.int64]:
        """Copy longer prefixes from donor slots; return the length of each sequence's prefix in its owner slot."""
        copied = shared.most >= shared.own + _WORTH_TOKENS
        self._move(shared.owners[copied], shared.donors[copied])
        return np.where(copied, shared.most, shared.own)

    def _arranged(self, groups: Sequence[Sequence[int]], first: int) -> dict[int, int]:
        """Move groups of slots to ``first`` and following with the fewest moves; return each slot's new position."""
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
        if not len(targets):
            return
        to, source = torch.from_numpy(np.stack([targets, sources])).to(self._device)
        for layer in self._cache.layers:
            layer.move(to, source, int(self._lengths[sources].max()))
        self._held[targets] = self._held[sources]
        self._lengths[targets] = self._lengths[sources]

    def _pass(self, first: int, starts: NDArray[np.int64], *, every: bool = False) -> Inputs:
        """Return the input of the tokens from ``starts`` on in slots from ``first`` on.

        ``last`` are the positions of the slots' last tokens, or with ``every`` of all these tokens.
        """
        self.at_work = slice(first, first + len(starts))
        lengths = self._lengths[self.at_work]
        counts = lengths - starts
        widest, longest = int(counts.max()), int(lengths.max())
        whole = not starts.any()  # rows from their beginning attend causally: a mask would cost more than the rest
        self.width = widest if whole else _multiple(longest, self._step)
        self.room = max(self.room, _multiple(longest, _BLOCK_TOKENS))
        self.computed += int(counts.sum())
        # a row is padded with its last token, whose states go after the row's end or, without room, to its own position
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
        extra: dict[str, Any] = {"position_ids": places, "past_key_values": self._cache}
        if not whole:
            sees = torch.arange(self.width, device=self._device) <= places[:, :, None]
            extra["attention_mask"] = additive(sees[:, None], self._dtype)
        return Inputs(ids_there.view(ids.shape), last_there, extra)


def _multiple(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


def _passes(news: Sequence[int], limit: int) -> list[list[int]]:
    """Group sequences by their numbers of new tokens into passes of at most ``limit`` that are at least half full.

    Otherwise a new episode among many that only continue would pad each of them to its own width.
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
