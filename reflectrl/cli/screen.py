"""``Screen``: prints an episode step by step, coloured on a terminal and as plain text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from reflectrl.core.text import shortened, visible_line

if TYPE_CHECKING:
    from reflectrl.core import Turn

MAX_BAR_WIDTH = 20
"""Width of the bar for probability 1, in characters."""


class Screen:
    """Prints the steps of an episode.

    Args:
        action: heading of the chosen action.
        max_actions: number of actions shown of a menu, the most probable first; ``None`` shows all, in the menu's
            order and with bars.
        skip: prefix of lines of a state that are left out.
        max_chars: characters shown of a line.
    """

    def __init__(
        self, *, action: str = "Action", max_actions: int | None = None, skip: str | None = None, max_chars: int = 2000
    ) -> None:
        self._console = Console(highlight=False)
        self._action = action
        self._max_actions = max_actions
        self._skip = skip
        self._max_chars = max_chars

    def say(self, text: str, style: str = "") -> None:
        """Print one line, with control characters replaced."""
        self._console.print(Text(visible_line(text), style), soft_wrap=True)

    def step(self, number: int, turn: Turn, labels: Sequence[str] = ()) -> None:
        """Print one step: state, reflection, what the policy wrote, menu and action."""
        self.say("")
        self.say(f"Step {number}", "bold")
        self.state(turn.observation.text)
        if turn.reflection is not None:
            self._inside(f"Reflection: {turn.reflection}", "italic")
        if turn.decision.choice.written is not None:
            self._inside(f"Thought: {turn.decision.choice.written.text.strip()}", "italic")
        self._menu(turn, labels)
        self.action(turn)

    def state(self, text: str) -> None:
        """Print the text of a state."""
        for line in text.split("\n"):
            if self._skip is None or not line.startswith(self._skip):
                self._inside(line)

    def action(self, turn: Turn) -> None:
        """Print the chosen action."""
        self.say(f"  {self._action}: {turn.decision.action}", "bold")

    def _menu(self, turn: Turn, labels: Sequence[str]) -> None:
        if not turn.menu:
            return
        chances = turn.decision.choice.probabilities
        order = list(range(len(turn.menu)))
        if chances and self._max_actions is not None:
            order.sort(key=lambda index: -chances[index])
        self._inside("Menu:")
        for index in order[: self._max_actions]:
            chance = f"{chances[index]:4.0%}  {self._bar(chances[index])}" if chances else ""
            label = f"{labels[index]}. " if labels else ""
            chosen = turn.menu[index] == turn.decision.action
            self._inside(f"  {chance}{label}{turn.menu[index]}", "green" if chosen else "")
        if len(order) > len(order[: self._max_actions]):
            self._inside(f"  and {len(order) - len(order[: self._max_actions])} more")

    def _bar(self, chance: float) -> str:
        if self._max_actions is not None:
            return ""
        width = max(1, min(MAX_BAR_WIDTH, self._console.width // 4))
        mark = "#" if self._console.options.ascii_only else "\u2588"
        return f"{mark * round(chance * width):<{width}}  "

    def _inside(self, line: str, style: str = "") -> None:
        self.say(f"  {shortened(line, self._max_chars, ' [cut]')}", style)
