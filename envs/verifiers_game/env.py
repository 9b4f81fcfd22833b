"""``VerifiersGame``: an environment of the package verifiers, played by its own rollout and rewarded by its rubric."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task
from reflectrl.envs.gymnasium_game import drawn_from

_SPLITS = {"train": (0.0, 0.5), "validation": (0.5, 0.75), "test": (0.75, 1.0)}
"""Where each split begins and ends in examples of one kind."""
_HELD_OUT = {"train": (0.0, 1.0), "validation": (0.0, 0.5), "test": (0.5, 1.0)}
"""Where each split begins and ends in its kind of examples, if there are some for evaluation, too."""


class VerifiersGame(NatLangEnv):
    """Environment of verifiers (0.3) that is played by text, in one turn or several. It has no menus and no expert.

    The environment's own rollout runs, with the player in place of its model: its last messages are the state, its
    system prompt is the instructions, and its rubric gives one reward, at the end. A player writes one line; ``reply``
    puts it where the environment's parser looks for the answer. Where a reward function raises, verifiers counts 0: the
    step is then marked as illegal, and the last state says why. Examples for training are the training tasks, and those
    for evaluation the others; where there is one kind only, it is divided 2:1:1. Examples that repeat one of a split
    before are left out. An end by verifiers' ``max_turns`` counts as terminated.

    Args:
        environment: the name of an installed environment, or ``module:callable``, where the callable returns one.
        args: arguments of its ``load_environment`` or of the callable.
        success_reward: an episode is a success if its reward is at least this; absent: the environment's
            ``pass_threshold``.
        horizon: maximum number of turns; needed where the environment has no ``max_turns``.

    Raises:
        InvalidInput: there is no such environment, it needs tools, a judge or rewards of whole groups, or all of its
            examples for validation or test repeat others.
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
            self._rollouts = self._verifiers.made(environment, args or {})
        weakref.finalize(self, self._rollouts.end)
        self._game = game = self._rollouts.game
        limits = [limit for limit in (game.max_turns, horizon) if limit is not None and limit > 0]
        if not limits:
            raise InvalidInput(f"{environment!r} does not say how long an episode may be; give a horizon of turns.")
        super().__init__(horizon=min(limits))
        game.max_turns = self.horizon  # so that an episode of that length has a reward
        self.instructions = game.system_prompt or ""
        self._success_reward = game.pass_threshold if success_reward is None else success_reward
        kinds = [kind for kind in (game.dataset, game.eval_dataset) if kind is not None]
        self._examples = {split: kinds[0 if split == "train" else -1] for split in _SPLITS}
        self._numbers = self._divided(_SPLITS if len(kinds) == 1 else _HELD_OUT)
        self._text = ""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return examples; those of validation and test differ from all of the splits before."""
        return [Task(f"{split}-{number}", {"split": split, "example": number}) for number in self._numbers[split]]

    def start(self, task: Task) -> None:
        """Begin the rollout of the task's example, and cancel one that was left before its end."""
        self._rollouts.leave()
        self._say(self._examples[task.options["split"]][task.options["example"]])

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
        self._rollouts.end()

    def _divided(self, bounds: Mapping[str, tuple[float, float]]) -> Mapping[str, Sequence[int]]:
        """Return the numbers of each split's examples, without those that repeat one of a split before."""
        divided: dict[str, list[int]] = {}
        known: set[str] = set()
        for split, examples in self._examples.items():
            first, last = (int(bound * len(examples)) for bound in bounds[split])
            asked = {number: self._verifiers.asked(examples[number], self.horizon) for number in range(first, last)}
            divided[split] = [number for number, question in asked.items() if question not in known]
            if asked and not divided[split]:
                raise InvalidInput(
                    f"each of the {len(asked)} {split} examples occurs among those before, so nothing would be held "
                    "out; give args with which the environment has more different examples."
                )
            known.update(asked.values())
        return divided

    def _say(self, words: str | Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, list[str]]:
        """Give a reply, or begin with an example; return the result of a rollout that ended, and what went wrong."""
        with drawn_from(int(self.np_random.integers(2**32))), self._verifiers.Failures() as failures:
            messages, result = self._rollouts.answer(words)
        if result is not None and (not isinstance(words, str) or result.get("error")):
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
        from reflectrl.envs.verifiers_game import loading
    except ImportError as error:
        raise InvalidInput(
            f"verifiers needs its package, version 0.3, which cannot be imported ({error}); run pip install "
            "'reflectrl[verifiers]'."
        ) from error
    return loading
