"""Conversations of other projects become demonstrations by a replay of their actions in the environment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import reflectrl, refused

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, WorkFailed, make_env
from reflectrl.data_gen import generate
from reflectrl.data_gen.conversations import import_conversations, read_conversations
from reflectrl.data_gen.rows import read_samples

RULES = "Play. First think, then act:\nThought: your thoughts.\nAction: your action"
START = "Observation: Number 6, target 8."


def eto(*said: str, **fields: str) -> dict[str, Any]:
    """Return a record in ETO's layout: rules, OK, the first state, then what the player and the environment say."""
    turns = [RULES, "OK", START, *said]
    return {"id": "a_0", **fields, "conversations": [{"role": role, "content": text} for role, text in spoken(turns)]}


def spoken(turns: list[str]) -> list[tuple[str, str]]:
    return [("assistant" if at % 2 else "user", text) for at, text in enumerate(turns)]


WON = eto("Thought: Eight is\nabove six.\nAction:  Add  one\n", "Number 7, target 8.", "Action: add one")


def written(path: Path, *records: object) -> Path:
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def test_the_states_are_those_of_the_environment_and_the_thoughts_become_reflections(tmp_path: Path) -> None:
    done = import_conversations(
        written(tmp_path / "eto.json", WON), "number_line", {}, tmp_path / "new" / "shown.jsonl"
    )
    assert (done.episodes, done.samples, done.left_out) == (1, 2, {})
    header, [first, last] = read_samples(tmp_path / "new" / "shown.jsonl")
    env = make_env("number_line")
    env.reset(seed=0, options={"task": first.task})
    assert (header.env, first.task.id, first.observation) == ("number_line", "6-to-8", env.observation)
    assert (first.reflection, first.action) == ("Eight is above six.", "add one")
    assert (last.reflection, last.past, last.previous) == ("", ("add one",), first.reflection)


def test_an_imported_file_is_taught(tmp_path: Path) -> None:
    shown = tmp_path / "shown.jsonl"
    import_conversations(written(tmp_path / "eto.json", WON), "number_line", {}, shown)
    section = {"demonstrations": [str(shown)], "samples": 5}
    players = {"reflector": {"player": "none"}}
    recipe = Recipe.model_validate({"name": "t", "env": {"name": "number_line"}, "data": section, "players": players})
    summary = generate(recipe, tmp_path / "run")
    assert summary is not None
    assert summary.demonstrated == 2


@pytest.mark.parametrize(
    "record",
    [
        {
            "conversations": [
                {"from": who, "value": text} for who, text in (("human", START), ("gpt", "Action: add one"))
            ]
        },
        {"messages": [{"role": role, "content": text} for role, text in spoken([START, "Action: add one"])]},
        {**eto("<think>Up.</think>\nAction: add one"), "loss": True},
    ],
)
def test_layouts_of_several_projects_are_read(record: dict[str, Any], tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f"{json.dumps(record)}\n" * 2)
    for path in (lines, written(tmp_path / "list.json", record, record)):
        first, second = read_conversations(path)
        assert first.actions == second.actions == ("add one",)
        assert " observation: number 6, target 8. " in first.beginning
        assert first.thoughts in (("",), ("Up.",))


@pytest.mark.parametrize("fields", [{"task": "6-to-8"}, {"game_file": "data/json_2.1.1/train/6-to-8"}])
def test_a_task_is_found_by_an_id_in_the_record(fields: dict[str, str], tmp_path: Path) -> None:
    unquoted = {**WON, **fields, "conversations": [turn for turn in WON["conversations"] if turn["content"] != START]}
    done = import_conversations(written(tmp_path / "a.json", unquoted), "number_line", {}, tmp_path / "a.jsonl")
    assert done.episodes == 1


def test_what_does_not_replay_is_counted_by_its_reason(tmp_path: Path) -> None:
    flies = eto("Action: add one", "...", "Action: fly", "...", "Action: add one")
    stops = eto("Action: add one")
    strays = eto(*(["Action: subtract one", "..."] * 6 + ["Action: add one", "..."] * 6), task="6-to-8")
    elsewhere = {**WON, "conversations": [{"role": "assistant", "content": "Action: add one"}]}
    calls = {**WON, "conversations": [*WON["conversations"], {"role": "assistant", "content": None}]}
    path = written(tmp_path / "eto.json", WON, flies, stops, WON, strays, elsewhere, eto("I give up."), calls)
    done = reflectrl("data", "import", path, "number_line", "--out", tmp_path / "shown.jsonl")
    assert (done.code, done.out) == (0, f"{tmp_path}/shown.jsonl: 2 episodes, 4 samples\n")
    assert done.err.replace(str(path), "FILE").splitlines() == [
        "left out: 1 conversation with an action that is not possible at that point (first: FILE, record 2, 'fly')",
        "left out: 2 conversations whose actions stop before the end of the episode (first: FILE, record 3)",
        "left out: 1 conversation whose episode does not succeed (first: FILE, record 5)",
        "left out: 1 conversation with no matching training task, by id or first observation (first: FILE, record 6)",
        "left out: 1 conversation with a turn that is not plain text (first: FILE, record 8)",
    ]
    seeds = [sample.seed for sample in read_samples(tmp_path / "shown.jsonl")[1]]
    assert seeds == [0, 0, 1, 1]  # or the rows of both would count as one episode


def test_of_tasks_that_begin_alike_the_one_in_which_the_actions_succeed_is_taken(tmp_path: Path) -> None:
    beginning = "The same room."
    turns = [("user", beginning), ("assistant", "Action: open the blue door")]
    record = {"messages": [{"role": role, "content": text} for role, text in turns]}
    path = written(tmp_path / "a.json", record)
    import_conversations(path, "alike_rooms:AlikeRooms", {}, tmp_path / "a.jsonl")
    assert [sample.task.id for sample in read_samples(tmp_path / "a.jsonl")[1]] == ["blue"]


@pytest.mark.parametrize("said", ["Action:\n```\nadd one\n```", "Action: ```text\n add one\n```"])
def test_an_action_may_stand_in_a_code_block(said: str, tmp_path: Path) -> None:
    [conversation] = read_conversations(written(tmp_path / "a.json", eto(said)))
    assert conversation.actions == ("add one",)


def test_names_of_parts_keep_their_case_and_other_words_need_not(tmp_path: Path) -> None:
    more = eto("Action: Increase by ONE", "...", "Action: increase  by one")
    path, rule = written(tmp_path / "a.json", more), "INCREASE by {HowMuch}=add {HowMuch}"
    assert import_conversations(path, "number_line", {}, tmp_path / "a.jsonl", reword=[rule]).samples == 2


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("put {1}=move {1}", r"names a part {1}, which does not begin with a letter"),
        ("put {a} on {a}=move {a}", r"names the part {a} twice"),
        ("put {a}=move {A}", r"has {A} after the '=' and not before it"),
        ("put {a}", r"was given; expected such as"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_reason(rule: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"--reword {rule!r} {why}")):
        import_conversations(tmp_path / "none.json", "number_line", {}, tmp_path / "a.jsonl", reword=[rule])


def test_an_environment_without_menus_takes_the_actions_as_they_are(tmp_path: Path) -> None:
    turns = ["Wanted: the red cat.", "Action: cat", "Nobody knows 'cat'.", "Thought: Both words.\nAction: red cat"]
    record = {"messages": [{"role": role, "content": text} for role, text in spoken(turns)]}
    done = import_conversations(written(tmp_path / "a.json", record), "orders:Orders", {}, tmp_path / "a.jsonl")
    assert done.samples == 2
    assert [sample.action for sample in read_samples(tmp_path / "a.jsonl")[1]] == ["cat", "red cat"]


def test_nothing_is_replaced_and_nothing_is_left_half_written(tmp_path: Path) -> None:
    path, mine = written(tmp_path / "eto.json", WON), tmp_path / "mine.jsonl"
    mine.write_text("mine")
    for out in (mine, tmp_path):
        assert str(out) in refused("data", "import", path, "number_line", "--out", out)
    assert mine.read_text() == "mine"
    closed = tmp_path / "closed"
    closed.mkdir()
    long = closed / ("x" * 250)  # the name of its temporary file is longer than a file system allows
    with pytest.raises(WorkFailed, match="choose another --out"):
        import_conversations(path, "number_line", {}, long)
    assert list(closed.iterdir()) == []
