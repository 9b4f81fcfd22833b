"""``TextGame``: an environment of this library for verifiers, and ``export_env``, which writes a package with one."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path
from pprint import pformat
from typing import Any, NamedTuple

import verifiers as vf
from datasets import Dataset

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Task, make_env
from reflectrl.core.errors import ReflectRLError
from reflectrl.core.files import in_one_move, write_text
from reflectrl.core.registry import env_class
from reflectrl.core.seeds import derive_seed
from reflectrl.core.text import shown
from reflectrl.prompts.chats import index_of, read_answer
from reflectrl.prompts.menu import make_menu

ILLEGAL_REWARD = -0.1
"""Reward of a reply that names no action of the menu."""
_ANSWER = "Answer with one line{}. You may think first, between <think> and </think>."


class TextGame(vf.MultiTurnEnv):
    """Environment of verifiers that plays one of this library; its reward is the return, its metric the success.

    A message shows the state with its menu, and the reply has to be one of the actions, up to case and spaces, on the
    first line after any thought. Any other reply takes a turn and leaves the state as it is. The dataset holds the
    tasks, training ones to train with and test ones to evaluate: their first states are shown when a rollout begins,
    because thousands of resets take minutes. All rollouts of a task have one seed.
    """

    def __init__(self, name: str, options: Mapping[str, Any], illegal_reward: float = ILLEGAL_REWARD) -> None:
        """Play the environment ``name``, made with ``options``; ``illegal_reward`` is that of a reply off the menu."""
        self._make = partial(make_env, name, **options)
        self._illegal_reward = illegal_reward
        env = self._make()
        self._turns = env.horizon
        how = _ANSWER.format(", one of the actions below in the same words" if env.max_actions else "")
        rubric = vf.Rubric([episode_return])
        rubric.add_metric(success)
        super().__init__(
            dataset=partial(_rows, env.split_tasks("train")),
            eval_dataset=partial(_rows, env.any_tasks("test") or env.split_tasks("train")),
            system_prompt=f"{env.instructions}\n\n{how}".strip(),
            rubric=rubric,
        )
        env.close()

    async def setup_state(self, state: Any) -> Any:
        """Begin the episode, and show its first state in place of the task's name."""
        state["return"], state["success"], state["replies"] = 0.0, False, 0
        task = Task(**state["info"])
        with _in_their_words():
            state["game"] = env = self._make()
            env.reset(seed=derive_seed("verifiers", task.id), options={"task": task})
        state["prompt"] = [*state["prompt"][:-1], vf.UserMessage(content=_text_of(env.observation))]
        return state

    async def env_response(self, messages: Any, state: Any, **given: Any) -> Any:  # noqa: ARG002
        """Play the reply, and return the next state."""
        env: NatLangEnv = state["game"]
        state["replies"] += 1
        answer = read_answer(str(messages[-1]["content"] or ""), "text")
        menu = make_menu(env.observation.actions, "numbers")
        index = index_of(answer.action, menu, "text") if menu.actions else None
        said, ended = "", False
        if menu.actions and index is None:
            state["return"] += self._illegal_reward
            said = f"{shown(answer.action)} is none of the actions.\n"
        else:
            with _in_their_words():
                action = answer.action if index is None else menu.actions[index]
                _, reward, terminated, truncated, info = env.step(action)
            state["return"] += reward
            state["success"], ended = info["success"], terminated or truncated
        ended = ended or state["replies"] >= self._turns
        reply = [vf.UserMessage(content=said + _text_of(env.observation.final if ended else env.observation))]
        if ended:
            state["final_env_response"] = reply
        return reply

    @vf.cleanup
    async def leave(self, state: Any) -> None:
        """Close the environment of a rollout."""
        if (env := state.pop("game", None)) is not None:
            env.close()


async def episode_return(state: Any) -> float:
    """Return the sum of the environment's rewards, and of those of replies that named no action."""
    return float(state["return"])


async def success(state: Any) -> float:
    """Return 1 for an episode that succeeded, as the environment says."""
    return float(state["success"])


class Exported(NamedTuple):
    """A package that was written."""

    project: str
    """Its name."""
    note: str
    """What has to be there besides, in a sentence; empty if pip brings all."""


def export_env(name: str, options: Mapping[str, Any], folder: Path) -> Exported:
    """Write a package to the new ``folder`` whose ``load_environment`` plays an environment.

    Raises:
        InvalidInput: the environment cannot be made with ``options``, or the folder exists or cannot be written.

    """
    make_env(name, **options).close()
    if folder.exists() or folder.is_symlink():
        raise InvalidInput(f"{folder} exists already; choose another folder, or remove it.")
    project = f"reflectrl-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"
    module = env_class(name).__module__.partition(".")[0]
    packages = packages_distributions().get(module, [])[:1] if module != "reflectrl" else []
    note = _ALONE.format(module) if module != "reflectrl" and not packages else ""
    given = {
        "name": name,
        "project": project,
        "module": project.replace("-", "_"),
        "title": json.dumps(f"The environment {name} of reflectrl, for verifiers"),
        "options": pformat(dict(options), width=100),
        "requires": json.dumps(["reflectrl[verifiers]", *packages]),
        "note": f"\n{note}\n" if note else "",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(folder) as fresh:
            fresh.mkdir()
            write_text(fresh / "pyproject.toml", _PROJECT.format_map(given))
            write_text(fresh / f"{given['module']}.py", _MODULE.format_map(given))
            write_text(fresh / "README.md", _README.format_map(given))
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}; choose another place.") from error
    return Exported(project, note)


_ALONE = (
    "The module `{0}` belongs to no installed package, so pip does not bring it: where the package is used, put `{0}` "
    "where Python finds it, or make a package of it and export again."
)
_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "0.1.0"
description = {title}
readme = "README.md"
requires-python = ">=3.11"
dependencies = {requires}

[tool.setuptools]
py-modules = ["{module}"]
"""
_MODULE = '''\
"""An environment of reflectrl, for verifiers."""

from typing import Any

from reflectrl.share.verifiers_package import ILLEGAL_REWARD, TextGame

OPTIONS = {options}


def load_environment(illegal_reward: float = ILLEGAL_REWARD, **options: Any) -> TextGame:
    """Return the environment; ``options`` are its own, in addition to or in place of ``OPTIONS``."""
    return TextGame({name!r}, {{**OPTIONS, **options}}, illegal_reward)
'''
_README = """\
# {project}

The environment `{name}` of reflectrl, for verifiers 0.3. The reward is the return, the metric `success` what the
environment calls one. A reply has to be one of the actions that the last message lists; any other takes a turn and
brings `illegal_reward`.
{note}
    pip install -e .
    vf-eval {project} -m MODEL -b http://127.0.0.1:8000/v1
"""


def _rows(tasks: Sequence[Task]) -> Dataset:
    """Return a dataset of tasks; the options are text, since those of different tasks may differ in type."""
    info = [json.dumps({"id": task.id, "options": dict(task.options)}) for task in tasks]
    return Dataset.from_dict({"question": [task.id for task in tasks], "answer": [""] * len(tasks), "info": info})


def _text_of(observation: Observation) -> str:
    """Return a state with its menu."""
    menu = "".join(f"\n- {action}" for action in observation.actions)
    return f"{observation.full_text}\n\nActions:{menu}" if menu else observation.full_text


@contextlib.contextmanager
def _in_their_words() -> Iterator[None]:
    """Raise an environment's failure as an error of verifiers, which ends one rollout and is kept in its record."""
    try:
        yield
    except ReflectRLError as error:
        raise vf.Error(str(error)) from error
