"""``Memory``: the player of the seat ``memory``, which shows parts of past episodes that resemble the present state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reflectrl.core import Utterance
from reflectrl.memory.experience import goal, news
from reflectrl.memory.retriever import Key, Query, Retriever, Window
from reflectrl.prompts.views import View

_KEY = re.compile(r"\b(search|action):\s*(\w[^\n.;]*)", re.IGNORECASE)


@dataclass
class Counts:
    """Questions to a memory."""

    asked: int = 0
    hits: int = 0
    """Questions for which something was retrieved."""
    key_misses: int = 0
    """Questions without a key, although the planner was to give one."""


class Memory:
    """Says which past episodes resemble this one, and what was done in them.

    Its words depend on the view and the retriever alone, however many episodes are played side by side. To let later
    episodes read of earlier ones, set ``retriever`` to one with a new snapshot between two batches, never within one.

    A view does not name its task or the task's group, so ``Query.task_type`` stays open here, and an environment that
    states no goal is searched by the key alone.

    Args:
        retriever: past episodes.
        key: what is looked for in their steps: the present observation, once there was a step; the key that the planner
            says (``search: mug``, ``action: put``); or nothing. A planner's words without a key are the plan.
        max_chars: most characters said. Whole windows are left out, those ranked last first; then the only one left
            gets smaller. No step is cut.
        task_id: the task that is played, whose own past episode is left out; for playing one task at a time.
        fallback: words where nothing is retrieved, such as examples written by hand.

    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        key: Literal["observation", "planner", "none"] = "observation",
        max_chars: int = 2000,
        task_id: str = "",
        fallback: str = "",
    ) -> None:
        self.retriever = retriever
        self.counts = Counts()
        self._key = key
        self._max_chars = max_chars
        self._task_id = task_id
        self._fallback = fallback

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is random
        """Return the windows for each view as text."""
        return [Utterance(self._words(view)) for view in views]

    def _words(self, view: View) -> str:
        self.counts.asked += 1
        key = self._key_of(view)
        if key is None and self._key == "planner":
            self.counts.key_misses += 1
        planned = view.said.get("planner", "")
        query = Query(
            task=goal(view.observation.task),
            plan="" if key is not None and self._key == "planner" else planned,
            key=key,
            task_id=self._task_id,
        )
        words = described(self.retriever.retrieve(query), self._max_chars)
        self.counts.hits += bool(words)
        return words or self._fallback

    def _key_of(self, view: View) -> Key | None:
        if self._key == "observation" and view.past:
            return Key("observation", news(view.observation.text, view.past[-1]))
        return parsed_key(view.said.get("planner", "")) if self._key == "planner" else None


def parsed_key(words: str) -> Key | None:
    """Return the last key in a planner's words, ``search: WORDS`` or ``action: WORDS``; ``None`` without one."""
    found = _KEY.findall(words)
    if not found:
        return None
    form, text = found[-1]
    return Key("action" if form.lower() == "action" else "observation", text.strip())


def described(windows: Sequence[Window], max_chars: int) -> str:
    """Return windows as text, best first, within ``max_chars`` characters; empty where not one step fits.

    The last windows are left out first, then the only one left gets smaller; no step is cut.
    """
    shown = list(windows)
    while shown and len(text := "\n".join(map(_text, shown))) > max_chars:
        if len(shown) > 1:
            shown.pop()
        elif shown[0].m > 1:
            shown[0] = shown[0].smaller()
        else:
            shown.clear()
    return text if shown else ""


def _text(window: Window) -> str:
    past = window.experience
    steps = [
        f"> {step.action}: {step.observation}" if step.observation else f"> {step.action}" for step in window.steps
    ]
    parts = [
        "Done before:" if past.success else "Tried before:",
        past.task,
        f"Plan: {past.plan}" if past.plan else "",
        past.start if window.first == 0 else "[...]",
        *steps,
    ]
    return " ".join(" ".join(parts).split())
