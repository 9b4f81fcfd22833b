"""``Points``: write a formula of the cards that equals a number. ``EZPoints`` has two cards, ``Points24`` four."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import ClassVar

from numpy.random import Generator

from reflectrl.core import Outcome, Reading, Task
from reflectrl.envs.gym_cards.formula import EQUALS, Formula, can_equal, is_solvable
from reflectrl.envs.gym_cards.game import RANKS, TABLE, Game, Sketch, Words, names, row, shared_out, value

RULES = (
    "Write a formula that equals {target}, one symbol a step, then = to end it. It has to use the number of each card "
    "once. A counts as 1; J, Q and K count as 10."
)

CLAIM = re.compile(r"([-+*/()\d][-+*/()\d\s]*?)\s*(?:=|equals?\b)\s*(\d{1,9})", re.IGNORECASE)
"""Matches a claim in a thought that a formula equals a number."""
LINE = 11
"""Number of a formula's symbols in one line of the picture."""


class Points(Game):
    """+10 for = after a formula that equals ``target`` and uses each card, -1 for any other =; both end the episode.

    A number that no unused card has is illegal: the reward is -1, and the formula stays as it is. Another symbol that
    cannot follow has no penalty, but the game can no longer be won. After ``symbols`` steps, the next action is
    rewarded with -1 and ends the episode, whatever it is.
    """

    target: ClassVar[int]
    count: ClassVar[int]
    signs: ClassVar[str]
    symbols: ClassVar[int]
    width: ClassVar[int]
    """Width of a card in pixels."""

    def __init__(self) -> None:
        self.instructions = RULES.format(target=self.target)
        self.horizon = self.symbols + 1

    def splits(self) -> Mapping[str, tuple[Task, ...]]:
        """Return all cards with which the target can be made. Deals with equal card values count as equal."""
        dealt = ((tuple(map(value, ranks)), ranks) for ranks in combinations_with_replacement(RANKS, self.count))
        return shared_out(
            (numbers, Task("-".join(names(ranks)), {"cards": list(ranks)}))
            for numbers, ranks in dealt
            if is_solvable(numbers, self.target, self.signs)
        )

    def deal(self, task: Task, rng: Generator) -> None:
        """Deal the cards in random order."""
        self._ranks = [task.options["cards"][at] for at in rng.permutation(self.count)]
        self._formula: Formula | None = Formula(tuple(sorted(map(value, self._ranks))))
        self._written: list[str] = []
        self._steps = 0
        self._ended = False

    def common(self) -> tuple[str, ...]:
        """Return the numbers of the cards, and all other symbols."""
        return tuple(a for a in self.actions if not a.isdigit() or int(a) in map(value, self._ranks))

    def legal(self) -> tuple[str, ...]:
        """Return the symbols that may follow in the formula; = may always follow."""
        follows = self._formula.then if self._formula else lambda _: None
        return tuple(action for action in self.actions if action == EQUALS or follows(action))

    def play(self, action: str, rng: Generator) -> Outcome:  # noqa: ARG002 - nothing is drawn
        self._before, self._last = self._formula, action
        self._steps += 1
        if self._steps > self.symbols:
            return Outcome(-1.0, ended=True)
        if action == EQUALS:
            self._ended = True
            right = self._formula is not None and self._formula.value == self.target
            return Outcome(10.0 if right else -1.0, ended=True)
        if action.isdigit() and self._unused(int(action)) == 0:
            return Outcome(-1.0, illegal=True)
        self._written.append(action)
        self._formula = self._formula and self._formula.then(action)
        return Outcome(0.0)

    def best(self) -> str | None:
        """Return the next symbol of a formula that equals the target, or = if there is no such formula any more."""
        if self._ended:
            return None
        return self._next(self._formula)

    @property
    def is_hopeful(self) -> bool:
        """True if the target can still be reached."""
        return self._formula is not None and can_equal(self._formula, self.target, self.signs)

    def mistaken(self) -> bool:
        """Return whether the action was penalised, made the target unreachable, or continued when it already was."""
        if self._steps > self.symbols:  # whatever the action was
            return False
        if self._last == EQUALS:
            return self._next(self._before) != EQUALS
        return self._formula is self._before or not self.is_hopeful

    def standing(self) -> str:
        """Return a complete formula that equals the target and begins like this one."""
        if self._ended:
            return f"{self._text} is written."
        if not self.is_hopeful:
            return f"Nothing that begins so equals {self.target}."
        rest, formula = [], self._formula
        while formula and (symbol := self._next(formula)) != EQUALS:
            rest.append(symbol)
            formula = formula.then(symbol)
        return f"{' '.join([*self._written, *rest])} equals {self.target}."

    def read(self, thought: str) -> Reading:
        """Check that the thought's last formula equals the target and begins like this one, or that none exists."""
        if self._ended:
            return Reading()
        claims = CLAIM.findall(thought)
        if not claims:
            gives_up = "nothing" in thought.casefold().split()
            return Reading(gives_up and not self.is_hopeful, EQUALS if gives_up else None)
        symbols = [*re.findall(r"\d{1,9}|[^\d\s]", claims[-1][0]), EQUALS]
        formula: Formula | None = Formula(tuple(sorted(map(value, self._ranks))))
        for symbol in symbols[:-1]:
            formula = formula and formula.then(symbol)
        begun = len(self._written)
        if symbols[:begun] != self._written:
            return Reading(right=False)
        right = formula is not None and formula.value == self.target == int(claims[-1][1])
        return Reading(right, symbols[begun])

    def text(self) -> str:
        return f"Cards: {', '.join(names(self._ranks))}. Formula: {self._text}"

    def sketch(self) -> Sketch:
        """Return a picture of the cards above the formula, which needs two lines if it is long."""
        symbols = self._written or ["empty"]
        lines = [" ".join(symbols[at : at + LINE]) for at in range(0, len(symbols), LINE)]
        words = tuple(Words(line, 10, 235 + 28 * number, 20) for number, line in enumerate(lines))
        return Sketch(TABLE, words, row(names(self._ranks), self.width, 40))

    @property
    def _text(self) -> str:
        return " ".join(self._written) or "empty"

    def _next(self, formula: Formula | None) -> str:
        """Return the first action after which the target can be reached, with a bracket only if nothing else works."""
        if formula is None or formula.value == self.target or not can_equal(formula, self.target, self.signs):
            return EQUALS
        after = ((action, formula.then(action)) for action in self.actions)
        return next(action for action, then in after if then and can_equal(then, self.target, self.signs))

    def _unused(self, number: int) -> int:
        return [value(rank) for rank in self._ranks].count(number) - self._written.count(str(number))


class EZPoints(Points):
    """Two cards that make 12 by + or *."""

    actions = (*map(str, range(1, 11)), "+", "*", EQUALS)
    target, count, signs, symbols, width = 12, 2, "+*", 6, 130


class Points24(Points):
    """Four cards that make 24 by + - * / and brackets."""

    actions = (*map(str, range(1, 11)), "+", "-", "*", "/", "(", ")", EQUALS)
    target, count, signs, symbols, width = 24, 4, "+-*/", 21, 65
