"""``PromptFormat``: the layout of local players' prompts, the same in training and in use.

Parts that are constant over an episode come first and those that change come last, so that key-value states can be
shared: instructions, task, history, state, words of other players, menu. The policy's prompt without its menu is then
the reflector's, except for the line in which a reflector reads its own last words (``carry``). With ``menu="first"``,
the actions that are nearly always legal follow the task, and only the part of the menu that depends on the state comes
last.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

from annotated_types import Ge

from reflectrl.core import InvalidInput, Observation
from reflectrl.core.seeds import derive_seed
from reflectrl.prompts.menu import Menu, labels, make_menu
from reflectrl.prompts.prompt import Prompt
from reflectrl.prompts.views import Role

PAST_CUE = "Past:"
REFLECTION_CUE = "Reflection:"
ACTION_CUE = "Action:\n"
"""Cue of the policy; after the newline the label is a separate token, as at the start of its line in the menu."""
AFTER_THOUGHT = f"\n{ACTION_CUE}"
"""Text between the thought and the label with ``action_mode="thought_choice"``."""
ActionMode = Literal["enumerated", "thought_choice", "json", "text", "thought_text"]
WRITTEN_ACTIONS: tuple[ActionMode, ...] = ("json", "text", "thought_text")
"""Modes in which the action itself is written, so that a text may name no legal action."""
THOUGHTS: tuple[ActionMode, ...] = ("thought_choice", "json", "thought_text")
"""Modes in which the policy writes a thought before its action."""
POLICY_CUES: Mapping[ActionMode, str] = {
    "enumerated": ACTION_CUE,
    "thought_choice": "Thought:",
    "json": "Answer:",
    "text": "Action:",
    "thought_text": "Answer:",
}


def check_menus(max_actions: int, mode: ActionMode) -> None:
    """Check that a policy of this mode can act in an environment whose longest menu has ``max_actions``.

    Raises:
        InvalidInput: it answers with a label, and the environment has no menus.
    """
    if not max_actions and mode not in WRITTEN_ACTIONS:
        raise InvalidInput(
            f"the environment has no menus (max_actions is 0), but with the prompt's action_mode={mode} the policy "
            f"answers with a label; set that to {' or '.join(WRITTEN_ACTIONS)}."
        )


@dataclass(frozen=True)
class History:
    """What prompts show of the steps before the present one."""

    steps: Annotated[int, Ge(0)] = 20
    """Number of past steps shown, newest last."""
    show: Literal["actions", "transitions"] = "actions"
    """Past actions alone, or each after the state in which it was chosen: its short form (``Observation.short``) if it
    has one, else its text. A player that sees pictures reads the short form only."""
    reward: bool = False
    """Show the environment's reward of each past step, too."""


@dataclass(frozen=True, kw_only=True)
class PromptLayout:
    """Layout settings that do not depend on the environment; they are the recipe's section ``prompt``."""

    history: Annotated[int, Ge(0)] | History = 20
    """What is shown of past steps; a number ``n`` stands for ``{steps: n}``, the last ``n`` actions."""
    labels: Literal["numbers", "letters", "added"] = "numbers"
    """Menu labels; each must be one token of the model's tokenizer ("added" adds tokens and trains them)."""
    known_actions: tuple[str, ...] = ()
    """Actions that have the same label in every menu: the first labels, in this order. The other actions of a menu have
    the labels after them, in the order shown."""
    shuffle: bool = False
    """Shuffle the menu at each step; common actions before the history (``menu: first``) once per episode."""
    action_mode: ActionMode = "enumerated"
    """Form of the policy's answer: a label of the menu (``enumerated``); a thought, then a label (``thought_choice``);
    or the action in words: with a thought in one JSON object (``json``; RL4VLM, section 4.1), alone (``text``), or
    after a thought between think tags (``thought_text``)."""
    menu: Literal["first", "last"] = "last"
    """Place of the actions that the environment declares as common: before the history, with labels that are fixed for
    the episode, or among all legal actions after the state."""

    @property
    def recent(self) -> History:
        """``history`` in full."""
        return History(self.history) if isinstance(self.history, int) else self.history


@dataclass(frozen=True)
class PromptFormat(PromptLayout):
    """Layout of the prompts of one environment; it is saved in every dataset and run folder."""

    instructions: str = ""
    """Text at the beginning of every prompt; empty for none."""
    images: tuple[str, ...] = ()
    """Roles that see the pictures of a state in place of its text."""
    carry: bool = False
    """Show the reflector its reflection of the step before."""
    roles: tuple[Role, ...] = ()
    """Roles that a recipe adds for seats of the user's own, in the order in which they speak."""

    def __post_init__(self) -> None:
        """Write a history of actions alone as their number, so that equal layouts are equal records."""
        if self.history == History(self.recent.steps):
            object.__setattr__(self, "history", self.recent.steps)

    def menu_of(self, observation: Observation, seed: int = 0, step: int = 0) -> Menu:
        """Return the menu of ``step`` of the episode with ``seed``; both determine the order if menus are shuffled."""
        return self.relabelled(self._ordered(observation.actions, seed, step, "menu"), observation, seed)

    def relabelled(self, actions: tuple[str, ...], observation: Observation, seed: int) -> Menu:
        """Return a menu as it was shown in the episode with ``seed``, from its legal ``actions`` in the order shown."""
        common = observation.common if self.menu == "first" else ()
        return make_menu(actions, self.labels, self._ordered(common, seed, "common actions"), self.known_actions)

    def all_labels(self, max_actions: int) -> tuple[str, ...]:
        """Return the labels of all menus that have at most ``max_actions`` actions."""
        return labels(self.labels, len(self.known_actions) + max_actions)

    def _ordered(self, actions: tuple[str, ...], *purpose: str | int) -> tuple[str, ...]:
        if not self.shuffle:
            return actions
        order = list(actions)
        random.Random(derive_seed(*purpose)).shuffle(order)
        return tuple(order)

    def prompt(
        self,
        role: Role,
        observation: Observation,
        past: Sequence[str],
        said: Mapping[str, str],
        menu: Menu | None = None,
        *,
        visited: Sequence[Observation] = (),
        rewards: Sequence[float] = (),
    ) -> Prompt:
        """Return the prompt of a role: ``p(s)``, a line for each of ``said``, then the menu and the role's cue.

        Common actions of the menu follow the task, so that the part before the history is constant in an episode. A
        state without text is shown by its images to every role; players that read text refuse such a prompt.

        Args:
            role: the role that reads the prompt.
            observation: the present state.
            past: (t,) actions played so far, oldest first.
            said: words of other players by the cue of their line.
            menu: the policy's menu; ``None`` for other roles.
            visited: (t,) states in which the actions of ``past`` were chosen; read if ``history`` shows them.
            rewards: (t,) rewards of these actions; read if ``history`` shows them.

        Raises:
            InvalidInput: the role sees images, but the state has none; or other numbers of states or rewards than of
                actions, where the history shows them.
        """
        if role.name in self.images and not observation.images:
            raise role.unpictured()
        pictured = bool(observation.images) and (role.name in self.images or not observation.text.strip())
        shown = self._past(role.name, past, visited, rewards)
        return _prompt(self, observation, shown, tuple(said.items()), menu, pictured)

    def _past(
        self, role: str, past: Sequence[str], visited: Sequence[Observation], rewards: Sequence[float]
    ) -> tuple[_PastStep, ...]:
        """Return what is shown of each of the last steps, oldest first."""
        recent = self.recent
        missing = max(len(past) - recent.steps, 0)
        texts: Sequence[str] = [""] * (len(past) - missing)
        gains: Sequence[float | None] = [None] * len(texts)
        if recent.show == "transitions":
            _need_one_each(past, visited, "states", "show=transitions")
            whole = role not in self.images
            texts = [each.short or (each.text if whole else "") for each in visited[missing:]]
        if recent.reward:
            _need_one_each(past, rewards, "rewards", "reward=true")
            gains = rewards[missing:]
        return tuple(zip(past[missing:], texts, gains, strict=True))

    @staticmethod
    def completion(words: str) -> str:
        """Return a player's words in the form that follows its cue: on one line, after a space; "" without words."""
        line = " ".join(words.split())
        return f" {line}" if line else ""


_PastStep = tuple[str, str, float | None]
"""Action, text of the state and reward of a past step, as far as they are shown."""


def _need_one_each(past: Sequence[str], given: Sequence[object], what: str, setting: str) -> None:
    if len(given) != len(past):
        raise InvalidInput(
            f"prompts show past {what} (prompt.history.{setting}), but {len(given)} were given with {len(past)} past "
            "actions; give one for each action, oldest first."
        )


def _past_line(step: _PastStep) -> str:
    """Return the text of a past step; it begins as the text of the state did when that was the present one."""
    action, text, reward = step
    before = f"{text}\n" if text.strip() else ""
    gained = "" if reward is None else f" (reward {reward:g})"
    return f"{before}{PAST_CUE} {action}{gained}\n"


@lru_cache(maxsize=4096)
def _prompt(
    layout: PromptFormat,
    observation: Observation,
    shown: tuple[_PastStep, ...],
    said: tuple[tuple[str, str], ...],
    menu: Menu | None,
    pictured: bool,
) -> Prompt:
    """Return a prompt; cached, because updates need the prompts of rollouts again, and states recur."""
    last = POLICY_CUES[layout.action_mode]
    listed, tail = ("", REFLECTION_CUE) if menu is None else (menu.head_text, menu.tail_text + last)
    lines = "".join(f"{cue}{layout.completion(words)}\n" for cue, words in said)
    head = "".join(f"{part}\n" for part in (layout.instructions, observation.task) if part)
    history = tuple(map(_past_line, shown))
    if not history and layout.recent.steps and layout.recent.show == "actions":
        history = (f"{PAST_CUE} none\n",)
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
