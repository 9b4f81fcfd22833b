"""Formulas that use each number once: how a formula is written, its value, and what it can still equal.

A formula is written symbol by symbol. All values are exact fractions, so 8 / (3 - 8 / 3) is 24.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

OPEN, CLOSE, EQUALS = "(", ")", "="
SIGNS = "+-*/"

Numbers = tuple[int, ...]
"""Numbers that are left to use, in ascending order."""


class Level(NamedTuple):
    """The part of a formula inside an open bracket, or outside all brackets, as far as it is written."""

    total: Fraction
    """Value of the terms before the last + or -."""
    term: Fraction
    """Value of the term after it, with its sign, up to the last number."""
    sign: str
    """``*`` or ``/`` if the next operand continues the term, "" if an operand was the last symbol."""


FRESH = Level(Fraction(0), Fraction(1), "*")


class Formula(NamedTuple):
    """A valid beginning of a formula, reduced to what decides which symbols may follow."""

    left: Numbers
    levels: tuple[Level, ...] = (FRESH,)

    @property
    def wants_operand(self) -> bool:
        """True if a number or an opening bracket must follow."""
        return self.levels[-1].sign != ""

    @property
    def value(self) -> Fraction | None:
        """Value of a complete formula, with all numbers used and all brackets closed; else ``None``."""
        top = self.levels[-1]
        return None if self.left or len(self.levels) > 1 or self.wants_operand else top.total + top.term

    def then(self, symbol: str) -> Formula | None:
        """Return the formula with one more symbol; ``None`` if the symbol cannot follow."""
        *below, top = self.levels
        if self.wants_operand:
            if symbol == OPEN:
                return self._replace(levels=(*self.levels, FRESH)) if self.left else None
            if not symbol.isdigit() or (number := int(symbol)) not in self.left:
                return None
            at = self.left.index(number)
            level = _operand(top, Fraction(number))
            return level and Formula(self.left[:at] + self.left[at + 1 :], (*below, level))
        if symbol == CLOSE and below:
            level = _operand(below[-1], top.total + top.term)
            return level and Formula(self.left, (*below[:-1], level))
        if symbol not in SIGNS or not self.left:
            return None
        return Formula(self.left, (*below, _signed(top, symbol)))


def _operand(level: Level, value: Fraction) -> Level | None:
    """Multiply or divide the term; ``None`` for a division by zero."""
    if level.sign == "/":
        return Level(level.total, level.term / value, "") if value else None
    return Level(level.total, level.term * value, "")


def _signed(level: Level, sign: str) -> Level:
    if sign in "*/":
        return level._replace(sign=sign)
    return Level(level.total + level.term, Fraction(1 if sign == "+" else -1), "*")


# ---- what can become of it -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def can_equal(formula: Formula, target: int, signs: str) -> bool:
    """Return whether the formula can be completed to one that equals ``target``, with brackets and some of ``SIGNS``.

    All continuations are tried, by their values: those of a bracket are the values of a set of numbers.
    """
    *below, top = formula.levels
    if not below:
        return any(value == target for value in _ends(top, formula.left, signs))
    if formula.wants_operand and not formula.left:
        return False
    for used, rest in _shares(formula.left):
        for value in _ends(top, used, signs):
            level = _operand(below[-1], value)
            if level and can_equal(Formula(rest, (*below[:-1], level)), target, signs):
                return True
    return False


def is_solvable(numbers: Numbers, target: int, signs: str) -> bool:
    """Return whether a formula of all ``numbers`` equals ``target``, above 0; much faster than ``can_equal``."""
    goal = Fraction(target)
    if len(numbers) == 1:
        return goal == numbers[0]
    for left, right in _halves(numbers):
        others = values(right, signs)
        for value in values(left, signs):
            if not others.isdisjoint(_missing(value, goal, signs)):
                return True
    return False


def _missing(value: Fraction, goal: Fraction, signs: str) -> Iterator[Fraction]:
    """Yield the values that give ``goal`` when combined with ``value``."""
    if "+" in signs:
        yield goal - value
    if "-" in signs:
        yield from (value - goal, goal + value)
    if not value:
        return  # no product or quotient with it is above 0 either
    if "*" in signs:
        yield goal / value
    if "/" in signs:
        yield from (goal * value, value / goal)


@lru_cache(maxsize=4096)
def values(numbers: Numbers, signs: str) -> frozenset[Fraction]:
    """Return the values of all formulas that use each of ``numbers``."""
    if len(numbers) == 1:
        return frozenset((Fraction(numbers[0]),))
    found: set[Fraction] = set()
    for left, right in _halves(numbers):
        for a in values(left, signs):
            for b in values(right, signs):
                for sign in signs:
                    if sign == "+":
                        found.add(a + b)
                    elif sign == "-":
                        found.update((a - b, b - a))
                    elif sign == "*":
                        found.add(a * b)
                    else:
                        found.update(x / y for x, y in ((a, b), (b, a)) if y)
    return frozenset(found)


@lru_cache(maxsize=1 << 14)
def _ends(level: Level, used: Numbers, signs: str) -> frozenset[Fraction]:
    """Return the values of a bracket's inside, or of the whole formula, that continues with all numbers in ``used``."""
    if not used:
        return frozenset(() if level.sign else (level.total + level.term,))
    if level.sign == "*" and abs(level.term) == 1:  # a term begins: whatever follows is one value, added or subtracted
        return frozenset(level.total + level.term * value for value in values(used, signs))
    if not level.sign:
        return frozenset().union(*(_ends(_signed(level, sign), used, signs) for sign in signs))
    found: set[Fraction] = set()
    for operand, rest in _shares(used):
        for value in values(operand, signs) if operand else ():
            after = _operand(level, value)
            if after:
                found |= _ends(after, rest, signs)
    return frozenset(found)


@lru_cache(maxsize=4096)
def _shares(numbers: Numbers) -> tuple[tuple[Numbers, Numbers], ...]:
    """Return all divisions of numbers into two shares, either of which may be empty."""
    places = range(len(numbers))
    chosen = (set(part) for size in range(len(numbers) + 1) for part in combinations(places, size))
    shares = (
        (tuple(numbers[at] for at in places if at in part), tuple(numbers[at] for at in places if at not in part))
        for part in chosen
    )
    return tuple(dict.fromkeys(shares))


def _halves(numbers: Numbers) -> list[tuple[Numbers, Numbers]]:
    """Return all divisions of numbers into two non-empty shares, each pair in one order."""
    return [(left, right) for left, right in _shares(numbers) if left and (len(left), left) <= (len(right), right)]
