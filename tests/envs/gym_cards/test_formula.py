"""What can become of a formula, against a search that writes every formula out."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations_with_replacement, product

import pytest

from reflectrl.envs.gym_cards.formula import SIGNS, Formula, can_equal, is_solvable


def written(formula, symbols):
    """Add symbols; ``None`` as soon as one cannot follow."""
    for symbol in symbols:
        formula = formula and formula.then(symbol)
    return formula


def completions(formula, room):
    """Every complete formula with at most ``room`` more symbols."""
    if formula.value is not None:
        yield formula.value
    for symbol in (*map(str, sorted(set(formula.left))), *SIGNS, "(", ")") if room else ():
        if after := formula.then(symbol):
            yield from completions(after, room - 1)


@pytest.mark.parametrize("text", ["8/(3-8/3)", "3-8+8*3", "((8-3)*8)/3", "8/3*(8-3)", "8-8/(3*3)"])
def test_the_value_is_that_of_arithmetic_with_fractions(text):
    expected = eval("".join(f"Fraction({sign})" if sign.isdigit() else sign for sign in text), {"Fraction": Fraction})
    assert written(Formula((3, 3, 8, 8)), text).value == expected


@pytest.mark.parametrize("text", ["+", "3+)", "33", "3(", "9", "3+3+3", "()", "8/(3-3)", "3)", "3+3+8+8+", "3//"])
def test_what_makes_no_formula_of_the_cards_has_no_value(text):
    assert written(Formula((3, 3, 8, 8)), text) is None


def test_a_formula_that_lacks_something_has_no_value():
    for text in ("", "3", "(3+3+8+8", "3+3+8+"):
        assert written(Formula((3, 3, 8, 8)), text).value is None


@pytest.mark.slow
def test_what_can_be_reached_is_what_a_search_reaches():
    rng = random.Random(0)
    judged = set()
    for _ in range(60):
        formula = Formula(tuple(sorted(rng.choices(range(1, 11), k=3))))
        for _ in range(rng.randrange(5)):
            following = [formula.then(symbol) for symbol in (*map(str, formula.left), *SIGNS, "(", ")")]
            formula = rng.choice([after for after in following if after] or [formula])
        target = rng.choice([6, 12, 24])
        found = target in completions(formula, room=9)
        assert can_equal(formula, target, SIGNS) == found, (formula, target)
        judged.add(found)
    assert judged == {True, False}


def test_as_many_deals_are_solvable_as_are_known_to_be():
    solvable = {cards for cards in combinations_with_replacement(range(1, 11), 4) if is_solvable(cards, 24, SIGNS)}
    assert len(solvable) == 566
    dealt = [tuple(sorted(min(rank, 10) for rank in ranks)) for ranks in product(range(1, 14), repeat=4)]
    assert sum(cards in solvable for cards in dealt) == 20_876  # of 28,561: 73 %
    assert all(can_equal(Formula(cards), 24, SIGNS) for cards in sorted(solvable)[::60])
    pairs = [cards for cards in combinations_with_replacement(range(1, 11), 2) if is_solvable(cards, 12, "+*")]
    assert pairs == [(2, 6), (2, 10), (3, 4), (3, 9), (4, 8), (5, 7), (6, 6)]
