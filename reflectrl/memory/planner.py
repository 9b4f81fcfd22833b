"""``Planner``: plans an episode at its start, and says what to look for in past ones (RAP, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reflectrl.core import Utterance
from reflectrl.core.chat import Messages
from reflectrl.memory.experience import goal
from reflectrl.memory.retriever import Query, Retriever
from reflectrl.prompts.planning import PlanExample, key_chat, plan_chat, read_plan
from reflectrl.prompts.views import View


class TextModel(Protocol):
    """Protocol of a language model that answers chats with text."""

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer a chat, in one line; empty where the model gave none."""
        ...


class Planner:
    """Plans with a language model, which is shown the plans of the past episodes with the most similar tasks.

    Passed to a ``Memory`` as its ``planner``, it also turns reflections and thoughts into keys.

    Args:
        model: the language model.
        past: ranks the past episodes that have a plan; absent: none are shown.

    """

    def __init__(self, model: TextModel, past: Retriever | None = None) -> None:
        self._model = model
        self.past = past

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one plan a view, in one sentence; empty where the model gave none."""
        chats = [plan_chat(view.prompt, self._examples(view)) for view in views]
        return [Utterance(read_plan(words)) for words in self._model.write(chats, draws)]

    def _examples(self, view: View) -> list[PlanExample]:
        if self.past is None:
            return []
        query = Query(goal(view.observation.task), view.task_type, task_id=view.task_id)
        found = [window.experience for window in self.past.retrieve(query)]
        return [PlanExample(each.task or each.start, each.plan) for each in found]

    def keys(self, thoughts: Sequence[str], draws: Sequence[float]) -> list[str]:
        """Return the model's answer to each thought, such as ``search: mug`` or ``action: put``."""
        return self._model.write([key_chat(thought) for thought in thoughts], draws)
