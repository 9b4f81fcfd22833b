"""``Screen``: what a person sees of an episode, step by step: coloured on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from reflectrl.core.text import visible_line

if TYPE_CHECKING:
    from reflectrl.core import Turn

WIDEST_BAR = 20
"""Characters of a probability of 1."""


class Screen:
    """Shows steps that were played.

    Args:
        action: what an action is called.
        most: so many actions of a menu, the most probable first; absent: all, in the menu's order and with bars.
        skip: lines of a state that begin so are left out.
        longest: characters shown of a line.

    """

    def __init__(
        self, *, action: str = "Action", most: int | None = None, skip: str | None = None, longest: int = 2000
    ) -> None:
        self._console = Console(highlight=False)
        self._action = action
        self._most = most
        self._skip = skip
        self._longest = longest

    def say(self, text: str, style: str = "") -> None:
        """One line, without characters that a terminal would obey."""
        self._console.print(Text(visible_line(text), style), soft_wrap=True)

    def step(self, number: int, turn: Turn, labels: Sequence[str] = ()) -> None:
        """One step: the state, what was said about it, the menu, and the action."""
        self.say("")
        self.say(f"Step {number}", "bold")
        self.state(turn.observation.text)
        if turn.reflection is not None:
            self._inside(f"Reflection: {turn.reflection}", "italic")
        self._menu(turn, labels)
        self.action(turn)

    def state(self, text: str) -> None:
        """A state in words."""
        for line in text.split("\n"):
            if self._skip is None or not line.startswith(self._skip):
                self._inside(line)

    def action(self, turn: Turn) -> None:
        """What was played."""
        self.say(f"  {self._action}: {turn.decision.action}", "bold")

    def _menu(self, turn: Turn, labels: Sequence[str]) -> None:
        chances = turn.decision.probabilities
        order = list(range(len(turn.menu)))
        if chances and self._most is not None:
            order.sort(key=lambda index: -chances[index])
        self._inside("Menu:")
        for index in order[: self._most]:
            chance = f"{chances[index]:4.0%}  {self._bar(chances[index])}" if chances else ""
            label = f"{labels[index]}. " if labels else ""
            self._inside(f"  {chance}{label}{turn.menu[index]}", "green" if index == turn.decision.index else "")
        if len(order) > len(order[: self._most]):
            self._inside(f"  and {len(order) - len(order[: self._most])} more")

    def _bar(self, chance: float) -> str:
        if self._most is not None:
            return ""
        width = max(1, min(WIDEST_BAR, self._console.width // 4))
        mark = "#" if self._console.options.ascii_only else "\u2588"
        return f"{mark * round(chance * width):<{width}}  "

    def _inside(self, line: str, style: str = "") -> None:
        self.say(f"  {line if len(line) <= self._longest else f'{line[: self._longest].rstrip()} [cut]'}", style)
