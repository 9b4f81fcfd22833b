"""``PromptFormat``: the one layout of the prompts that local players are trained on and play with.

Parts that are stable over an episode come first, those that change last, so that key-value states can be shared:
instructions, task, history, state, words of other players, menu. Without its menu the policy's prompt is then the
reflector's. With ``menu="first"`` the actions that are nearly always legal follow the task, and only what is particular
to the state stands last.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

from annotated_types import Ge

from reflectrl.core import Observation
from reflectrl.core.seeds import derive_seed
from reflectrl.prompts.menu import Menu, make_menu
from reflectrl.prompts.prompt import Prompt, unpictured

REFLECTION_CUE = "Reflection:"
CUES = {"planner": "Plan:", "memory": "Memory:", "reflector": REFLECTION_CUE, "policy": "Thought:"}
"""First words of the line on which a prompt shows what a role said."""
ACTION_CUE = "Action:\n"
"""Cue of the policy; the newline makes the label a token of its own, as it is at the start of its line in the menu."""
AFTER_THOUGHT = f"\n{ACTION_CUE}"
"""Text between a thought and the label of ``action_mode="thought_choice"``."""
ActionMode = Literal["enumerated", "thought_choice", "json"]
POLICY_CUES: Mapping[ActionMode, str] = {"enumerated": ACTION_CUE, "thought_choice": "Thought:", "json": "Answer:"}
"""Cue of the policy by the form of its answer."""


@dataclass(frozen=True, kw_only=True)
class PromptLayout:
    """Settings of a prompt that hold in every environment; a recipe's values are checked as its section ``prompt``."""

    history: Annotated[int, Ge(0)] = 20
    """Number of past actions shown, newest last."""
    labels: Literal["numbers", "letters", "added"] = "numbers"
    """Menu labels; each must be one token of the model's tokenizer ("added" adds tokens and trains them)."""
    shuffle: bool = False
    """Show the menu in a new order at each step; what ``menu`` lists first, in a new order in each episode."""
    action_mode: ActionMode = "enumerated"
    """Form of the policy's answer: a label of the menu; a thought of its own, then a label; or a thought and an action
    as one object in JSON, where any text may come out (RL4VLM, section 4.1)."""
    menu: Literal["first", "last"] = "last"
    """Place of the actions that the environment declares as common: before the history, with labels that they keep in
    the episode, or among all legal ones after the state."""


@dataclass(frozen=True)
class PromptFormat(PromptLayout):
    """Layout of the prompts of one environment; it is written into every dataset and run folder."""

    instructions: str = ""
    """Text before everything else; empty for none."""
    images: tuple[str, ...] = ()
    """Roles that see the pictures of a state in place of its text."""

    def menu_of(self, observation: Observation, seed: int = 0, step: int = 0) -> Menu:
        """Return the menu of a step of the episode ``seed``; where the format shuffles, the two decide the order."""
        return self.relabelled(self._ordered(observation.actions, seed, step, "menu"), observation, seed)

    def relabelled(self, actions: tuple[str, ...], observation: Observation, seed: int) -> Menu:
        """Return a menu as it was shown in the episode ``seed``, by the order of its legal ``actions``."""
        common = observation.common if self.menu == "first" else ()
        return make_menu(actions, self.labels, self._ordered(common, seed, "common actions"))

    def _ordered(self, actions: tuple[str, ...], *purpose: str | int) -> tuple[str, ...]:
        if not self.shuffle:
            return actions
        order = list(actions)
        random.Random(derive_seed(*purpose)).shuffle(order)
        return tuple(order)

    def prompt(
        self,
        role: str,
        observation: Observation,
        past: Sequence[str],
        said: Mapping[str, str],
        menu: Menu | None = None,
    ) -> Prompt:
        """Return ``p(s)`` for a role, a line of words for each of ``said``, then menu and action cue, or another cue.

        Of a menu with common actions, these follow the task, so that all before the history is the same in an episode.
        A state that only images show is shown by these to every role; players that read text refuse to read it.

        Raises:
            InvalidInput: a role that sees images, and a state without any.

        """
        if role in self.images and not observation.images:
            raise unpictured(role)
        pictured = bool(observation.images) and (role in self.images or not observation.text.strip())
        shown = tuple(past[-self.history :]) if self.history else ()
        return _prompt(self, observation, shown, tuple(said.items()), menu, pictured)

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
    pictured: bool,
) -> Prompt:
    """Write a prompt; an update asks for those of play again, and states recur."""
    cue = POLICY_CUES[layout.action_mode]
    listed, tail = ("", REFLECTION_CUE) if menu is None else (menu.head_text, menu.tail_text + cue)
    lines = "".join(f"{CUES[role]}{layout.completion(words)}\n" for role, words in said)
    head = "".join(f"{part}\n" for part in (layout.instructions, observation.task) if part)
    history = tuple(f"Past: {action}\n" for action in shown or ("none",)) if layout.history else ()
    if pictured:
        return Prompt(head + listed, history, tail, menu, said=lines, images=observation.images)
    return Prompt(head + listed, history, tail, menu, state=f"{observation.text}\n", said=lines)


def before_reflection(prompt: Prompt) -> Prompt:
    """Return the reflector's prompt in the state of a policy's ``prompt``, which shows no reflection."""
    head = prompt.head if prompt.menu is None else prompt.head.removesuffix(prompt.menu.head_text)
    return replace(prompt, head=head, tail=REFLECTION_CUE, menu=None)


def with_reflection(prompt: Prompt, words: str) -> Prompt:
    """Return a policy's ``prompt``, which shows no reflection, with one."""
    return replace(prompt, said=f"{prompt.said}{REFLECTION_CUE}{PromptFormat.completion(words)}\n")
