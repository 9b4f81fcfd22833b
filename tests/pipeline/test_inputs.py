"""The inputs of a stage name every part of the recipe that the stage reads and that its result depends on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from trained_runs import SHORT, play_stages

from reflectrl.config import load_recipe
from reflectrl.core.settings import settings_fields
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.inputs import changed_inputs, stage_inputs

LIMITS = ("workers", "deadline_s", "on_failure", "max_failures", "max_memory_mb")
PICTURED = ("players.corrector", "players.rater", "eval.memory", "reflector_model", "players.reflector.player")
NO_INPUTS = {
    "gen-data": (
        "report_to",
        "budget",  # none here; what is chosen for one is among the other keys
        *(f"env.{name}" for name in LIMITS),
        *PICTURED,  # whose prompts have pictures; here, none has
    ),
    "sft": (
        "report_to",
        "budget",
        *(f"env.{name}" for name in LIMITS),
        *PICTURED,
        "rlft.lessons",  # environments of which prompts are checked for their length
    ),
    "rlft": (
        "report_to",
        "budget",
        *(f"env.{name}" for name in LIMITS),
        "eval.memory",
        *(f"rlft.{name}" for name in ("batch_size", "micro_batch_tokens", "save_every", "record_episodes")),
    ),
    "eval": ("report_to", "budget", *(f"env.{name}" for name in LIMITS), "eval.batch_size"),
}
"""What a stage reads although its result does not depend on it."""
WRITERS = ("model_dump", "model_dump_json", "outside_files", "remember", "preflight")
"""Functions that read the whole recipe: to write it down, for the files that it names, and for what it asks for."""


BRIEF = ("data.samples=60", "rlft.lessons.0.iterations=2", "rlft.episodes=3", "eval.episodes=3")


def recorded(section: Any, reads: set[str], path: str = "") -> Any:
    """Return a section of a recipe that adds the dotted keys that are read from it to ``reads``."""
    kind: Any = type(section)
    names = settings_fields(kind)
    for name in names:
        if hasattr(value := getattr(section, name), "__pydantic_fields__"):
            recorded(value, reads, f"{path}{name}.")

    def read(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in names and not hasattr(value, "__pydantic_fields__") and value != {} and not _being_written():
            reads.add(path + name)
        return value

    following = type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})
    object.__setattr__(section, "__class__", following)
    return section


def _being_written() -> bool:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in WRITERS:
        frame = frame.f_back
    return frame is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("number_line/nano_value", ("env.options.size=8", "players.reflector.player=self")),
        ("rap/nano", ()),
        ("gym_cards/nano_number_line_gtr", ("players.policy.max_new_tokens=8",)),
    ],
)
def test_a_stage_reads_its_inputs_and_what_no_result_depends_on(name: str, overrides: tuple[str, ...], tmp_path: Path):
    reads = set[str]()
    recipe = recorded(
        load_recipe(name, [*SHORT, *BRIEF, *overrides]).model_copy(deep=True), reads
    )  # its defaults are shared
    for stage in STAGES:
        reads.clear()
        play_stages(recipe, tmp_path / "run", stage)
        inputs, others = stage_inputs(recipe, stage), NO_INPUTS[stage]
        unread = {key for key in reads if any(f"{key}.".startswith(f"{each}.") for each in others)}
        known = {key for key in reads if any(f"{each}.".startswith(f"{key}.") for each in inputs)}
        assert known
        assert sorted(reads - known - unread) == []


def changes(stage: str, *overrides: str, after: tuple[str, ...] = (), name: str = "number_line/nano") -> list[str]:
    """Return the inputs of a stage, done with ``after``, that ``overrides`` change."""
    done = stage_inputs(load_recipe(name, after), stage)
    return [key for key, _, _ in changed_inputs(load_recipe(name, [*after, *overrides]), stage, done)]


def test_rows_show_a_memory_only_if_something_is_trained() -> None:
    rows_alone = ("rlft=null", "eval.policies=[random]", "eval.controls=[]", "eval.trials=null")
    assert changes("gen-data", "sft.enabled=false", after=rows_alone) == []
    assert changes("gen-data", "sft.enabled=false", after=rows_alone, name="rap/nano") == ["sft.enabled"]


def test_rows_show_pictures_to_a_reflector_that_reads_them() -> None:
    pictured, reflector = "gym_cards/nano_number_line_image_nothought", "players.reflector.player"
    assert changes("gen-data", f"{reflector}=local") == []
    assert changes("gen-data", f"{reflector}=local", name=pictured) == [reflector]


def test_the_address_of_a_model_that_is_checked_there_is_no_input() -> None:
    def at(port: int, player: str) -> str:
        there = f"base_url: 'http://127.0.0.1:{port}/v1', replicas: ['http://127.0.0.1:{port + 1}/v1']"
        return f"players.reflector={{player: {player}, endpoint: {{model: m, {there}}}}}"

    assert changes("rlft", at(2, "server"), after=(at(1, "server"),)) == []
    thinks = ("prompt.action_mode=thought_choice", "model.lora={r: 4}", "players.reflector.player=none")
    there = (*thinks, "eval.controls=[]", "players.policy.server={model: m, base_url: 'http://127.0.0.1:1/v1'}")
    other = "players.policy.server={model: n, base_url: 'http://127.0.0.1:2/v1', replicas: ['http://127.0.0.1:3/v1']}"
    assert changes("rlft", other, after=there) == ["players.policy.server.model"]
    assert changes("sft", other, after=there) == []
    assert changes("rlft", at(2, "remote"), after=(at(1, "remote"),)) == ["players.reflector.endpoint.base_url"]


def test_the_length_of_reflections_is_an_input_of_those_who_write_them() -> None:
    longer = "players.reflector.max_new_tokens=80"
    assert changes("gen-data", longer) == []
    assert changes("sft", longer) == ["players.reflector.max_new_tokens"]
    assert changes("sft", longer, after=("players.reflector.player=self",)) == ["players.reflector.max_new_tokens"]
    remote = ("players.reflector.player=remote",)
    assert changes("sft", longer, after=remote) == []
    assert changes("rlft", longer, after=remote) == ["players.reflector.max_new_tokens"]
