"""``Prompt``: text for a local model, in the three parts that decide what may be cut when it is too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from reflectrl.core import Hints, InvalidInput
from reflectrl.prompts.menu import Menu


@dataclass(frozen=True)
class Prompt:
    """What one player reads at one step. Equal prompts are equal records, so a prompt is its own cache key."""

    head: str
    """Instructions; never cut."""
    history: tuple[str, ...]
    """Past actions, oldest first, one line each; the only part that is cut."""
    tail: str
    """State, reflection, menu and cue; never cut."""
    menu: Menu | None = None
    """The policy's menu; ``None`` for a reflector, which does not see one."""
    hints: Hints | None = None
    """Only for players that declare ``wants_hints``; never part of the text."""

    @property
    def text(self) -> str:
        """The prompt as the model reads it."""
        return self.head + "".join(self.history) + self.tail

    def fit(self, count: Callable[[str], int], limit: int) -> Prompt:
        """Drop the oldest history lines until ``count(text)`` is at most ``limit`` tokens.

        Raises:
            InvalidInput: the prompt without any history is still too long.

        """
        prompt = self
        while (length := count(prompt.text)) > limit:
            if not prompt.history:
                what = f"a menu of {len(self.menu.actions)} actions" if self.menu else "a state"
                raise InvalidInput(
                    f"a prompt with {what} has {length} tokens without any history, but the model takes {limit}; "
                    "use a model with a longer context (model.max_length) or an environment with shorter texts."
                )
            prompt = replace(prompt, history=prompt.history[1:])
        return prompt
