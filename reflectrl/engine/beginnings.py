"""``beginnings``: the cached sequences that share the longest prefixes with new sequences.

In lexicographic order, sequences with a common prefix are adjacent, so one pass over the sorted sequences, as over a
trie, finds all longest prefixes; comparing each pair would take a hundred times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reflectrl.engine.sequences import Tokens


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
