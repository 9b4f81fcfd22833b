"""What the games make of a player's thoughts: right or misread, and the action that they call for."""

from __future__ import annotations

import pytest

from reflectrl.core import Reading, make_env
from reflectrl.core.types import SPLITS


def read(game, task, thought, *actions):
    """Reading of a thought about a task in which actions were played."""
    env = make_env(f"gym_cards:{game}", menu="all")
    tasks = {task.id: task for split in SPLITS for task in env.tasks(split)}
    env.reset(seed=0, options={"task": tasks[task]})
    for action in actions:
        env.step(action)
    return env.reading(thought)


@pytest.mark.parametrize(
    ("thought", "right", "action"),
    [
        ("Mistake. The target is higher.", True, "+"),
        ("The target is lower.", False, "-"),
        ("The target 4 is higher than the current 2.", True, "+"),
        ("The target 5 is higher.", False, "+"),
        ("Higher or lower?", False, None),
        ("", False, None),
    ],
)
def test_number_line(thought, right, action):
    assert read("number_line", "2-to-4", thought) == Reading(right, action)


@pytest.mark.parametrize(
    ("written", "thought", "right", "action"),
    [
        ((), "Good. 10 + 2 equals 12.", True, "10"),
        ((), "2+10=12", True, "2"),
        ((), "10 + 3 equals 12.", False, "10"),  # there is no 3
        ((), "2 * 10 equals 12.", False, "2"),
        (("10",), "Mistake. 10 + 2 equals 12.", True, "+"),
        (("10",), "2 + 10 equals 12.", False, None),  # another one was begun
        (("10", "+", "2"), "10 + 2 equals 12.", True, "="),
        (("10", "*"), "Nothing that begins so equals 12.", True, "="),
        ((), "Nothing that begins so equals 12.", False, "="),
        ((), "I see two cards.", False, None),
    ],
)
def test_ez_points(written, thought, right, action):
    assert read("ez_points", "2-Q", thought, *written) == Reading(right, action)


def test_points24_takes_brackets_and_every_way_to_write_a_formula():
    assert read("points24", "3-3-8-8", "8 / ( 3 - 8 / 3 ) equals 24.") == Reading(True, "8")
    assert read("points24", "3-3-8-8", "8 / 3 - 8 / 3 equals 24.").right is False


@pytest.mark.parametrize(
    ("thought", "right"),
    [
        ("You hold 16, the dealer shows 7.", True),
        ("You hold 26, the dealer shows 7.", False),
        ("You hold 16, the dealer shows an ace.", False),
        ("Hit.", False),
    ],
)
def test_blackjack(thought, right):
    assert read("blackjack", "K-6-vs-7", thought) == Reading(right)
