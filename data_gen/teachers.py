"""Teachers: the environment's own expert, and a chat model that reflects for the expert's episode or plays itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from reflectrl.core import Hints, InvalidInput, Observation
from reflectrl.prompts import Menu, TeacherPrompts, labels
from reflectrl.prompts.chat import read_label, read_reflection
from reflectrl.prompts.teacher import read_discreet, read_honest

if TYPE_CHECKING:  # openai takes a second to import, and readers of rows need none of it
    from reflectrl.endpoint.chat import ChatClient


@dataclass(frozen=True)
class Situation:
    """A state in which a teacher is asked."""

    observation: Observation
    past: tuple[str, ...]
    menu: tuple[str, ...]
    """The actions in the order in which they are shown."""
    hints: Hints
    mistaken: bool | None
    """Whether the last action was worse than the advised one; ``None`` where it may have been."""
    draw: str = ""
    """Tells this place of the run apart from others where the teacher is asked the same."""


@dataclass(frozen=True)
class Advice:
    """A reflection and the action that follows from it."""

    reflection: str
    action: str


class Teacher(Protocol):
    """Thinks, then chooses."""

    async def advise(self, situation: Situation) -> Advice:
        """What to think and do in ``situation``."""
        ...


class ExpertTeacher:
    """The environment's expert: offline, free, and the same every time."""

    async def advise(self, situation: Situation) -> Advice:
        """The expert's reflection and action.

        Raises:
            InvalidInput: the environment has no expert here.

        """
        reflection = situation.hints.reflection
        if reflection is None:
            raise InvalidInput(
                "data.teacher=expert was asked to reflect in an environment whose reflection() says nothing; write "
                "that method, or choose data.teacher=openai."
            )
        return Advice(read_reflection(reflection), expert_action(situation))


class OracleTeacher:
    """The expert acts; a chat model, told the spoiler in private, reflects."""

    def __init__(self, client: ChatClient, prompts: TeacherPrompts) -> None:
        """Speak through ``client``, in the words of ``prompts``."""
        self._client = client
        self._prompts = prompts

    async def advise(self, situation: Situation) -> Advice:
        """The model's reflection, without its spoiler, and the expert's action.

        Raises:
            InvalidInput: the environment has no expert here.
            RejectedReply: the model gave no usable reply, or would not keep the spoiler private.
            WorkFailed: the endpoint failed.

        """
        action = expert_action(situation)
        chat = self._prompts.reflect(
            situation.observation, situation.past, spoiler=situation.hints.spoiler, mistaken=situation.mistaken
        )
        shown = self._prompts.shown(situation.observation, situation.past)
        read = partial(read_discreet, hints=situation.hints, menu=situation.menu, shown=shown)
        reply = await self._client.ask(chat, read, situation.draw)
        return Advice(reply.value, action)


class ChatTeacher:
    """A chat model reflects, then chooses: two turns of one chat, so that the two agree."""

    def __init__(self, client: ChatClient, prompts: TeacherPrompts) -> None:
        """Speak through ``client``, in the words of ``prompts``."""
        self._client = client
        self._prompts = prompts

    async def advise(self, situation: Situation) -> Advice:
        """The model's reflection and its choice.

        Raises:
            RejectedReply: the model gave no usable reply, or no label however often it was asked.
            WorkFailed: the endpoint failed.

        """
        chat = self._prompts.reflect(situation.observation, situation.past, mistaken=situation.mistaken)
        honest = partial(read_honest, shown=self._prompts.shown(situation.observation, situation.past))
        reflection = (await self._client.ask(chat, honest, situation.draw)).value
        # numbers whatever the local model's labels are: added tokens mean nothing to a stranger
        menu = Menu(labels("numbers", len(situation.menu)), situation.menu)
        choice, read = self._prompts.choose(chat, reflection, menu), partial(read_label, menu=menu)
        chosen = await self._client.ask(choice, read, situation.draw)
        return Advice(reflection, menu.actions[chosen.value])


def expert_action(situation: Situation) -> str:
    """The expert's action in ``situation``.

    Raises:
        InvalidInput: there is none, or it is not on the menu.

    """
    action = situation.hints.action
    if action is None or action not in situation.menu:
        raise InvalidInput(
            f"the environment's expert() answered {action!r}; expected one of {situation.menu}: write or mend that "
            "method, or choose data.teacher=openai with data.trajectory=teacher."
        )
    return action
