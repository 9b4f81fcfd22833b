"""``VerifiersGame``: an environment of the package verifiers, played by its own rollout and rewarded by its rubric."""

from __future__ import annotations

import asyncio
import logging
import signal
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import datasets

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task
from reflectrl.core.event_loop import run_async
from reflectrl.core.text import one_line, shown
from reflectrl.envs.gymnasium_game import drawn_from

try:
    import verifiers as vf
    from verifiers.types import Response, ResponseMessage
except ImportError as error:
    raise InvalidInput(
        f"verifiers needs the package of that name, 0.3, which cannot be imported ({error}); run pip install "
        "'reflectrl[verifiers]'."
    ) from error

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
        with drawn_from(0):
            self._game = game = _made(environment, args or {})
        limits = [limit for limit in (game.max_turns, horizon) if limit is not None and limit > 0]
        if not limits:
            raise InvalidInput(f"{environment!r} does not say how long an episode may be; give a horizon of turns.")
        super().__init__(horizon=min(limits))
        game.max_turns = self.horizon  # so that an episode of that length has a reward
        self.instructions = game.system_prompt or ""
        self._success_reward = game.pass_threshold if success_reward is None else success_reward
        kinds = [kind for kind in (game.build_dataset(), game.build_eval_dataset()) if kind is not None]
        self._examples = {split: kinds[0 if split == "train" else -1] for split in _SPLITS}
        self._bounds = _SPLITS if len(kinds) == 1 else _HELD_OUT
        self._runner = asyncio.Runner()
        weakref.finalize(self, self._runner.close)
        self._rollout: _Rollout | None = None
        self._text = ""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return examples, each of which belongs to one split."""
        first, last = (int(bound * len(self._examples[split])) for bound in self._bounds[split])
        return [Task(f"{split}-{number}", {"split": split, "example": number}) for number in range(first, last)]

    def start(self, task: Task) -> None:
        """Begin the rollout of the task's example, and cancel one that was left before its end."""
        if self._rollout is not None:
            run_async(self._rollout.leave(), self._runner)
        self._rollout = _Rollout(self._game, self._examples[task.options["split"]][task.options["example"]])
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
        parser = self._game.parser
        if isinstance(parser, vf.XMLParser):
            fields = parser.get_fields()
            answer = parser.answer_field if parser.answer_field in fields else fields[-1]
            return str(parser.format(**{**dict.fromkeys(fields, ""), answer: action}))
        return f"<think></think>\n{action}" if isinstance(parser, vf.ThinkParser) else action

    def close(self) -> None:
        self._runner.close()

    def _say(self, words: str | None) -> tuple[Mapping[str, Any] | None, list[str]]:
        """Give the rollout a reply, if any; return its result, if it has ended, and what went wrong in it."""
        assert self._rollout is not None
        with drawn_from(int(self.np_random.integers(2**32))), _Failures() as failures:
            messages, result = run_async(self._rollout.answer(words), self._runner)
        if result is not None and (words is None or result.get("error")):
            raise RuntimeError(f"the rollout ended with {result.get('error_chain') or 'no turn'}")
        texts = [text for text in map(_text_of, messages) if text != self.instructions]
        self._text = "\n".join([*texts, *failures.said]) or "The episode is over."
        return result, failures.said


class _Rollout(vf.Client):
    """A rollout of verifiers, whose model this is: it passes on what is asked, and waits for the reply."""

    def __init__(self, game: Any, example: Mapping[str, Any]) -> None:
        super().__init__(None)
        self._game, self._example = game, example
        self._task: asyncio.Task[Any] | None = None
        self._asked: asyncio.Queue[Sequence[Any]] = asyncio.Queue()
        self._said: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, words: str | None) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
        """Give a reply, or begin; return the messages since then, and the result of a rollout that has ended."""
        if self._task is None:
            self._task = asyncio.create_task(self._game.run_rollout(self._example, self, "player", {}))
        if words is not None:
            self._said.put_nowait(words)
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait((asked, self._task), return_when=asyncio.FIRST_COMPLETED)
        result = None if asked.done() else self._task.result()
        messages = asked.result() if result is None else result["completion"] or ()
        asked.cancel()
        replies = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
        return messages[replies[-1] + 1 :] if words is not None and replies else messages, result

    async def leave(self) -> None:
        """Cancel the rollout."""
        if self._task is not None and self._task.cancel():
            await asyncio.wait((self._task,))

    async def get_native_response(self, prompt: Sequence[Any], *given: Any, **settings: Any) -> str:  # noqa: ARG002
        self._asked.put_nowait(prompt)
        return await self._said.get()

    async def from_native_response(self, response: str) -> Response:
        message = ResponseMessage(content=response, finish_reason="stop", is_truncated=False)
        return Response(id="", created=0, model="player", message=message)

    def setup_client(self, config: Any) -> None:  # noqa: ARG002 - the rest of the interface
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        return messages, {}

    async def raise_from_native_response(self, response: str) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


class _Failures(logging.Handler):
    """What verifiers says of failures while this is open; it logs them, and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(one_line(record.getMessage()))

    def __enter__(self) -> _Failures:
        logging.getLogger("verifiers").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("verifiers").removeHandler(self)


def _made(environment: str, args: Mapping[str, Any]) -> Any:
    """Return an environment of verifiers; its constructor takes the process's signals, which are put back."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with _Failures():
            load = resolve_name(environment) if ":" in environment else partial(vf.load_environment, environment)
            game = load(**args)
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        if bars:
            datasets.enable_progress_bars()
    if not isinstance(game, vf.MultiTurnEnv):
        raise InvalidInput(
            f"{environment!r} is {shown(game)}; expected a MultiTurnEnv of verifiers, such as a SingleTurnEnv."
        )
    needs = {
        "tools": bool(game.tool_defs),
        "rewards of whole groups": game.requires_group_rollouts,
        "a judge": any(isinstance(rubric, vf.JudgeRubric) for rubric in _rubrics(game.rubric)),
    }
    for need in (need for need, needed in needs.items() if needed):
        raise InvalidInput(
            f"{environment!r} needs {need}, which a player who writes a line cannot have here; choose another."
        )
    return game


def _rubrics(rubric: Any) -> Iterator[Any]:
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from _rubrics(part)


def _text_of(message: Any) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    if None in parts:
        raise InvalidInput("a message of the environment shows a picture or sound; only texts can be played.")
    return " ".join(parts)
