"""``Blackjack``: gymnasium's own engine, with the names of the cards and an optimal player."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

from gymnasium.envs.toy_text.blackjack import BlackjackEnv, deck
from numpy.random import Generator

from reflectrl.core import Outcome, Reading, Task
from reflectrl.envs.gym_cards.game import NAMES, RANKS, TABLE, Game, Sketch, Words, names, row, shared_out, value

STAND, HIT = "stand", "hit"


class Blackjack(Game):
    """+1 for a win, 0 for a draw, -1 for a loss. All cards are drawn from an infinite deck.

    A task is the visible part of the deal; the dealer's hidden card and all later cards are drawn from the episode's
    seed. Every combination of three cards is one task, so tasks have the probabilities of deals.
    """

    instructions = (
        "Blackjack: hit takes a card, stand ends your turn. Then the dealer takes cards up to 17 or more. Come closer "
        "to 21 than the dealer, and not beyond it. J, Q and K count as 10, an A as 11, or as 1 where 11 would be too "
        "much."
    )
    actions = (STAND, HIT)
    horizon = 20  # every card is a hit, and the last one exceeds 21 in any case

    def __init__(self) -> None:
        # no 1.5 for a natural, nor a win over another 21: both are off by default in the paper's environment
        self._engine: Any = BlackjackEnv(natural=False, sab=False)

    def splits(self) -> Mapping[str, tuple[Task, ...]]:
        """Return all combinations of three cards. Deals with equal values count as equal."""
        return shared_out(
            (
                (*sorted((value(first), value(second))), value(dealer)),
                Task(
                    f"{NAMES[first - 1]}-{NAMES[second - 1]}-vs-{NAMES[dealer - 1]}",
                    {"player": [first, second], "dealer": dealer},
                ),
            )
            for first, second, dealer in product(RANKS, repeat=3)
        )

    def deal(self, task: Task, rng: Generator) -> None:
        """Deal the cards; the dealer's second card comes from the engine."""
        self._engine.reset(seed=int(rng.integers(2**31)))
        self._ranks, self._shown = list(task.options["player"]), task.options["dealer"]
        self._engine.player = list(map(value, self._ranks))
        self._engine.dealer[0] = value(self._shown)
        self._ended = False

    def common(self) -> tuple[str, ...]:
        return self.actions

    def legal(self) -> tuple[str, ...]:
        return self.actions

    def play(self, action: str, rng: Generator) -> Outcome:
        """Play the action in the engine; the name of a ten-valued card is drawn at random."""
        self._blundered = action != self.best()
        _, reward, self._ended, *_ = self._engine.step(self.actions.index(action))
        if action == HIT:
            drawn = self._engine.player[-1]
            self._ranks.append(int(rng.integers(10, 14)) if drawn == 10 else drawn)
        return Outcome(float(reward), ended=self._ended)

    def best(self) -> str | None:
        """Return the action with the higher expected reward, computed without the hidden card."""
        if self._ended:
            return None
        stand, hit = worth(sum(self._engine.player), 1 in self._engine.player, self._engine.dealer[0])
        return HIT if hit > stand else STAND

    def mistaken(self) -> bool:
        """Return whether the other action had a higher expected reward, whatever cards followed."""
        return self._blundered

    def standing(self) -> str:
        total, ace = sum(self._engine.player), 1 in self._engine.player
        held = _held(total, ace)
        counted = " with an ace as 11" if held > total else ""
        return f"You hold {held}{counted}, the dealer shows {_named(self._shown)}."

    def read(self, thought: str) -> Reading:
        """Check that the thought names the player's total and the dealer's open card."""
        held = _held(sum(self._engine.player), 1 in self._engine.player)
        words = thought.casefold()
        totals = [int(number) for number in re.findall(r"\bhold\D*(\d{1,9})", words)]
        shown = re.findall(r"\bshows (an ace|\d+)", words)
        return Reading(totals[-1:] == [held] and shown[-1:] == [_named(self._shown)])

    def text(self) -> str:
        dealer = ", ".join(self._dealer()) if self._ended else NAMES[self._shown - 1]
        return f"Your cards: {', '.join(names(self._ranks))}. The dealer {'has' if self._ended else 'shows'}: {dealer}."

    def sketch(self) -> Sketch:
        """Return a picture with the dealer's cards above the player's."""
        dealer = self._dealer() if self._ended else (NAMES[self._shown - 1], "")
        words = (Words("Dealer", 5, 4, 16), Words("Player", 5, 148, 16))
        return Sketch(TABLE, words, row(dealer, 70, 28) + row(names(self._ranks), 70, 172))

    def _dealer(self) -> tuple[str, ...]:
        """Return the names of the dealer's cards; gymnasium does not distinguish a jack from a ten."""
        return (NAMES[self._shown - 1], *names(self._engine.dealer[1:]))


def _named(rank: int) -> str:
    return "an ace" if rank == 1 else str(value(rank))


@cache
def worth(total: int, ace: bool, dealer: int) -> tuple[float, float]:
    """Return the expected rewards of standing, and of a hit followed by optimal play.

    Args:
        total: total of the player's cards, with aces as 1, at most 21.
        ace: whether one of them is an ace.
        dealer: value of the dealer's open card, 1 for an ace.
    """
    held = _held(total, ace)
    stand = sum(chance * ((held > end) - (held < end)) for end, chance in _dealer_ends(dealer, dealer == 1).items())
    hit = 0.0
    for card in deck:
        after = total + card
        hit += (-1.0 if after > 21 else max(worth(after, ace or card == 1, dealer))) / len(deck)
    return stand, hit


@cache
def _dealer_ends(total: int, ace: bool) -> Mapping[int, float]:
    """Return the probability of each final total of the dealer; 0 stands for more than 21."""
    held = _held(total, ace)
    if held >= 17:
        return {held if held <= 21 else 0: 1.0}
    ends: dict[int, float] = {}
    for card in deck:
        for end, chance in _dealer_ends(total + card, ace or card == 1).items():
            ends[end] = ends.get(end, 0.0) + chance / len(deck)
    return ends


def _held(total: int, ace: bool) -> int:
    return total + 10 if ace and total <= 11 else total
