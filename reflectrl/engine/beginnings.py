"""``beginnings``: which of many held sequences share the longest beginnings with given ones.

In lexicographic order all sequences with some beginning stand side by side, so one walk through it, a trie without its
letters, finds every longest beginning; comparing each pair would take a hundred times as long.
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
    """(N, W) token ids; of no meaning behind a sequence's end."""
    lengths: NDArray[np.int64]
    """(N,) length of each sequence, in tokens."""

    @classmethod
    def of(cls, rows: Sequence[Tokens]) -> Table:
        """Make a table of sequences, of which none is empty."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        tokens = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.fromiter(
            itertools.chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())
        )
        return cls(tokens, lengths)

    def common_beginning(self) -> int:
        """Length of the beginning that all sequences share."""
        shortest = int(self.lengths.min())
        differs = (self.tokens[:, :shortest] != self.tokens[0, :shortest]).any(0)
        return int(differs.argmax()) if differs.any() else shortest


@dataclass(frozen=True)
class Beginnings:
    """For each of R sequences, the slots that share the longest beginnings with it; arrays of (R,)."""

    owners: NDArray[np.int64]
    """A slot for each sequence, no slot twice: the pair that shares most is made first, then the next."""
    own: NDArray[np.int64]
    """Length of the beginning that it shares with its slot."""
    donors: NDArray[np.int64]
    """The first slot of all that shares most with it."""
    most: NDArray[np.int64]
    """Length of the beginning that it shares with that."""


@dataclass
class _Branch:
    """Sequences that share a beginning."""

    depth: int
    """Length of the shared beginning, in tokens."""
    rows: list[int] = field(default_factory=list)
    """Given sequences without a slot."""
    slots: list[int] = field(default_factory=list)
    """Slots that are free for them."""
    alone: list[int] = field(default_factory=list)
    """Given sequences that have met no slot."""
    donor: int | None = None
    """The first of all slots."""

    def add(self, other: _Branch) -> None:
        """Take in a longer branch."""
        self.rows += other.rows
        self.slots += other.slots
        self.alone += other.alone
        if other.donor is not None:
            self.donor = other.donor if self.donor is None else min(self.donor, other.donor)


def beginnings(held: Table, given: Table, first: int) -> Beginnings:
    """Match ``given`` sequences with slots that ``held`` some; those before ``first`` may only be copied from."""
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
    """Match what no longer beginning could."""
    if branch.donor is not None and branch.alone:
        found.donors[branch.alone], found.most[branch.alone] = branch.donor, branch.depth
        branch.alone = []
    pairs = min(len(branch.rows), len(branch.slots))
    if pairs:
        rows, slots = sorted(branch.rows), sorted(branch.slots)
        found.owners[rows[:pairs]], found.own[rows[:pairs]] = slots[:pairs], branch.depth
        branch.rows, branch.slots = rows[pairs:], slots[pairs:]


def _sorted(held: Table, given: Table) -> tuple[list[int], list[int]]:
    """Return the order of all sequences, the held ones first, and what each shares with the next in that order."""
    count, width = len(held.lengths), given.tokens.shape[1]
    lengths = np.concatenate([np.minimum(held.lengths, width), given.lengths])
    tokens = np.zeros((len(lengths), width), dtype=np.int64)
    tokens[:count], tokens[count:] = held.tokens[:, :width], given.tokens
    tokens[np.arange(width) >= lengths[:, None]] = -1
    # any order of the tokens will do, so that of their bytes
    order = tokens.view(np.dtype((np.void, tokens.itemsize * width)))[:, 0].argsort()
    tokens, lengths = tokens[order], lengths[order]
    differs = tokens[1:] != tokens[:-1]
    common = np.where(differs.any(1), differs.argmax(1), width)
    return order.tolist(), np.minimum(common, np.minimum(lengths[1:], lengths[:-1])).tolist()
