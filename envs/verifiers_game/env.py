"""``VerifiersGame``: an environment of the package verifiers, played by its own rollout and rewarded by its rubric."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task
from reflectrl.core.event_loop import run_async
from reflectrl.envs.gymnasium_game import drawn_from

_SPLITS = {"train": (0.0, 0.5), "validation": (0.5, 0.75), "test": (0.75, 1.0)}
"""Where each split begins and ends in examples of one kind."""
_HELD_OUT = {"train": (0.0, 1.0), "validation": (0.0, 0.5), "test": (0.5, 1.0)}
"""The same where an environment has examples for evaluation, too."""


class VerifiersGame(NatLangEnv):
    """Environment of verifiers (0.3) that is played by text, in one turn or several. It has no menus and no expert.

    The environment's own rollout runs, with the player in place of its model: its last messages are the state, its
    system prompt is the instructions, and its rubric gives one reward, at the end. A player writes one line; ``reply``
    puts it where the environment's parser looks for the answer. Where a reward function raises, verifiers counts 0: the
    step is then marked as illegal, and the last state says why. Examples for training are the training tasks, and those
    for evaluation the others; where there is one kind only, it is divided 2:1:1. An end by verifiers' ``max_turns``
    counts as terminated.

    Args:
        environment: the name of an installed environment, or ``module:callable``, where the callable returns one.
        args: arguments of its ``load_environment`` or of the callable.
        success_reward: an episode is a success if its reward is at least this; absent: the environment's
            ``pass_threshold``.
        horizon: maximum number of turns; needed where the environment has no ``max_turns``.

    Raises:
        InvalidInput: there is no such environment, or it needs tools, a judge or rewards of whole groups.

    """

    name = "verifiers"
    observable = False
    max_actions = 0

    def __init__(
        self,
        environment: str,
        args: Mapping[str, Any] | None = None,
        success_reward: float | None = None,
        horizon: int | None = None,
    ) -> None:
        self._verifiers = _verifiers()
        with drawn_from(0):
            self._game = game = self._verifiers.made(environment, args or {})
        limits = [limit for limit in (game.max_turns, horizon) if limit is not None and limit > 0]
        if not limits:
            raise InvalidInput(f"{environment!r} does not say how long an episode may be; give a horizon of turns.")
        super().__init__(horizon=min(limits))
        game.max_turns = self.horizon  # so that an episode of that length has a reward
        self.instructions = game.system_prompt or ""
        self._success_reward = game.pass_threshold if success_reward is None else success_reward
        kinds = [kind for kind in (game.dataset, game.eval_dataset) if kind is not None]
        self._examples = {split: kinds[0 if split == "train" else -1] for split in _SPLITS}
        self._bounds = _SPLITS if len(kinds) == 1 else _HELD_OUT
        self._runner = asyncio.Runner()
        weakref.finalize(self, self._runner.close)
        self._rollout: Any = None
        self._text = ""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return examples, each of which belongs to one split."""
        first, last = (int(bound * len(self._examples[split])) for bound in self._bounds[split])
        return [Task(f"{split}-{number}", {"split": split, "example": number}) for number in range(first, last)]

    def start(self, task: Task) -> None:
        """Begin the rollout of the task's example, and cancel one that was left before its end."""
        if self._rollout is not None:
            run_async(self._rollout.leave(), self._runner)
        example = self._examples[task.options["split"]][task.options["example"]]
        self._rollout = self._verifiers.Rollout(self._game, example)
        self._say(None)

    def observe(self) -> Observation:
        return Observation(self._text)

    def act(self, action: str) -> Outcome:
        """Reply; the rubric's reward comes with the end."""
        result, failures = self._say(self.reply(action))
        if result is None:
            return Outcome(0.0, illegal=bool(failures))
        reward = result["reward"]
        success = reward is not None and reward >= self._success_reward
        return Outcome(reward, ended=True, success=success, illegal=bool(failures))

    def reply(self, action: str) -> str:
        """Return the message in which the environment's parser finds ``action``; a subclass may write another one.

        The other fields of an ``XMLParser`` are empty, as is the thought that a ``ThinkParser`` expects first.
        """
        return str(self._verifiers.written(self._game.parser, action))

    def close(self) -> None:
        self._runner.close()

    def _say(self, words: str | None) -> tuple[Mapping[str, Any] | None, list[str]]:
        """Give the rollout a reply, if any; return its result, if it has ended, and what went wrong in it."""
        with drawn_from(int(self.np_random.integers(2**32))), self._verifiers.Failures() as failures:
            messages, result = run_async(self._rollout.answer(words), self._runner)
        if result is not None and (words is None or result.get("error")):
            raise RuntimeError(f"the rollout ended with {result.get('error_chain') or 'no turn'}")
        texts = [text for text in map(self._verifiers.text_of, messages) if text != self.instructions]
        self._text = "\n".join([*texts, *failures.said]) or "The episode is over."
        return result, failures.said


def _verifiers() -> ModuleType:
    """Import verifiers, where it is installed, as the first environment is made.

    Raises:
        InvalidInput: it cannot be imported.

    """
    try:
        from reflectrl.envs.verifiers_game import rollout
    except ImportError as error:
        raise InvalidInput(
            f"verifiers needs its package, version 0.3, which cannot be imported ({error}); run pip install "
            "'reflectrl[verifiers]'."
        ) from error
    return rollout
