"""``PromptFormat``: the one layout of the prompts that local players are trained on and play with.

What is stable over an episode comes first (instructions, task, history), what changes comes last (state, reflection,
menu), and the policy's prompt begins with the reflector's whole prompt, so key-value states can be shared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from reflectrl.core import Hints, Observation
from reflectrl.prompts.menu import Menu, make_menu
from reflectrl.prompts.prompt import Prompt

REFLECTION_CUE = "Reflection:"
ACTION_CUE = "Action:\n"
"""Ends with a newline so that the label is a token of its own, as it is at the start of its line in the menu."""


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
    """How a state becomes the text of a prompt: a value, written into every dataset and run folder."""

    instructions: str = ""
    """Text before everything else; empty for none."""

    def menu(self, observation: Observation, rng: random.Random) -> Menu:
        """The state's legal actions, labelled; consumes ``rng`` only when shuffling."""
        return make_menu(observation.actions, self.labels, rng if self.shuffle else None)

    def reflector(self, observation: Observation, past: Sequence[str], hints: Hints | None = None) -> Prompt:
        """``p(s)`` and the cue to analyse; the reflector never sees the menu."""
        state = f"{observation.text}\n"
        return Prompt(self._head(observation), self._history(past), REFLECTION_CUE, hints=hints, state=state)

    def policy(
        self,
        observation: Observation,
        past: Sequence[str],
        reflection: str | None,
        menu: Menu,
        hints: Hints | None = None,
    ) -> Prompt:
        """``p(s)``, the reflection, the menu and the action cue; without a reflection its line is absent."""
        said = "" if reflection is None else f"{REFLECTION_CUE}{self.reflection_completion(reflection)}\n"
        head, history, tail = self._head(observation), self._history(past), f"{menu.text}{ACTION_CUE}"
        return Prompt(head, history, tail, menu, hints, state=f"{observation.text}\n", said=said)

    @staticmethod
    def reflection_completion(reflection: str) -> str:
        """What follows the reflector's cue, on one line; an empty reflection adds nothing."""
        words = " ".join(reflection.split())
        return f" {words}" if words else ""

    def _head(self, observation: Observation) -> str:
        return "".join(f"{part}\n" for part in (self.instructions, observation.task) if part)

    def _history(self, past: Sequence[str]) -> tuple[str, ...]:
        if self.history == 0:
            return ()
        shown = past[-self.history :]
        return tuple(f"Past: {action}\n" for action in shown) or ("Past: none\n",)
