"""``PromptFormat``: the one layout of the prompts that local players are trained on and play with.

Parts that are stable over an episode come first (instructions, task, history), those that change last (state,
reflection, menu), and the policy's prompt begins with the reflector's whole prompt, so key-value states can be shared.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from annotated_types import Ge

from reflectrl.core import InvalidInput, Observation
from reflectrl.prompts.menu import Menu, make_menu
from reflectrl.prompts.prompt import Prompt

REFLECTION_CUE = "Reflection:"
CUES = {"planner": "Plan:", "memory": "Memory:", "reflector": REFLECTION_CUE}
"""First words of the line on which a prompt shows what a role said."""
ACTION_CUE = "Action:\n"
"""Cue of the policy; the newline makes the label a token of its own, as it is at the start of its line in the menu."""


@dataclass(frozen=True, kw_only=True)
class PromptLayout:
    """Settings of a prompt that hold in every environment; a recipe's values are checked as its section ``prompt``."""

    history: Annotated[int, Ge(0)] = 20
    """Number of past actions shown, newest last."""
    labels: Literal["numbers", "letters", "added"] = "numbers"
    """Menu labels; each must be one token of the model's tokenizer ("added" adds tokens and trains them)."""
    shuffle: bool = False
    """Show the menu in a new order at each step."""


@dataclass(frozen=True)
class PromptFormat(PromptLayout):
    """Layout of the prompts of one environment; it is written into every dataset and run folder."""

    instructions: str = ""
    """Text before everything else; empty for none."""

    def menu(self, observation: Observation, order: random.Random | None = None) -> Menu:
        """Return the state's legal actions, labelled; where the format shuffles, in an order drawn from ``order``."""
        return make_menu(observation.actions, self.labels, order if self.shuffle else None)

    def prompt(
        self, observation: Observation, past: Sequence[str], said: Mapping[str, str], menu: Menu | None = None
    ) -> Prompt:
        """Return ``p(s)``, one line of words a role of ``said``, then menu and action cue, or the cue to reflect.

        Raises:
            InvalidInput: only an image shows the state, and this is text.

        """
        if observation.images and not observation.text.strip():
            raise InvalidInput(
                "a state was shown as an image without text, but these players read text; expected words in "
                "Observation.text: describe the state, or play it with players that see images."
            )
        shown = tuple(past[-self.history :]) if self.history else ()
        return _prompt(self, observation, shown, tuple(said.items()), menu)

    @staticmethod
    def completion(words: str) -> str:
        """Return a player's words as they follow its cue, on one line; the empty text without words."""
        line = " ".join(words.split())
        return f" {line}" if line else ""


@lru_cache(maxsize=4096)
def _prompt(
    layout: PromptFormat,
    observation: Observation,
    shown: tuple[str, ...],
    said: tuple[tuple[str, str], ...],
    menu: Menu | None,
) -> Prompt:
    """Write a prompt; an update asks for those of play again, and states recur."""
    tail = REFLECTION_CUE if menu is None else f"{menu.text}{ACTION_CUE}"
    lines = "".join(f"{CUES[role]}{layout.completion(words)}\n" for role, words in said)
    head = "".join(f"{part}\n" for part in (layout.instructions, observation.task) if part)
    history = tuple(f"Past: {action}\n" for action in shown or ("none",)) if layout.history else ()
    return Prompt(head, history, tail, menu, state=f"{observation.text}\n", said=lines)
