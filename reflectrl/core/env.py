"""``NatLangEnv``: an environment whose observations and actions are text.

An author writes three methods (``start``, ``observe``, ``act``) and may write nine more (``tasks``, ``expert``,
``reflection``, ``read_thought``, ``spoiler``, ``mistaken``, ``secrets``, ``benchmark``, ``extras``). The base class
does the rest: seeding, the horizon, the distinction between terminated and truncated, the check that actions are legal,
``info["success"]``, the refusal of steps after the end, snapshots and copies. When one of the author's methods raises,
or returns a value that no player can use, the error says where in the episode that happened.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Self, TypeVar

import gymnasium
from gymnasium.utils import seeding

from reflectrl.core.errors import Border, EnvFailed, InvalidInput, WorkFailed, called, nearest, place_of
from reflectrl.core.extras import Extras, TextSpace
from reflectrl.core.promises import (
    phrases,
    wrong_benchmark,
    wrong_hints,
    wrong_observation,
    wrong_outcome,
    wrong_reading,
    wrong_tasks,
)
from reflectrl.core.text import shown
from reflectrl.core.types import SPLITS, Hints, Observation, Outcome, Reading, Task, seed_tasks


class Recreated:
    """Base class of objects whose resources (files, engines, processes) cannot be copied but can be created again.

    A subclass defines ``__getstate__`` and ``__setstate__`` for the state that a new object lacks to be equal to the
    original. ``gymnasium.utils.EzPickle`` is similar, but each class has to call it, and a copy has the initial state.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Create the object and store the arguments, which the constructor receives next."""
        made = super().__new__(cls)
        made._made_with = args, options
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the call by which ``copy`` and ``pickle`` construct the object again."""
        return _make, (type(self), *self._made_with), self.__getstate__()


def _make(cls: type[Recreated], args: Sequence[Any], options: Mapping[str, Any]) -> Recreated:
    return cls(*args, **options)


_T = TypeVar("_T")
_COPIED = ("spec", "observation_space", "action_space", "_np_random", "_np_random_seed")
"""Attributes that a copy takes from the original, besides the constructor's arguments and the episode."""
_OF_THE_EPISODE = ("_task", "_seed", "_actions", "_observation")
"""Attributes of the base in an episode, which ``start`` must leave alone."""
_ADVICE = "fix it, or set env.workers to 1 or more, so that a run survives failures and late steps (env.deadline_s)"


@cache
def _carries(reflection: Callable[..., str | None]) -> bool:
    return "previous" in inspect.signature(reflection).parameters


@dataclass(frozen=True)
class Snapshot:
    """State of an episode, as the task, the seed and the actions so far; replaying these actions restores it."""

    task: Task
    seed: int | None
    actions: tuple[str, ...]


class NatLangEnv(Recreated, gymnasium.Env[str, str]):
    """Base class of every environment: text in, text out, the menu of legal actions in ``info["actions"]``.

    ``reset(seed=..., options={"task": task})`` and ``step("move north")`` follow gymnasium. Every ``info`` holds
    ``actions`` (tuple of legal actions), ``task`` (its id), ``success`` and ``illegal``. A copy, by ``copy`` or
    ``pickle``, is constructed with the same arguments and replays the actions of the episode.

    A complete environment::

        class Corridor(NatLangEnv):
            name = "corridor"

            def tasks(self, split):
                rooms = {"train": (0, 1), "validation": (2,), "test": (3,)}[split]
                return [Task(f"room-{room}", {"room": room}) for room in rooms]

            def start(self, task):
                self.room = task.options["room"]

            def observe(self):
                return Observation(f"You are in room {self.room}; the exit is room 5.", ("go left", "go right"))

            def act(self, action):
                self.room += 1 if action == "go right" else -1
                out = self.room == 5
                return Outcome(reward=float(out), ended=out, success=out)

    Args:
        horizon: steps after which an episode is truncated.

    Raises:
        InvalidInput: a horizon below 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}
    render_mode = "ansi"
    action_space: TextSpace

    name: ClassVar[str] = ""
    """Registered name of the environment."""
    instructions: str = ""
    """Rules that a player must know, shown before each state if the recipe says so; options may add to them. With a
    ``budget``, the built-in model is shown none, as they are the same in every prompt: play teaches them."""
    observable: ClassVar[bool] = True
    """True if equal texts mean equal states. Then no SFT row may show the initial state of a held-out task, unless a
    training task begins with the same text; if false, such a text reveals nothing about the task, because the deciding
    facts are hidden."""
    further_splits: ClassVar[tuple[str, ...]] = ()
    """Further held-out splits besides "validation" and "test", for evaluation only."""
    _border = Border()
    max_actions: int = 20
    """Length of the longest menu that the environment can show, ``Observation.common`` included; 0 for an environment
    without menus, whose players write their actions (``prompt.action_mode=text``). Its ``act`` takes any text; one that
    it cannot read, maybe empty or in another language, it answers with ``Outcome(illegal=True)`` and a message in the
    next observation, never with an exception."""

    def __init__(self, horizon: int) -> None:
        if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 1:
            raise InvalidInput(f"horizon={horizon!r} was given to {self.name!r}; expected 1 or more whole steps.")
        self.horizon = horizon
        """Steps after which the episode is truncated."""
        self.observation_space = TextSpace(("",))
        self.action_space = TextSpace()
        self._task: Task | None = None
        self._seed: int | None = None
        self._observation: Observation | None = None
        self._actions: list[str] = []
        self._ended = self._terminated = True
        self._checked: dict[str, Sequence[Task]] = {}

    # ---- what an author writes -------------------------------------------------------------------------------

    @abstractmethod
    def start(self, task: Task) -> None:
        """Set the complete state to the start of ``task``.

        What makes the problem comes from ``task.options``, such as its seed. Draw chance, such as dice, only from
        ``self.np_random``, here and in ``act``, so that equal seeds give equal episodes.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Return the current state as text, and its legal actions, which may be none at the end; change nothing."""

    @abstractmethod
    def act(self, action: str) -> Outcome:
        """Play one legal action; return its reward and whether it ended the episode, successfully or not."""

    # ---- what an author may write ----------------------------------------------------------------------------

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of ``split``: "train", "validation", "test" or one of ``further_splits``.

        Splits share no task, and every task has a unique id. Derive tasks from constants, not from random numbers.

        By default, a task is a seed: 10,000 for training and 200 for each other split. ``start`` makes the problem with
        ``random.Random(task.options["seed"])``. List the tasks where fewer than thousands begin differently, as most
        seeds of a held-out split would begin like one for training. Where there are as many, give them all: they cost
        nothing, and a small model learns a few hundred by heart in place of the game.
        """
        return seed_tasks(split, self.splits)

    def expert(self) -> str | None:
        """Return a good action in the current state, which may be ANY state, also one that is lost.

        ``None`` where there is no expert.
        """
        return None

    def reflection(self) -> str | None:
        """Return the expert's reflection on the last action and the current state.

        An environment that leaves this out is trained without a reflector, where a ``budget`` chooses the players.

        For a reflector that carries its words (``players.reflector.carry``), write ``reflection(self, previous: str |
        None = None)``: it is then given the reflection of the step before, or ``None`` where there is none, and may
        repeat what will be needed of it, so that a fact that a state showed once is not forgotten.
        """
        action = self._advised()
        return None if action is None else f"Next: {action}."

    def read_thought(self, thought: str) -> Reading:  # noqa: ARG002 - an environment that can tell uses it
        """Return whether a policy's thought about the current state is right, and which action it calls for."""
        return Reading()

    def spoiler(self) -> str | None:
        """Return privileged facts about the current state, for a teaching model that must not repeat them."""
        action = self._advised()
        return None if action is None else f"The best next action is: {action}"

    def mistaken(self) -> bool | None:
        """Return whether the last action was worse than the expert's: it made the task longer or lowered the return.

        ``None`` where that is unknown; any action other than the expert's then counts as a possible mistake.
        """
        return None

    def secrets(self) -> Sequence[str]:
        """Return phrases for facts that only the expert knows in this state, such as the name of a hidden object.

        A reflection that contains such a phrase is not used for training unless its prompt shows the phrase as well.
        """
        return ()

    def benchmark(self, split: str, tasks: int) -> str:  # noqa: ARG002 - an environment with several task sets uses them
        """Return the source of ``tasks`` tasks of ``split``, for tables of results; "" where the name says it."""
        return ""

    @classmethod
    def extras(cls) -> Extras:
        """Return the builder of the environment's dataset and its copilot, where the environment provides them."""
        return Extras()

    # ---- what the base owns ----------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; return the text of its first observation, and info.

        Without ``options["task"]``, the seeded generator draws a training task.

        Raises:
            InvalidInput: an unknown option, a negative seed, a task that is no ``Task``, or input that the environment
                refuses.
            EnvFailed: the environment raised something else, or returned an observation that no player can use.
        """
        if seed is not None and seed < 0:
            raise InvalidInput(f"reset of {self.name!r} was given seed={seed}; expected 0 or more.")
        super().reset(seed=seed)
        given = dict(options or {})
        task = given.pop("task", None)
        if given:
            raise InvalidInput(
                f"reset of {self.name!r} was given options {sorted(given)}; {nearest(min(given), ['task'])}"
            )
        if task is None:
            train = self.split_tasks("train")
            task = train[int(self.np_random.integers(len(train)))]
        if not isinstance(task, Task):
            raise InvalidInput(f"reset of {self.name!r} was given task={task!r}; expected a Task of env.tasks(split).")
        self._begin(task, seed)
        observation = self._observe()
        return observation.full_text, self._info(Outcome(0.0))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play ``action``, one of ``info["actions"]``; return (text, reward, terminated, truncated, info).

        Raises:
            InvalidInput: the action is not on the menu, or the episode is over.
            EnvFailed: the environment raised, or returned what the protocol forbids.
        """
        if self._ended:
            raise InvalidInput(f"step of {self.name!r} was called before reset or after the episode's end; call reset.")
        legal = self.observation.actions
        if self.max_actions and action not in legal:
            raise InvalidInput(
                f"{shown(action)} is not a legal action of {self.name!r} here; {nearest(str(action), legal)}"
            )
        self._actions.append(action)
        outcome = self._call(self.act, action, wrong=lambda given: wrong_outcome(given, action))
        truncated = not outcome.ended and len(self._actions) >= self.horizon
        self._terminated, self._ended = outcome.ended, outcome.ended or truncated
        observation = self._observe()
        return observation.full_text, float(outcome.reward), outcome.ended, truncated, self._info(outcome)

    def render(self) -> str:
        """Return the full text of the current observation."""
        return self.observation.full_text

    @property
    def observation(self) -> Observation:
        """Current observation; an error before the first reset."""
        if self._observation is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        return self._observation

    @property
    def task(self) -> Task:
        """Task of the current episode; an error before the first reset."""
        if self._task is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        return self._task

    @property
    def last_action(self) -> str | None:
        """Last action of this episode; ``None`` at its start."""
        return self._actions[-1] if self._actions else None

    @property
    def steps(self) -> int:
        """Number of actions played in this episode."""
        return len(self._actions)

    @property
    def reflects(self) -> bool:
        """Whether an author wrote ``reflection``, which otherwise names the expert's action and nothing else."""
        return type(self).reflection is not NatLangEnv.reflection

    @property
    def carries(self) -> bool:
        """Whether ``reflection`` takes the reflection of the step before."""
        return _carries(type(self).reflection)

    def hints(self, previous: str | None = None) -> Hints:
        """Return everything that the expert knows about the current state.

        Args:
            previous: the reflection of the step before, for an expert whose ``reflection`` takes it.

        Raises:
            EnvFailed: the expert raised, or returned an action off the menu or a text that no file can hold.
        """
        observation = self.observation
        legal = None if self._ended else observation.actions
        return self._call(self._hints, previous, wrong=lambda hints: wrong_hints(hints, legal), asked=True)

    def reading(self, thought: str) -> Reading:
        """Return ``read_thought(thought)``; raise ``EnvFailed`` where that raises or returns something else."""
        return self._call(self.read_thought, thought, wrong=wrong_reading, asked=True)

    def _hints(self, previous: str | None) -> Hints:
        builds_on = {"previous": previous} if self.carries else {}
        reflection = self.reflection(**builds_on)
        return Hints(self._advised(), reflection, self.spoiler(), self.mistaken(), phrases(self.secrets()))

    def _advised(self) -> str | None:
        """Return the expert's action; ``None`` in a terminal state, in which an expert need not know any."""
        return None if self._terminated else self.expert()

    def snapshot(self) -> Snapshot:
        """Return the state of the episode, for ``restore``."""
        return Snapshot(self.task, self._seed, tuple(self._actions))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot by replaying its actions: environments are deterministic given the seed."""
        self.reset(seed=snapshot.seed, options={"task": snapshot.task})
        for action in snapshot.actions:
            self.step(action)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of all splits: train, validation, test, and ``further_splits``."""
        return (*SPLITS, *self.further_splits)

    def split_tasks(self, split: str) -> Sequence[Task]:
        """Return ``tasks(split)``, after a check that there is at least one.

        Raises:
            InvalidInput: an unknown or empty split.
            EnvFailed: the environment raised, or returned something other than tasks.
        """
        tasks = self.any_tasks(split)
        if not tasks:
            raise InvalidInput(f"environment {self.name!r} has no tasks in split {split!r}; choose another split.")
        return tasks

    def any_tasks(self, split: str) -> Sequence[Task]:
        """Return ``tasks(split)``, which may be empty.

        Raises:
            InvalidInput: an unknown split.
            EnvFailed: the environment raised, or returned something other than tasks.
        """
        if split not in self.splits:
            raise InvalidInput(f"split {split!r} is unknown; {nearest(str(split), self.splits)}")

        def wrong(tasks: Sequence[Task]) -> str | None:
            return None if tasks and self._checked.get(split) is tasks else wrong_tasks(tasks, split)

        self._checked[split] = called(self.tasks, split, wrong=wrong, failed=self._broke_for(split))
        return self._checked[split]

    def split_benchmark(self, split: str, tasks: int) -> str:
        """Return ``benchmark(split, tasks)``; raise ``EnvFailed`` where that raises or returns no text."""
        return called(self.benchmark, split, tasks, wrong=wrong_benchmark, failed=self._broke_for(split))

    def _broke_for(self, split: str) -> Callable[[str], EnvFailed]:
        return partial(EnvFailed.at, f"environment {self.name!r} failed when it was asked for its {split} tasks")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that a newly constructed environment lacks to be equal to this one.

        The base class's snapshot is used, because a subclass's own may contain objects that cannot be copied.
        """
        episode = None if self._task is None else Snapshot(self._task, self._seed, tuple(self._actions))
        own = {name: vars(self)[name] for name in _COPIED if name in vars(self)}
        return {"episode": episode, **deepcopy(own)}  # a shallow copy would draw from the same generators

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Bring a new environment to the state of the original by replaying its actions."""
        attributes = dict(state)
        if (episode := attributes.pop("episode")) is not None:
            NatLangEnv.restore(self, episode)
        vars(self).update(attributes)

    def _begin(self, task: Task, seed: int | None) -> None:
        # each episode has its own seed, given or drawn, so that earlier episodes do not change it
        self._seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._np_random, self._np_random_seed = seeding.np_random(self._seed)
        self._task = task
        self._observation = None
        self._actions.clear()
        self._ended = self._terminated = False
        own = {name: vars(self)[name] for name in _OF_THE_EPISODE}
        self._call(self.start, task, wrong=lambda _: None)
        if taken := [name for name, value in own.items() if vars(self)[name] is not value]:
            vars(self).update(own)
            raise self._broke(f"set self.{taken[0]} in start(), which belongs to NatLangEnv; choose another name")

    def _observe(self) -> Observation:
        most, ended, before = self.max_actions, self._ended, self._observation
        observation = self._call(
            self.observe, wrong=lambda given: wrong_observation(given, most, ended=ended, before=before)
        )
        self._observation = observation
        if offered := observation.actions if self.max_actions else observation.tries:
            self.action_space.offered = offered  # kept where an end offers none: gymnasium samples there
        return observation

    def _call(
        self, method: Callable[..., _T], *given: Any, wrong: Callable[[_T], str | None], asked: bool = False
    ) -> _T:
        """Call a method that the author wrote; ``asked`` if it answers a request for hints instead of an action."""
        self._border.enter(self, asked=asked)
        try:
            return called(method, *given, wrong=wrong, failed=partial(self._broke, asked=asked))
        finally:
            self._border.leave()

    def _broke(self, what: str, *, asked: bool = False) -> WorkFailed:
        """End the episode; return the error that says where the environment failed."""
        over = " after the end of the episode" if asked and self._ended else ""
        self._ended = True
        where = f"environment {self.name!r} failed {place_of(self, hints=asked)}{over}"
        return self._border.failed(EnvFailed.at(where, what, _ADVICE))

    def _info(self, outcome: Outcome) -> dict[str, Any]:
        played = {"success": outcome.success, "illegal": outcome.illegal}
        return {"actions": self.observation.actions, "task": self.task.id, **played}
