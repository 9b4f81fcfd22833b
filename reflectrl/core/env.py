"""``NatLangEnv``: an environment whose observations and actions are text.

An author writes four methods (``tasks``, ``start``, ``observe``, ``act``) and may write eight more (``expert``,
``reflection``, ``read_thought``, ``spoiler``, ``mistaken``, ``secrets``, ``benchmark``, ``extras``). The base class
does the rest: seeding, the horizon, terminated against truncated, legality of actions, ``info["success"]``, steps after
the end, snapshots and copies. When one of those methods raises, or returns a value that no player can use, the error
says where in the episode that happened.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import gymnasium
from gymnasium.utils import seeding

from reflectrl.core.errors import EnvFailed, InvalidInput, ReflectRLError, is_signal, nearest, raised
from reflectrl.core.extras import Extras
from reflectrl.core.promises import wrong_hints, wrong_observation, wrong_outcome, wrong_tasks
from reflectrl.core.recreated import Recreated
from reflectrl.core.spaces import TextSpace
from reflectrl.core.types import SPLITS, Hints, Observation, Outcome, Reading, Task

_T = TypeVar("_T")
_COPIED = ("spec", "observation_space", "action_space", "_np_random", "_np_random_seed")
"""Attributes that a copy takes from the original, besides its constructor's arguments and its episode."""
_ADVICE = "fix it, or set env.workers, so that a run survives a few failures"


@dataclass(frozen=True)
class Snapshot:
    """State of an episode: the task, the seed and the actions so far, from which a replay restores it."""

    task: Task
    seed: int | None
    actions: tuple[str, ...]


class NatLangEnv(Recreated, gymnasium.Env[str, str]):
    """Base class of every environment: text in, text out, the menu of legal actions in ``info["actions"]``.

    ``reset(seed=..., options={"task": task})`` and ``step("move north")`` follow gymnasium. Every ``info`` holds
    ``actions`` (tuple of legal actions), ``task`` (its id), ``success`` and ``illegal``. A copy, by ``copy`` or
    ``pickle``, is made with the same arguments and plays the actions of the episode again.

    A whole environment::

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
    """Registered name."""
    instructions: str = ""
    """Rules that a player must know; shown before each state when the recipe says so. Options may add to them."""
    observable: ClassVar[bool] = True
    """True if equal texts mean equal states. Then no SFT row may show a state in which a held-out task starts; if
    false, such a text gives nothing away, because what matters is hidden."""
    further_splits: ClassVar[tuple[str, ...]] = ()
    """Held-out splits besides "validation" and "test", which only evaluation may use."""
    max_actions: int = 20
    """Length of the longest menu that the environment ever shows, ``Observation.common`` included."""

    def __init__(self, horizon: int) -> None:
        if not isinstance(horizon, int) or horizon < 1:
            raise InvalidInput(f"horizon={horizon!r} was given to {self.name!r}; expected 1 or more whole steps.")
        self.horizon = horizon
        """Steps after which the episode is truncated."""
        self.observation_space = TextSpace(("",))
        self.action_space = TextSpace()
        self._task: Task | None = None
        self._seed: int | None = None
        self._observation: Observation | None = None
        self._actions: list[str] = []
        self._ended = True
        self._checked: dict[str, Sequence[Task]] = {}

    # ---- what an author writes -------------------------------------------------------------------------------

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of ``split``: "train", "validation", "test" or one of ``further_splits``.

        Splits share no task, and each task has an id of its own. Derive tasks from constants, not from chance.
        """

    @abstractmethod
    def start(self, task: Task) -> None:
        """Set the whole state to the beginning of ``task``.

        Draw random numbers from ``self.np_random`` only, here and in ``act``: equal seeds then give equal episodes.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Describe the present state as text, and list its legal actions; this must not change the state."""

    @abstractmethod
    def act(self, action: str) -> Outcome:
        """Play one legal action, and return its reward and whether the episode ended, successfully or not."""

    # ---- what an author may write ----------------------------------------------------------------------------

    def expert(self) -> str | None:
        """Return the best action from ANY state, or ``None`` where there is no expert."""
        return None

    def reflection(self) -> str | None:
        """Return the expert's reflection on the last action and the present state."""
        action = self.expert()
        return None if action is None else f"Next: {action}."

    def read_thought(self, thought: str) -> Reading:  # noqa: ARG002 - an environment that can tell uses it
        """Say whether a policy's thought about the present state is right, and which action it calls for."""
        return Reading()

    def spoiler(self) -> str | None:
        """Return privileged facts about the present state, for a teaching model that must not repeat them."""
        action = self.expert()
        return None if action is None else f"The best next action is: {action}"

    def mistaken(self) -> bool | None:
        """Return whether the last action was worse than the expert's, so that more is left to do or less to be won.

        ``None`` where that is unknown; any action but the expert's then counts as a possible mistake.
        """
        return None

    def secrets(self) -> Sequence[str]:
        """Return words for what only the expert knows here, such as the name of a hidden thing.

        A reflection that holds one of them, one word after the other, is not taught unless its prompt shows it too.
        """
        return ()

    def benchmark(self, split: str, tasks: int) -> str:  # noqa: ARG002 - an environment with several task sets uses them
        """Describe the source of ``tasks`` tasks of ``split``, for tables of results; "" where the name says it."""
        return ""

    @classmethod
    def extras(cls) -> Extras:
        """A builder of the environment's dataset and a copilot, where the environment brings them."""
        return Extras()

    # ---- what the base owns ----------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, and return its first text and info.

        Without ``options["task"]`` a training task is drawn from the seeded generator.

        Raises:
            InvalidInput: unknown option, or a task that is no ``Task``; whatever the environment refuses.
            EnvFailed: the environment raised something else, or returned an observation that no player can use.

        """
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
        """Play ``action``, one of ``info["actions"]``, and return (text, reward, terminated, truncated, info).

        Raises:
            InvalidInput: the action is not on the menu, or the episode is over.
            EnvFailed: the environment raised, or returned what the protocol forbids.

        """
        if self._ended:
            raise InvalidInput(f"step of {self.name!r} was called after the episode had ended; call reset first.")
        legal = self.observation.actions
        if action not in legal:
            raise InvalidInput(f"{action!r} is not a legal action of {self.name!r} here; {nearest(str(action), legal)}")
        self._actions.append(action)
        outcome = self._call(self.act, action)
        if (wrong := wrong_outcome(outcome, action)) is not None:
            raise self._broke(wrong)
        truncated = not outcome.ended and len(self._actions) >= self.horizon
        self._ended = outcome.ended or truncated
        observation = self._observe()
        return observation.full_text, float(outcome.reward), outcome.ended, truncated, self._info(outcome)

    def render(self) -> str:
        """Return the full text of the present observation."""
        return self.observation.full_text

    @property
    def observation(self) -> Observation:
        """Present observation; an error before the first reset."""
        if self._observation is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        return self._observation

    @property
    def task(self) -> Task:
        """Task of the present episode; an error before the first reset."""
        if self._task is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        return self._task

    @property
    def last_action(self) -> str | None:
        """Last action of this episode, ``None`` at its start."""
        return self._actions[-1] if self._actions else None

    @property
    def steps(self) -> int:
        """Number of actions played in this episode."""
        return len(self._actions)

    def hints(self) -> Hints:
        """Return everything that the expert knows of the present state.

        Raises:
            EnvFailed: the expert raised, or returned an action off the menu or a text that no file can hold.

        """
        observation = self.observation
        legal = None if self._ended else observation.actions
        hints = self._call(self._hints, asked=True)
        if (wrong := wrong_hints(hints, legal)) is not None:
            raise self._broke(wrong, asked=True)
        return hints

    def reading(self, thought: str) -> Reading:
        """Return ``read_thought(thought)``; raises ``EnvFailed`` where that raises."""
        return self._call(self.read_thought, thought, asked=True)

    def _hints(self) -> Hints:
        return Hints(self.expert(), self.reflection(), self.spoiler(), self.mistaken(), tuple(self.secrets()))

    def snapshot(self) -> Snapshot:
        """Return the state of the episode, for ``restore``."""
        return Snapshot(self.task, self._seed, tuple(self._actions))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot by playing its actions again: environments are deterministic given the seed."""
        self.reset(seed=snapshot.seed, options={"task": snapshot.task})
        for action in snapshot.actions:
            self.step(action)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of all splits: train, validation, test, and ``further_splits``."""
        return (*SPLITS, *self.further_splits)

    def split_tasks(self, split: str) -> Sequence[Task]:
        """Return ``tasks(split)``, of which there is at least one.

        Raises:
            InvalidInput: an unknown or empty split.
            EnvFailed: the environment raised, or returned what are no tasks.

        """
        tasks = self.any_tasks(split)
        if not tasks:
            raise InvalidInput(f"environment {self.name!r} has no tasks in split {split!r}; choose another split.")
        return tasks

    def any_tasks(self, split: str) -> Sequence[Task]:
        """Return ``tasks(split)``, of which there may be none.

        Raises:
            InvalidInput: an unknown split.
            EnvFailed: the environment raised, or returned what are no tasks.

        """
        if split not in self.splits:
            raise InvalidInput(f"split {split!r} is unknown; {nearest(str(split), self.splits)}")
        where = f"environment {self.name!r} failed when it was asked for its {split} tasks"
        try:
            tasks = self.tasks(split)
        except ReflectRLError:
            raise
        except Exception as error:
            raise EnvFailed.at(where, raised(error)) from error
        if split not in self._checked or self._checked[split] is not tasks:
            if (wrong := wrong_tasks(tasks, split)) is not None:
                raise EnvFailed.at(where, wrong)
            self._checked[split] = tasks
        return tasks

    def __getstate__(self) -> dict[str, Any]:
        """Return what a new environment lacks to be like this one.

        The base class's snapshot is used, because a subclass's own may hold what cannot be copied.
        """
        episode = None if self._task is None else Snapshot(self._task, self._seed, tuple(self._actions))
        own = {name: vars(self)[name] for name in _COPIED if name in vars(self)}
        return {"episode": episode, **deepcopy(own)}  # a shallow copy would draw from the same generators

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Bring a new environment to the state of the original, by replay."""
        attributes = dict(state)
        if (episode := attributes.pop("episode")) is not None:
            NatLangEnv.restore(self, episode)
        vars(self).update(attributes)

    def _begin(self, task: Task, seed: int | None) -> None:
        # each episode has a seed of its own, given or drawn: equal seeds, equal episodes, whatever was played before
        self._seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._np_random, self._np_random_seed = seeding.np_random(self._seed)
        self._task = task
        self._observation = None
        self._actions.clear()
        self._ended = False
        self._call(self.start, task)

    def _observe(self) -> Observation:
        observation = self._call(self.observe)
        before = self._observation
        if (wrong := wrong_observation(observation, self.max_actions, ended=self._ended, before=before)) is not None:
            raise self._broke(wrong)
        self._observation = observation
        self.action_space.offered = observation.actions
        return observation

    def _call(self, method: Callable[..., _T], *given: Any, asked: bool = False) -> _T:
        """Call a method that the author wrote, at the last action or, if ``asked``, for hints."""
        try:
            return method(*given)
        except ReflectRLError:  # a sentence already
            raise
        except (Exception, SystemExit) as error:
            if is_signal(error):
                raise  # a signal ends this program
            raise self._broke(raised(error), asked=asked) from error

    def _broke(self, what: str, *, asked: bool = False) -> EnvFailed:
        """End the episode, and return the error."""
        self._ended = True
        before = self.steps if asked or not self._actions else self.steps - 1
        where = place_in_episode(self.task, before, None if asked else self.last_action, hints=asked)
        return EnvFailed.at(f"environment {self.name!r} failed {where}", what, _ADVICE)

    def _info(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "actions": self.observation.actions,
            "task": self.task.id,
            "success": outcome.success,
            "illegal": outcome.illegal,
        }


def place_in_episode(task: Task, steps: int, action: str | None = None, *, hints: bool = False) -> str:
    """Say where something failed: at an ``action`` or a request for ``hints`` after so many steps, or at the start."""
    place = f"in task {task.id!r} after {steps} steps"
    if hints:
        return f"{place}, asked for hints"
    return f"at the start of task {task.id!r}" if action is None else f"{place}, at action {action!r}"
