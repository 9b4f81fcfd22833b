from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from records import chose, prompts_of, turn_of

from reflectrl.core import (
    Decision,
    InvalidInput,
    Observation,
    Task,
    Trajectory,
    Utterance,
    WorkFailed,
    make_env,
)
from reflectrl.prompts import History, Prompt, PromptFormat
from reflectrl.prompts.views import MenuView, State
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import (
    FORMAT,
    Header,
    append_records,
    read_longest,
    read_trajectories,
    write_trajectories,
)
from reflectrl.rollout.turn import end_of, policy_views
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import MOMENTS, reflecting, view

LAYOUT = PromptFormat(instructions="Walk.", history=2, labels="letters", shuffle=True)
HEADER = Header("number_line", {"size": 10}, LAYOUT)
TURN = turn_of(
    observation=Observation("Number 3 → 5", ("add one", "subtract one")),
    menu=("subtract one", "add one"),
    reflection=None,
    decision=chose(1, "add one", -0.1 - 0.2, 1 / 3, (1 / 3, 2 / 3)),
    reward=-0.05,
)
TRAJECTORY = Trajectory(
    task=Task("3-to-5", {"start": 3, "nested": {"deep": [1, None, "ä\n"]}}),
    seed=2**40,
    turns=(TURN, replace(TURN, said={"reflector": Utterance('Go "on"\u2028.', 5)}, rewards={"env": 1.0}, illegal=True)),
    terminated=True,
    truncated=False,
    success=True,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "trajectories.jsonl"


def test_what_is_read_equals_what_was_written_and_added(file: Path) -> None:
    write_trajectories(file, HEADER, [TRAJECTORY])
    append_records(file, FORMAT, HEADER, [TRAJECTORY])
    assert read_trajectories(file) == (HEADER, [TRAJECTORY] * 2)
    file.unlink()
    append_records(file, FORMAT, HEADER, [TRAJECTORY, TRAJECTORY])
    assert read_trajectories(file) == (HEADER, [TRAJECTORY] * 2)
    file.write_bytes(file.read_bytes()[:-30])  # cut by a kill
    append_records(file, FORMAT, HEADER, [replace(TRAJECTORY, seed=7)])
    assert [trajectory.seed for trajectory in read_trajectories(file)[1]] == [2**40, 7]


@pytest.mark.parametrize("history", [2, History(2, "transitions", reward=True)])
@pytest.mark.parametrize("menu", ["first", "last"])
def test_a_file_re_creates_every_prompt_to_the_byte(
    file: Path, menu: Literal["first", "last"], history: int | History
) -> None:
    layout = replace(LAYOUT, menu=menu, history=history)
    shown: list[Prompt] = []

    class Remembering(RandomPolicy):
        def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
            shown.extend(view.prompt for view in views)
            return super().act(views, draws)

    env = make_env("number_line", size=10)
    episodes = [Episode(task, seed) for seed, task in enumerate(env.split_tasks("train")[:4])]
    played = rollout([env], episodes, policy=Remembering(), seats=reflecting(ExpertReflector()), layout=layout)
    write_trajectories(file, replace(HEADER, prompt=layout), played)
    header, trajectories = read_trajectories(file)
    pairs = [pair for trajectory in trajectories for pair in prompts_of(trajectory, header.prompt)]
    assert [policy_prompt for _, policy_prompt in pairs] == shown
    assert all(mine.text.startswith(theirs.text) == (menu == "last") for theirs, mine in pairs)


def test_the_last_state_is_shown_to_raters_alone(file: Path) -> None:
    env = make_env("gym_cards:number_line", observation="both")
    episodes = [Episode(task, seed) for seed, task in enumerate(env.split_tasks("train")[:3])]
    played = rollout([env], episodes, policy=ExpertPolicy(), seats=(), layout=LAYOUT)
    assert all(each.success for each in played)
    for each in played:
        [[target, current]] = re.findall(r"Target number: (\d). Current number: (\d).", each.last.text)
        assert target == current
        assert (each.last.actions, each.last.common, len(each.last.images)) == ((), (), 1)
        assert view("rater", LAYOUT, end_of(each)).last == each.last
        state = State(each.last, each.actions, last=Observation("The end.", ()))
        assert all(view(role, LAYOUT, state).last is None for role in MOMENTS if role != "rater")
        assert all(shown.last is None for shown in policy_views(each, LAYOUT))
    write_trajectories(file, HEADER, played)
    assert read_trajectories(file) == (HEADER, played)
    header, first, *_ = file.read_text(encoding="utf-8").splitlines()
    without = {name: value for name, value in json.loads(first).items() if name != "last"}
    file.write_text(f"{header}\n{json.dumps(without)}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="line 2 lacks field 'last'"):
        read_trajectories(file)


def test_a_failed_write_leaves_the_old_file(file: Path) -> None:
    write_trajectories(file, HEADER, [TRAJECTORY])
    bad = replace(TRAJECTORY, turns=(replace(TURN, rewards={"env": math.nan}),))
    with pytest.raises(WorkFailed, match=str(file)):
        write_trajectories(file, HEADER, [TRAJECTORY, bad])
    assert read_trajectories(file) == (HEADER, [TRAJECTORY])


def damage(file: Path, line: int, change: str | dict[str, object]) -> None:
    """Rewrite one line of a valid file: a string replaces it, an object updates its fields."""
    write_trajectories(file, HEADER, [TRAJECTORY])
    lines = file.read_text(encoding="utf-8").split("\n")
    lines[line - 1] = change if isinstance(change, str) else json.dumps(json.loads(lines[line - 1]) | change)
    file.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "change", "fact"),
    [
        (1, {"format": "other"}, "line 1 .*'other'.*'reflectrl-trajectories'"),
        (1, {"version": 3}, "line 1 .*version 3 .*version 5"),
        (1, {"prompt": {}}, "line 1, prompt lacks .*'action_mode'; expected history"),
        (2, "{cut", "line 2 .*JSON"),
        (2, {"turns": [{}]}, r"line 2, turns\[0\] .*'observation'"),
    ],
)
def test_a_bad_line_is_named(file: Path, line: int, change: str | dict[str, object], fact: str) -> None:
    damage(file, line, change)
    with pytest.raises(InvalidInput, match=fact):
        read_trajectories(file)


def test_the_episodes_with_the_longest_state_and_with_most_states_are_read_alone(file: Path) -> None:
    def episode(*characters: int) -> Trajectory:
        turns = (replace(TURN, observation=Observation("x" * count, ("add one",))) for count in characters)
        return replace(TRAJECTORY, turns=tuple(turns))

    wordy, lasting, short = episode(1, 500, 1), episode(*[99] * 9), episode(1, 1)
    write_trajectories(file, HEADER, [short, wordy, short, lasting, short])
    assert read_longest(file, 1) == [wordy, lasting]
    assert len(read_longest(file, 9)) == 5
    damage(file, 2, {"turns": [{}]})
    with pytest.raises(InvalidInput, match=r"line 2, turns\[0\] .*'observation'"):
        read_longest(file, 1)
    damage(file, 1, {"version": 3})
    with pytest.raises(InvalidInput, match="line 1 .*version 3"):
        read_longest(file, 1)


def test_a_missing_empty_or_binary_file_is_named(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"trajectories.jsonl "):
        read_trajectories(file)
    file.parent.mkdir()
    for content, fact in ((b"", r"trajectories.jsonl "), (b"\xff\xfe\x00", "line 1")):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match=fact):
            read_trajectories(file)
