from __future__ import annotations

import random

import pytest

from reflectrl.core import InvalidInput
from reflectrl.prompts import LABEL_KINDS, labels, make_menu

ACTIONS = ("go north", "go south", "wait")


def test_the_kinds_of_labels():
    assert labels("numbers", 3) == ("0", "1", "2")
    assert labels("letters", 28)[24:] == ("Y", "Z", "a", "b")
    assert labels("added", 2) == ("<|0|>", "<|1|>")


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_labels_are_as_many_as_asked_and_all_different(kind):
    assert len(set(labels(kind, 52))) == 52


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"labels 'number' is unknown; did you mean 'numbers'\?"):
        labels("number", 3)


def test_more_actions_than_letters_are_refused():
    with pytest.raises(InvalidInput, match="53 actions .* labels=letters has 52; use prompt.labels=added"):
        labels("letters", 53)


def test_shuffling_moves_the_actions_under_labels_in_order():
    menus = [make_menu(ACTIONS, "numbers", random.Random(seed)) for seed in range(30)]
    assert {menu.labels for menu in menus} == {("0", "1", "2")}
    assert {tuple(sorted(menu.actions)) for menu in menus} == {tuple(sorted(ACTIONS))}
    assert len({menu.actions for menu in menus}) == 6


def test_shuffling_uses_only_the_given_generator():
    before = random.getstate()
    first = make_menu(ACTIONS, "numbers", random.Random(3))
    random.seed(99)
    assert make_menu(ACTIONS, "numbers", random.Random(3)) == first
    random.setstate(before)
    make_menu(ACTIONS, "numbers", random.Random(4))
    assert random.getstate() == before
