from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from reflectrl.config import Recipe
from reflectrl.core import Hints, InvalidInput, NatLangEnv, Observation, Outcome, Task, register_env
from reflectrl.data_gen import generate
from reflectrl.data_gen.teachers import ExpertTeacher, Request
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import State, view

LAYOUT = PromptFormat()
HERE = Observation("A hall.", ("go east", "go west"))


def advise(hints: Hints) -> object:
    return asyncio.run(
        ExpertTeacher().advise(
            Request(view("reflector", LAYOUT, State(HERE, hints=hints), hints=True), LAYOUT.menu(HERE), mistaken=False)
        )
    )


def test_an_environment_without_an_expert_is_refused() -> None:
    with pytest.raises(InvalidInput, match="whose reflection\\(\\) says nothing"):
        advise(Hints())
    with pytest.raises(InvalidInput, match=r"expert\(\) answered None"):
        advise(Hints(None, "All is well."))


def test_an_expert_that_answers_off_the_menu_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"expert\(\) answered 'fly'; expected one of"):
        advise(Hints("fly", "All is well."))


class OneRoom(NatLangEnv):
    """Every task starts in the same state, so all of it is held out."""

    name = "one_room"

    def __init__(self) -> None:
        super().__init__(horizon=3)

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(split)]

    def start(self, task: Task) -> None:
        pass

    def observe(self) -> Observation:
        return HERE

    def act(self, action: str) -> Outcome:  # noqa: ARG002
        return Outcome(0.0)

    def expert(self) -> str:
        return "go east"


def test_an_environment_whose_every_state_is_held_out_is_refused(tmp_path: Path) -> None:
    register_env("one_room", OneRoom)
    recipe = Recipe.model_validate({"name": "test", "env": {"name": "one_room"}})
    with pytest.raises(InvalidInput, match="all 1 training tasks were played"):
        generate(recipe, tmp_path)
