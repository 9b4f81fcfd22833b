"""``PromptFormat``: the layout of local players' prompts, the same in training and in use.

Parts that are constant over an episode come first and those that change come last, so that key-value states can be
shared: instructions, task, history, state, words of other players, menu. The policy's prompt without its menu is then
the reflector's. With ``menu="first"``, the actions that are nearly always legal follow the task, and only the part of
the menu that depends on the state comes last.
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
from reflectrl.prompts.prompt import MEMORY_CUE, Prompt, unpictured

REFLECTION_CUE = "Reflection:"
CUES = {"planner": "Plan:", "memory": MEMORY_CUE, "reflector": REFLECTION_CUE, "policy": "Thought:"}
"""Cue of each role: the beginning of the prompt line that shows its words."""
ACTION_CUE = "Action:\n"
"""Cue of the policy; after the newline the label is a separate token, as at the start of its line in the menu."""
AFTER_THOUGHT = f"\n{ACTION_CUE}"
"""Text between the thought and the label with ``action_mode="thought_choice"``."""
ActionMode = Literal["enumerated", "thought_choice", "json"]
POLICY_CUES: Mapping[ActionMode, str] = {"enumerated": ACTION_CUE, "thought_choice": "Thought:", "json": "Answer:"}
"""Cue of the policy, by ``action_mode``."""


@dataclass(frozen=True, kw_only=True)
class PromptLayout:
    """Layout settings that do not depend on the environment; they are the recipe's section ``prompt``."""

    history: Annotated[int, Ge(0)] = 20
    """Number of past actions shown, newest last."""
    labels: Literal["numbers", "letters", "added"] = "numbers"
    """Menu labels; each must be one token of the model's tokenizer ("added" adds tokens and trains them)."""
    shuffle: bool = False
    """Shuffle the menu at each step; common actions before the history (``menu: first``) once per episode."""
    action_mode: ActionMode = "enumerated"
    """Form of the policy's answer: a label of the menu; a thought, then a label; or thought and action as free text in
    one JSON object (RL4VLM, section 4.1)."""
    menu: Literal["first", "last"] = "last"
    """Place of the actions that the environment declares as common: before the history, with labels that are fixed for
    the episode, or among all legal actions after the state."""


@dataclass(frozen=True)
class PromptFormat(PromptLayout):
    """Layout of the prompts of one environment; it is saved in every dataset and run folder."""

    instructions: str = ""
    """Text at the beginning of every prompt; empty for none."""
    images: tuple[str, ...] = ()
    """Roles that see the pictures of a state in place of its text."""

    def menu_of(self, observation: Observation, seed: int = 0, step: int = 0) -> Menu:
        """Return the menu of ``step`` of the episode with ``seed``; both determine the order if menus are shuffled."""
        return self.relabelled(self._ordered(observation.actions, seed, step, "menu"), observation, seed)

    def relabelled(self, actions: tuple[str, ...], observation: Observation, seed: int) -> Menu:
        """Return a menu as it was shown in the episode with ``seed``, from its legal ``actions`` in the order shown."""
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
        """Return the prompt of a role: ``p(s)``, a line for each of ``said``, then the menu and the role's cue.

        Common actions of the menu follow the task, so that the part before the history is constant in an episode. A
        state without text is shown by its images to every role; players that read text refuse such a prompt.

        Raises:
            InvalidInput: the role sees images, but the state has none.

        """
        if role in self.images and not observation.images:
            raise unpictured(role)
        pictured = bool(observation.images) and (role in self.images or not observation.text.strip())
        shown = tuple(past[-self.history :]) if self.history else ()
        return _prompt(self, observation, shown, tuple(said.items()), menu, pictured)

    @staticmethod
    def completion(words: str) -> str:
        """Return a player's words in the form that follows its cue: on one line, after a space; "" without words."""
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
    """Return a prompt; cached, because updates need the prompts of rollouts again, and states recur."""
    cue = POLICY_CUES[layout.action_mode]
    listed, tail = ("", REFLECTION_CUE) if menu is None else (menu.head_text, menu.tail_text + cue)
    lines = "".join(f"{CUES[role]}{layout.completion(words)}\n" for role, words in said)
    head = "".join(f"{part}\n" for part in (layout.instructions, observation.task) if part)
    history = tuple(f"Past: {action}\n" for action in shown or ("none",)) if layout.history else ()
    if pictured:
        return Prompt(head + listed, history, tail, menu, said=lines, images=observation.images)
    return Prompt(head + listed, history, tail, menu, state=f"{observation.text}\n", said=lines)


def before_reflection(prompt: Prompt) -> Prompt:
    """Return the reflector's prompt for the same state as a policy's ``prompt``, which shows no reflection."""
    head = prompt.head if prompt.menu is None else prompt.head.removesuffix(prompt.menu.head_text)
    return replace(prompt, head=head, tail=REFLECTION_CUE, menu=None)


def with_reflection(prompt: Prompt, words: str) -> Prompt:
    """Return a policy's ``prompt``, which shows no reflection, with the reflection ``words`` added."""
    return replace(prompt, said=f"{prompt.said}{REFLECTION_CUE}{PromptFormat.completion(words)}\n")
