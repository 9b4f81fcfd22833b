"""One teacher episode: advice at each step, noise, and negative examples (Algorithm 1, lines 3-18).

Teachers are the environment's own expert, and a chat model that reflects for the expert's episode or plays itself.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from reflectrl.core import Hints, InvalidInput, NatLangEnv, Observation, Task, Trajectory, Turn
from reflectrl.core.text import shortened, shown, words
from reflectrl.data_gen.rows import Sample, TeacherEpisode, past_states
from reflectrl.endpoint.journal import RejectedReply
from reflectrl.prompts import Menu, PromptFormat, TeacherPrompts, make_menu
from reflectrl.prompts.chats import read_label, read_reflection
from reflectrl.prompts.teacher import leaks, read_discreet, read_honest
from reflectrl.prompts.views import State, View
from reflectrl.rollout import Move, play_turn
from reflectrl.rollout.turn import menu_of
from reflectrl.seats.others import GivenActions
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import reflecting, view

if TYPE_CHECKING:
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
            method = "expert()" if request.hints.action is None else "reflection()"
            raise InvalidInput(
                f"the environment's {method} said nothing {request.where}; expected a reflection on every state "
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


@dataclass(frozen=True)
class Teaching:
    """Settings that all teacher episodes of a run share."""

    teacher: Teacher
    layout: PromptFormat
    seed: int
    noise: float
    """Probability that a random action is played instead of the advised one."""
    negatives: float
    """Probability of a negative example at each step."""
    held_out: frozenset[tuple[str, ...]]
    """``Observation.shown`` of the states in which held-out tasks start; no sample may show one."""


async def play_teacher_episode(env: NatLangEnv, number: int, task: Task, teaching: Teaching) -> TeacherEpisode:
    """Play episode ``number``; everything random in it comes from (teaching.seed, number)."""
    return await _Episode(env, number, task, teaching).play()


class _Episode:
    """State of a teacher episode that is being played."""

    def __init__(self, env: NatLangEnv, number: int, task: Task, teaching: Teaching) -> None:
        self._env = env
        self._number = number
        self._task = task
        self._teaching = teaching
        self._rng = random.Random(f"{teaching.seed} episode {number}")
        self._seed = self._rng.randrange(2**31)
        self._samples: list[Sample] = []
        self._skipped = 0
        self._indiscreet = 0

    async def play(self) -> TeacherEpisode:
        env, teaching, rng = self._env, self._teaching, self._rng
        env.reset(seed=self._seed, options={"task": self._task})
        turns: list[Turn] = []
        state = State(env.observation, seed=self._seed)
        strayed = terminated = truncated = success = rejected = False
        while not (terminated or truncated):
            observation = env.observation
            try:
                advice = await self._teach(state, strayed=strayed, negative=False)
            except RejectedReply:  # there is nothing to learn here, and no advice on how to continue
                rejected = truncated = True
                break
            if rng.random() < teaching.negatives:
                await self._negative(state, advice)
            action = rng.choice(observation.tries) if rng.random() < teaching.noise else advice.action
            strayed = action != advice.action
            move = play_given(state, advice.reflection, action, teaching.layout)
            _, reward, terminated, truncated, info = env.step(action)
            success = info["success"]
            turns.append(
                Turn(observation, move.menu.actions, move.said, move.decision, {"env": reward}, info["illegal"])
            )
            state = _next(state, action, reward, env.observation, advice)
        last = None if rejected else env.observation.final
        trajectory = Trajectory(self._task, self._seed, tuple(turns), terminated, truncated, success, last=last)
        return TeacherEpisode(
            self._number,
            trajectory,
            tuple(self._samples),
            self._skipped,
            indiscreet=self._indiscreet,
            rejected=rejected,
        )

    async def _negative(self, state: State, advised: Advice) -> None:
        """Play an action not known to be as good as the advised one, ask how to recover, and restore the state."""
        env, here = self._env, self._env.snapshot()
        others = [action for action in env.observation.tries if action != advised.action]
        while others:
            wrong = self._rng.choice(others)
            _, reward, terminated, truncated, _ = env.step(wrong)
            if terminated or truncated:
                break
            if env.hints().mistaken is not False:
                if env.observation.shown in self._teaching.held_out:
                    self._skipped += 1
                else:
                    after = _next(state, wrong, reward, env.observation, advised)
                    with contextlib.suppress(RejectedReply):
                        await self._teach(after, strayed=True, negative=True)
                break
            others.remove(wrong)
            env.restore(here)
        env.restore(here)

    async def _teach(self, state: State, *, strayed: bool, negative: bool) -> Advice:
        """Ask the teacher, and keep the answer as a sample unless it reveals a secret or a held-out start."""
        env, teaching, draw = self._env, self._teaching, f"{self._number} {len(state.past)} {negative}"
        previous = state.before.get("reflector") if teaching.layout.carry else None
        hints = env.hints(previous)
        mistaken = hints.mistaken if strayed else False
        seen = view("reflector", teaching.layout, replace(state, hints=hints), hints=True)
        menu = menu_of(state, teaching.layout)
        advice = await teaching.teacher.advise(Request(seen, menu, mistaken, draw))
        if state.observation.shown in teaching.held_out:
            self._skipped += 1
        elif leaks(advice.reflection, seen.prompt.text, hints.secrets):
            self._indiscreet += 1
        else:
            recent = teaching.layout.recent
            self._samples.append(
                Sample(
                    self._task,
                    self._seed,
                    state.past,
                    state.observation,
                    menu.actions,
                    advice.reflection,
                    advice.action,
                    negative,
                    past_states(state.visited) if recent.show == "transitions" else (),
                    state.rewards if recent.reward else (),
                    previous or "",
                    negative and previous is not None and self._is_correctable(advice, previous, seen),
                )
            )
        return advice

    def _is_correctable(self, advice: Advice, previous: str, seen: View) -> bool:
        """Return whether a reflection is the expert's without those before, or has no word from the last one alone."""
        if advice.reflection == read_reflection(self._env.hints().reflection or ""):
            return True
        shown = words("".join((seen.prompt.head, *seen.prompt.history, seen.prompt.state))).split()
        return not set(words(advice.reflection).split()) & (set(words(previous).split()) - set(shown))


def _next(state: State, action: str, reward: float, observation: Observation, advice: Advice) -> State:
    """Return the state after an action, which followed an advice."""
    return replace(
        state,
        observation=observation,
        past=(*state.past, action),
        visited=(*state.visited, state.observation),
        rewards=(*state.rewards, reward),
        before={"reflector": advice.reflection},
    )


def play_given(state: State, reflection: str, action: str, layout: PromptFormat) -> Move:
    """Play a turn whose reflection and action are given."""
    seats = reflecting(ScriptedReflector(lambda _: reflection))
    [move] = play_turn([state], policy=GivenActions([action]), seats=seats, layout=layout)
    return move
