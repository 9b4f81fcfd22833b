"""Success of a random player with the paper's actions and deals, and of Blackjack's basic strategy."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from itertools import product

import numpy as np
import pytest
from playing import at_random, share_of_wins

from reflectrl.core import Task, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.gym_cards.points import EZPoints

RNG = np.random.default_rng(0)


def all_tasks(env):
    return {task.id: task for split in SPLITS for task in env.tasks(split)}


@pytest.mark.slow
def test_number_line_is_won_by_chance_in_28_percent():
    """The paper draws both numbers; if they are equal, the target is the next one modulo 5. Exactly 28.3 %."""
    env = make_env("gym_cards:number_line", menu="all")
    tasks = all_tasks(env)
    drawn = [(a, b if a != b else (b + 1) % 5) for a, b in product(range(6), repeat=2)]
    assert sum(0.5 ** abs(a - b) for a, b in drawn) / len(drawn) == pytest.approx(0.283, abs=5e-4)
    wins = share_of_wins(env, [tasks[f"{a}-to-{b}"] for a, b in drawn * 100], at_random())
    assert wins == pytest.approx(0.283, abs=0.023)  # three standard deviations


def chance(game, menu, known, total=0.0):
    """Probability that a random player wins from here; 0 where nothing can be reached."""
    state = game.text(), game._steps, total
    if state not in known:
        actions, wins = menu(game), 0.0
        for action in actions:
            after = deepcopy(game)
            outcome = after.play(action, RNG)
            if outcome.ended:
                wins += total + outcome.reward > 0
            elif after._steps < after.horizon and not after.standing().startswith("Nothing"):
                wins += chance(after, menu, known, total + outcome.reward)
        known[state] = wins / len(actions)
    return known[state]


def ez_points_deals():
    """The paper's: a first card from 2 to the king, and one that makes 12 with it."""
    weights = Counter()
    for rank in range(2, 14):
        number = min(rank, 10)
        others = (12 - number, 12 // number) if number in (2, 3, 4, 6) else (12 - number,) * 2
        for other in others:
            weights[tuple(sorted((rank, other)))] += 1 / 24
    return weights


@pytest.mark.parametrize(("menu", "floor"), [("all", 0.000588), ("legal", 0.109954)])
def test_ez_points_is_won_by_chance_as_often_as_is_known(menu, floor):
    deals, wins = ez_points_deals(), 0.0
    assert sum(deals.values()) == pytest.approx(1)
    for cards, weight in deals.items():
        game = EZPoints()
        game.deal(Task("", {"cards": list(cards)}), RNG)
        shown = EZPoints.legal if menu == "legal" else lambda game: game.actions
        wins += weight * chance(game, shown, {})
    assert wins == pytest.approx(floor, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choose", "wins", "on_test"),
    [
        (at_random(), 0.2806, 0.31),
        (lambda env: env.expert(), 0.4295, 0.49),
    ],
    ids=["random", "expert"],
)
def test_blackjack_is_won_as_often_as_is_known(choose, wins, on_test):
    """Every deal once has the probabilities of deals; the shares are exact for an infinite deck."""
    env = make_env("gym_cards:blackjack")
    tasks = [*all_tasks(env).values()] * 2
    assert share_of_wins(env, tasks, choose) == pytest.approx(wins, abs=0.0226)  # three standard deviations
    assert share_of_wins(env, [*env.tasks("test")] * 8, choose) == pytest.approx(on_test, abs=0.0229)
