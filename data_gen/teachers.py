"""Teachers: the environment's own expert, and a chat model that reflects for the expert's episode or plays itself."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from reflectrl.core import Hints, InvalidInput
from reflectrl.core.text import shortened, shown
from reflectrl.prompts import Menu, TeacherPrompts, make_menu
from reflectrl.prompts.chats import read_label, read_reflection
from reflectrl.prompts.teacher import read_discreet, read_honest
from reflectrl.prompts.views import View

if TYPE_CHECKING:  # openai takes a second to import, and readers of rows do not need it
    from reflectrl.endpoint.client import ChatClient


@dataclass(frozen=True)
class Request:
    """A state in which a teacher is asked for a reflection and an action."""

    seen: View
    """The local reflector's view, with the expert's hints."""
    menu: Menu
    """The actions in the order in which they are shown."""
    mistaken: bool | None
    """True if the last action was worse than the advised one; ``None`` where that is unknown."""
    draw: str = ""
    """Distinguishes this place in the run from others where the teacher is asked the same."""

    @property
    def hints(self) -> Hints:
        """Knowledge of the environment's expert about the state."""
        return self.seen.hints or Hints()

    @property
    def where(self) -> str:
        """Describe the state for an error's sentence."""
        past = f"after {shown(list(self.seen.past))}" if self.seen.past else "at the start"
        return f"in the state {shortened(self.seen.observation.text, 80)!r}, {past}"


@dataclass(frozen=True)
class Advice:
    """A reflection and the action that follows from it."""

    reflection: str
    action: str


class Teacher(Protocol):
    """Protocol of a teacher, which reflects on a state, then chooses an action."""

    async def advise(self, request: Request) -> Advice:
        """Return a reflection on the state and an action."""
        ...


class ExpertTeacher:
    """The environment's expert: offline, free, and the same every time."""

    async def advise(self, request: Request) -> Advice:
        """Return the expert's reflection and action.

        Raises:
            InvalidInput: the environment has no expert here.

        """
        reflection = request.hints.reflection
        if reflection is None:
            raise InvalidInput(
                f"the environment's reflection() said nothing {request.where}; expected a reflection on every state "
                "with data.teacher=expert: write or complete that method, or choose data.teacher=openai, or "
                "data.teacher=random with sft.enabled=false and players.reflector.player=none (RLFT alone)."
            )
        return Advice(read_reflection(reflection), expert_action(request))


@dataclass(frozen=True)
class RandomTeacher:
    """Random actions and no words: what a recipe without SFT and without an expert shows its tokenizer."""

    seed: int

    async def advise(self, request: Request) -> Advice:
        """Return no reflection, and an action drawn uniformly from the menu, or from what random play tries."""
        actions = request.menu.actions or request.seen.observation.tries
        return Advice("", random.Random(f"{self.seed} random {request.draw}").choice(actions))


@dataclass(frozen=True)
class OracleTeacher:
    """Teacher in which the expert acts, and a chat model that knows the spoiler reflects."""

    client: ChatClient
    prompts: TeacherPrompts

    async def advise(self, request: Request) -> Advice:
        """Return the model's reflection, without its spoiler, and the expert's action.

        Raises:
            InvalidInput: the environment has no expert here.
            RejectedReply: the model gave no usable reply, or would not keep the spoiler private.
            WorkFailed: the endpoint failed.

        """
        action = expert_action(request)
        seen, hints = request.seen, request.hints
        chat = self.prompts.reflect(seen, spoiler=hints.spoiler, mistaken=request.mistaken)
        read = partial(read_discreet, hints=hints, menu=request.menu.actions, shown=seen.prompt.text)
        return Advice((await self.client.ask(chat, read, request.draw)).value, action)


@dataclass(frozen=True)
class ChatTeacher:
    """Teacher in which a chat model reflects, then chooses, in two turns of one chat, so that the two agree."""

    client: ChatClient
    prompts: TeacherPrompts

    async def advise(self, request: Request) -> Advice:
        """Return the model's reflection and its choice.

        Raises:
            RejectedReply: the model gave no usable reply, or no label however often it was asked.
            WorkFailed: the endpoint failed.

        """
        chat = self.prompts.reflect(request.seen, mistaken=request.mistaken)
        honest = partial(read_honest, shown=request.seen.prompt.text)
        reflection = (await self.client.ask(chat, honest, request.draw)).value
        # numbers, whatever the local model's labels are: its added tokens mean nothing to another model
        actions = request.menu.actions
        menu = make_menu(actions, "numbers")
        choice, read = self.prompts.choose(chat, reflection, menu), partial(read_label, menu=menu)
        chosen = await self.client.ask(choice, read, request.draw)
        return Advice(reflection, menu.actions[chosen.value])


def expert_action(request: Request) -> str:
    """Return the expert's action for ``request``.

    Raises:
        InvalidInput: there is no such action, or it is not on the menu.

    """
    action = request.hints.action
    if action is None or (request.menu.actions and action not in request.menu.actions):
        raise InvalidInput(
            f"the environment's expert() answered {action!r} {request.where}; expected one of {request.menu.actions}: "
            "write or fix that method, or choose data.teacher=openai with data.trajectory=teacher."
        )
    return action
