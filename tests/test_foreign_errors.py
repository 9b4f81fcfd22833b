"""Errors of other people's code: whatever their class and whatever ``str`` does, they become one sentence."""

from __future__ import annotations

import ast
import asyncio
import signal

import pytest
from command_line import refused
from corridor import Corridor, corridor
from faulty import restored_registry
from test_rooms import modules

from reflectrl.core import Task, register_env
from reflectrl.core.errors import EnvFailed, InvalidInput, raised
from reflectrl.core.foreign import message_of
from reflectrl.core.registry import foreign_code
from reflectrl.core.text import first_line


class Unprintable(Exception):
    """Error that can be neither printed nor shown."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Farewell(BaseException):
    """Error that is not an ``Exception``."""


class UnprintableExit(SystemExit):
    """Exit whose message calls for another exit."""

    def __str__(self):
        raise SystemExit(0)


class Refusal(InvalidInput):
    """Refusal of an environment that cannot be printed."""

    def __str__(self):
        raise RuntimeError("no words")


UNPRINTABLE = "raised Unprintable: its message cannot be printed, since __str__ raises RuntimeError"
ERRORS = {
    "an unprintable one": (Unprintable(), UNPRINTABLE),
    "a BaseException": (Farewell("good bye"), "raised Farewell: good bye"),
    "GeneratorExit": (GeneratorExit(), "raised GeneratorExit"),
    "a cancelled task": (asyncio.CancelledError(), "raised CancelledError"),
    "SystemExit": (SystemExit(3), r"called sys\.exit\(3\)"),
    "an exit that cannot be shown": (SystemExit(Unprintable()), r"called sys\.exit\(<Unprintable instance"),
    "an exit whose words exit": (UnprintableExit(3), r"called sys\.exit\(3\)"),
}
anything = pytest.mark.parametrize("which", ERRORS)


def fail(error):
    raise error


@anything
@pytest.mark.parametrize("method", ["start", "observe", "act", "expert", "read_thought", "tasks", "benchmark"])
def test_each_becomes_a_sentence_wherever_an_environment_raises_it(which, method):
    error, words = ERRORS[which]
    env = corridor(**{method: lambda *_: fail(error)})
    with pytest.raises(EnvFailed, match=f"'corridor' failed .*it {words}") as caught:  # noqa: PT012
        env.split_tasks("train")
        env.split_benchmark("train", 2)
        env.reset(seed=0, options={"task": Task("train-0", {"room": 0})})
        env.reading("Room 0.")
        env.hints()
        env.step("right")
    assert caught.value.__cause__ is error


@anything
def test_each_becomes_a_sentence_where_an_environment_is_made(which):
    error, words = ERRORS[which]
    with pytest.raises(InvalidInput, match=f"^it cannot be made: it {words}"), foreign_code("it cannot be made"):
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(128 + signal.SIGTERM), Refusal()])
def test_ctrl_c_signals_and_refusals_pass(error):
    with pytest.raises(type(error)) as caught:
        corridor(start=lambda *_: fail(error)).reset(seed=0)
    assert caught.value is error


def test_words_are_found_for_every_error():
    assert message_of(ValueError("a\nb")) == "a\nb"
    assert raised(ValueError("a\nb")) == "raised ValueError: a"
    assert first_line(Refusal()) == "its message cannot be printed, since __str__ raises RuntimeError"


def test_the_command_line_says_so_too():
    with restored_registry():
        register_env("odd", type("Odd", (Corridor,), {"start": lambda *_: fail(Refusal())}))
        assert refused("check-env", "odd").startswith("error: its message cannot be printed")


def test_no_module_prints_an_error_of_any_class_by_itself():
    """Where ``Exception`` or ``BaseException`` is caught, words come from ``message_of`` and what is built on it."""
    found = []
    for name, path in modules():
        for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(handler, ast.ExceptHandler) and {"Exception", "BaseException"} & _names(handler.type):
                found += [f"{name}: {ast.unparse(node)}" for node in ast.walk(handler) if _prints(node, handler.name)]
    assert found == []


def _names(kinds):
    return {node.id for node in ast.walk(kinds) if isinstance(node, ast.Name)} if kinds else {"BaseException"}


def _prints(node, error):
    if isinstance(node, ast.FormattedValue):
        shown = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr", "print"):
        shown = next(iter(node.args), None)
    else:
        return False
    return error is not None and isinstance(shown, ast.Name) and shown.id == error
