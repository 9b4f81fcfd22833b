"""Environments as tools of a chat model that TRL's GRPO trains: ``environment_factory`` and the rows that go with it.

    GRPOTrainer(model=..., args=GRPOConfig(...), train_dataset=Dataset.from_list(task_rows("number_line")),
                environment_factory=environment_factory("number_line"))

TRL inspects the environment's methods: ``reset`` receives a row and returns text that is appended to its last message,
every other public method is a tool, and ``get_reward`` scores the finished conversation. An episode therefore has one
reward and one advantage here, while ``ReflectRLTrainer`` has one for each step and samples legal actions only. This
module is for models that already call tools.

There is no ``rollout_func``: it must return one completion per prompt, with log-probabilities over the vocabulary, and
GRPO centres one reward per completion; separate steps and a choice among labels do not fit this interface.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

from reflectrl.core import InvalidInput, NatLangEnv, Task, WorkFailed, make_env, nearest
from reflectrl.core.errors import need_one_of
from reflectrl.core.registry import env_class
from reflectrl.core.seeds import derive_seed

Reward = Literal["return", "success"]
"""Score of a conversation: the sum of the environment's rewards, or 1 for a success and 0 otherwise."""

HOW_TO_PLAY = (
    "You play a game step by step. Call the tool act with one of the actions that are listed, read its answer, and go "
    "on until it says that the game is over."
)


def task_rows(name: str, split: str = "train", /, **options: Any) -> list[dict[str, Any]]:
    """Return one row for each task of ``split``: the first message of a conversation, and the task's id.

    The state is not in the row: ``reset`` appends it.

    Args:
        name: name of a registered environment.
        split: "train", "validation", "test" or a further split of the environment.
        options: the environment's constructor parameters.

    Raises:
        InvalidInput: an unknown environment, option or split, or an empty split.

    """
    env = make_env(name, **options)
    try:
        request = "\n\n".join(part for part in (env.instructions, HOW_TO_PLAY) if part)
        return [{"prompt": [{"role": "user", "content": request}], "task": task.id} for task in env.split_tasks(split)]
    finally:
        env.close()


class ToolEnv:
    """One environment, played by calls of ``act``; TRL uses it for one conversation after another.

    Functions in ``reward_funcs`` receive these objects as ``environments`` and may read ``success`` and
    ``episode_return``.
    """

    _env_name: ClassVar[str]
    _options: ClassVar[dict[str, Any]]
    _reward: ClassVar[Reward]

    def __init__(self) -> None:
        self._env: NatLangEnv = make_env(self._env_name, **self._options)
        self._over = True
        self._failure: WorkFailed | None = None
        self.episode_return = 0.0
        self.success = False

    def reset(self, task: str | None = None, **row: Any) -> str:
        """Start the task of a row, each time with the same seed, because GRPO compares the conversations of a row.

        Args:
            task: the id of a task, of any split.
            row: the row's other columns, which TRL passes as well; they are ignored.

        Returns:
            The first state, to be appended to the row's last message.

        Raises:
            InvalidInput: no task, or an unknown one.

        """
        if task is None:
            raise InvalidInput(
                f"a row for {self._env_name!r} has the columns {sorted(row)}; expected one called 'task' besides: make "
                "the rows with reflectrl.training.tools.task_rows."
            )
        self._env.reset(seed=derive_seed("tools", task), options={"task": self._task(task)})
        self._over, self._failure = False, None
        self.episode_return, self.success = 0.0, False
        return f"\n\n{self._state()}"

    def act(self, action: str) -> str:
        """Play one action of the game and read what it led to.

        Args:
            action: One of the actions that were listed last, word for word.

        Returns:
            The new state and its actions, or why nothing was played.

        """
        if self._over:
            return "The game is over; nothing more can be played."
        legal = self._env.observation.actions
        chosen = str(action).strip()
        if chosen not in legal:
            said = reprlib.repr(chosen)
            return f"{said} was not played, because it is no action here; {nearest(chosen[:100], legal)}"
        try:
            _, reward, terminated, truncated, info = self._env.step(chosen)
        except WorkFailed as failure:
            self._over, self._failure = True, failure
            raise
        self._over = terminated or truncated
        self.episode_return += reward
        self.success = info["success"]
        return self._state()

    def get_reward(self) -> float:
        """Return the score of the conversation, of the kind that the factory was made for.

        Raises:
            WorkFailed: the environment failed; TRL would only show the error to the model, as a tool's answer.

        """
        if self._failure is not None:
            raise self._failure
        return float(self.success) if self._reward == "success" else self.episode_return

    def _task(self, id: str) -> Task:  # noqa: A002 - the record's own word
        for split in self._env.splits:
            for task in self._env.any_tasks(split):
                if task.id == id:
                    return task
        raise InvalidInput(
            f"task {id!r} is not in {self._env_name!r} with the options {self._options}; make the rows with "
            "reflectrl.training.tools.task_rows and the same options."
        )

    def _state(self) -> str:
        observation = self._env.observation
        if self._over:
            return f"{observation.full_text}\nThe game is over: {'won' if self.success else 'not won'}."
        return "\n- ".join((f"{observation.full_text}\nActions:", *observation.actions))


def environment_factory(name: str, reward: Reward = "return", /, **options: Any) -> Callable[[], ToolEnv]:
    """Return a factory for ``GRPOTrainer(environment_factory=...)``, which makes the ``ToolEnv`` of a conversation.

    Args:
        name: name of a registered environment.
        reward: "return" or "success"; given by position, because an option may have the same name.
        options: the environment's constructor parameters.

    Raises:
        InvalidInput: an unknown environment, option or reward.

    """
    need_one_of("reward", reward, get_args(Reward))
    make_env(name, **options).close()  # reports mistakes here rather than inside the trainer
    # a separate class for each environment, because TRL logs rewards under the name of the class
    return type(env_class(name).__name__, (ToolEnv,), {"_env_name": name, "_options": options, "_reward": reward})
