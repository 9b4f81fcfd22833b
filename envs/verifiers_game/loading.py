"""Environments of verifiers: made, and read. Needs the package to be imported."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import datasets
import verifiers as vf

from reflectrl.core import InvalidInput
from reflectrl.core.text import one_line, shown
from reflectrl.envs.verifiers_game.rollout import Rollouts


class Failures(logging.Handler):
    """What verifiers says of failures while this is open; it logs them, and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(one_line(record.getMessage()))

    def __enter__(self) -> Failures:
        logging.getLogger("verifiers").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("verifiers").removeHandler(self)


_ALONE = threading.RLock()
"""Held while an environment is made, which changes settings of the whole process."""


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep verifiers from showing bars and from taking the process's signals, which is an error in other threads."""
    module: Any = sys.modules[vf.Environment.__module__]
    with _ALONE:
        bars, theirs = datasets.is_progress_bar_enabled(), module.signal
        datasets.disable_progress_bars()
        module.signal = SimpleNamespace(**{**vars(signal), "signal": lambda number, _: signal.getsignal(number)})
        try:
            yield
        finally:
            module.signal = theirs
            if bars:
                datasets.enable_progress_bars()


def made(environment: str, args: Mapping[str, Any]) -> Rollouts:
    """Return the rollouts of an environment of verifiers."""
    with _undisturbed():
        with Failures():
            load = resolve_name(environment) if ":" in environment else partial(vf.load_environment, environment)
            game = load(**args)
        if not isinstance(game, vf.MultiTurnEnv):
            raise InvalidInput(
                f"{environment!r} is {shown(game)}; expected a MultiTurnEnv or SingleTurnEnv of verifiers."
            )
        game.build_dataset()
        game.build_eval_dataset()
    needs = {
        "tools": bool(game.tool_defs),
        "rewards of whole groups": game.requires_group_rollouts,
        "a judge": any(isinstance(rubric, vf.JudgeRubric) for rubric in _rubrics(game.rubric)),
    }
    for need in (need for need, needed in needs.items() if needed):
        raise InvalidInput(
            f"{environment!r} needs {need}, which a player who writes a line cannot have here; choose another."
        )
    return Rollouts(game)


def _rubrics(rubric: Any) -> Iterator[Any]:
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from _rubrics(part)


def asked(example: Mapping[str, Any], turns: int) -> str:
    """Return what makes an example a different one: its prompt, and in more turns than one what the prompt may hide."""
    return repr([example.get(part) for part in (("prompt",) if turns == 1 else ("prompt", "answer", "info"))])


def text_of(message: Any) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    if None in parts:
        raise InvalidInput("a message of the environment shows a picture or sound; only texts can be played.")
    return " ".join(parts)


def written(parser: Any, action: str) -> str:
    """Return the message in which a parser finds ``action``; its other fields, or the thought before it, are empty."""
    if isinstance(parser, vf.XMLParser):
        fields = parser.get_fields()
        answer = parser.answer_field if parser.answer_field in fields else fields[-1]
        return str(parser.format(**{**dict.fromkeys(fields, ""), answer: action}))
    return f"<think></think>\n{action}" if isinstance(parser, vf.ThinkParser) else action
