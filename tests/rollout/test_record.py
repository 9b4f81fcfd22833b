from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

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
from reflectrl.players import ExpertReflector, Policy, RandomPolicy, reflecting
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import (
    Header,
    append_trajectories,
    read_trajectories,
    write_trajectories,
)

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


class Remembering:
    """A policy that keeps the prompts it was shown."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.prompts: list[Prompt] = []

    def act(self, views: list[MenuView], draws: list[float]) -> list[Decision]:
        self.prompts.extend(view.prompt for view in views)
        return self.inner.act(views, draws)


def test_what_is_read_equals_what_was_written(file: Path) -> None:
    write_trajectories(file, HEADER, [TRAJECTORY, TRAJECTORY])
    assert read_trajectories(file) == (HEADER, [TRAJECTORY, TRAJECTORY])


def test_a_file_re_creates_every_prompt_to_the_byte(file: Path) -> None:
    env = make_env("number_line", size=10)
    policy = Remembering(RandomPolicy())
    episodes = [Episode(task, seed) for seed, task in enumerate(env.split_tasks("train")[:4])]
    played = rollout([env], episodes, policy=policy, seats=reflecting(ExpertReflector()), layout=LAYOUT)
    write_trajectories(file, HEADER, played)
    header, trajectories = read_trajectories(file)
    pairs = [pair for trajectory in trajectories for pair in prompts_of(trajectory, header.prompt)]
    assert [policy_prompt for _, policy_prompt in pairs] == policy.prompts
    assert all(mine.text.startswith(theirs.text) for theirs, mine in pairs)


def test_appending_begins_a_file_and_adds_to_it(file: Path) -> None:
    append_trajectories(file, HEADER, [TRAJECTORY])
    append_trajectories(file, HEADER, [TRAJECTORY])
    assert read_trajectories(file) == (HEADER, [TRAJECTORY] * 2)


def test_a_line_cut_by_a_killed_run_is_taken_off_before_appending(file: Path) -> None:
    append_trajectories(file, HEADER, [TRAJECTORY, TRAJECTORY])
    file.write_bytes(file.read_bytes()[:-30])
    append_trajectories(file, HEADER, [replace(TRAJECTORY, seed=7)])
    assert [trajectory.seed for trajectory in read_trajectories(file)[1]] == [2**40, 7]


def test_a_failed_write_leaves_the_old_file(file: Path) -> None:
    write_trajectories(file, HEADER, [TRAJECTORY])
    bad = replace(TRAJECTORY, turns=(replace(TURN, rewards={"env": math.nan}),))
    with pytest.raises(WorkFailed, match="JSON cannot hold"):
        write_trajectories(file, HEADER, [TRAJECTORY, bad])
    assert read_trajectories(file) == (HEADER, [TRAJECTORY])


def damage(file: Path, line: int, change: str | dict[str, object]) -> None:
    """Rewrite one line of a good file: replaced by a string, or updated by an object."""
    write_trajectories(file, HEADER, [TRAJECTORY])
    lines = file.read_text(encoding="utf-8").split("\n")
    lines[line - 1] = change if isinstance(change, str) else json.dumps(json.loads(lines[line - 1]) | change)
    file.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "change", "sentence"),
    [
        (1, {"format": "other"}, "line 1 names the format 'other'; expected 'reflectrl-trajectories'"),
        (1, {"version": 2}, "line 1 names version 2 of .* reads version 3"),
        (1, {"prompt": {}}, "line 1, prompt lacks field 'history'"),
        (1, "[]", "line 1 names the format None"),
        (2, "{cut", "line 2 is not JSON"),
        (2, "", "line 2 is not JSON"),
        (2, "7", "line 2 is 7"),
        (2, {"seed": "1"}, "line 2, seed is '1'; .*int"),
        (2, {"seed": True}, "line 2, seed is True; .*int"),
        (2, {"extra": 1}, "line 2 has the unknown field 'extra'"),
        (2, {"turns": {}}, "line 2, turns is {}"),
        (2, {"turns": [{}]}, r"line 2, turns\[0\] lacks field 'observation'"),
        (2, {"task": {"id": "a", "options": []}}, r"line 2, task.options is \[\]"),
    ],
)
def test_a_bad_line_is_named(file: Path, line: int, change: str | dict[str, object], sentence: str) -> None:
    damage(file, line, change)
    with pytest.raises(InvalidInput, match=sentence):
        read_trajectories(file)


def test_a_missing_or_empty_file_is_named(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"trajectories.jsonl cannot be read \(No such file"):
        read_trajectories(file)
    file.parent.mkdir()
    file.touch()
    with pytest.raises(InvalidInput, match="is empty"):
        read_trajectories(file)


def test_a_file_that_is_not_text_is_named(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="line 1"):
        read_trajectories(file)
