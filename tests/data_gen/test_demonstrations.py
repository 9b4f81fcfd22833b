"""Demonstrations: episodes from a file that become SFT rows before the teacher is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pictured import PICTURES, Pictured
from records import prompts_of
from scripted_endpoint import ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, NatLangEnv, Trajectory, make_env
from reflectrl.data_gen import DataSummary, generate, read_rows
from reflectrl.data_gen.demonstrations import check_place, episodes_of, samples_of, save_episode
from reflectrl.data_gen.rows import read_samples
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import Header, read_trajectories
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector, ScriptedReflector
from reflectrl.seats.table import reflecting

HEADER = Header("number_line", {"size": 8}, PromptFormat())
ENV = make_env("number_line", size=8)
STARTS = [ENV.reset(seed=0, options={"task": task})[0] for part in ("validation", "test") for task in ENV.tasks(part)]


def played(count: int, split: str = "train", env: NatLangEnv = ENV) -> list[Trajectory]:
    """Return episodes of the expert, with reflections that no teacher would write."""
    episodes = [Episode(task, seed) for seed, task in enumerate(env.tasks(split)[:count])]
    words = ScriptedReflector(lambda text: f"I see  {text.splitlines()[-2][:9]},\nso I go.")
    return rollout([env], episodes, policy=ExpertPolicy(), seats=reflecting(words), layout=HEADER.prompt)


def saved(path: Path, count: int = 12, split: str = "train") -> int:
    return sum(save_episode(path, HEADER, trajectory) for trajectory in played(count, split))


def recipe(*files: Path, samples: int = 60, **sections: Any) -> Recipe:
    data = {"samples": samples, "demonstrations": [str(file) for file in files], **sections.pop("data", {})}
    return Recipe.model_validate(
        {"name": "test", "env": {"name": "number_line", "options": {"size": 8}}, "data": data, **sections}
    )


def summary_of(made_of: Recipe, folder: Path) -> tuple[DataSummary, list[str]]:
    lines: list[str] = []
    return generate(made_of, folder, tell=lines.append), lines


def usable(path: Path) -> list[Any]:
    return [sample for sample in read_samples(path)[1] if sample.observation.text not in STARTS]


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    saved(tmp_path / "shown.jsonl")
    return tmp_path / "shown.jsonl"


def test_successful_episodes_are_kept_as_samples_and_more_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shown.jsonl"
    check_place(path, HEADER)
    tried = rollout(
        [ENV],
        [Episode(ENV.tasks("train")[0], seed) for seed in range(8)],
        policy=RandomPolicy(),
        seats=reflecting(ExpertReflector()),
        layout=HEADER.prompt,
    )
    assert save_episode(path, HEADER, next(trajectory for trajectory in tried if not trajectory.success)) == 0
    assert not path.exists()
    [first, second] = played(2)
    assert save_episode(path, HEADER, first) == len(first.turns)
    check_place(path, replace(HEADER, prompt=PromptFormat(labels="letters")))  # prompts may differ
    save_episode(path, HEADER, second)
    header, samples = read_samples(path)
    assert header == HEADER
    assert [sample.action for sample in samples] == [*first.actions, *second.actions]
    last = samples[-1]
    assert (last.task, last.seed, last.past) == (second.task, second.seed, second.actions[:-1])
    assert (last.observation, last.menu) == (second.turns[-1].observation, second.turns[-1].menu)
    assert last.reflection.startswith("I see Number ")
    assert last.reflection.endswith(", so I go.")
    assert not any(sample.negative for sample in samples)


def test_samples_are_put_together_to_the_episodes_that_they_came_from() -> None:
    episodes = played(3)
    again = episodes_of(sample for each in episodes for sample in samples_of(each))
    assert [each.actions for each in again] == [each.actions for each in episodes]
    for there, here in zip(again, episodes, strict=True):
        assert (there.task, there.seed) == (here.task, here.seed)
        assert there.rewards == (*here.rewards[:-1], 0.0)
        assert [turn.observation for turn in there.turns] == [turn.observation for turn in here.turns]
        assert all(turn.reflection for turn in there.turns)


def test_pictures_of_episodes_are_kept_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    episodes = played(2, env=Pictured(size=8))
    for trajectory in episodes:
        save_episode(path, HEADER, trajectory)
    shown = [sample.observation for sample in read_samples(path)[1]]
    assert shown == [turn.observation for trajectory in episodes for turn in trajectory.turns]
    assert len(list((tmp_path / "images").iterdir())) == len(PICTURES)


def test_an_unfinished_demonstration_is_removed(shown: Path) -> None:
    whole = shown.read_bytes()
    shown.write_bytes(whole + b'{"task": {"id": "4-to')
    check_place(shown, HEADER)
    assert shown.read_bytes() == whole
    for content in ("my notes, without a last newline", '{"format": "reflectrl-trajectories"}\nx'):
        shown.write_text(content)
        with pytest.raises(InvalidInput, match=r"shown\.jsonl"):
            check_place(shown, HEADER)
        assert shown.read_text() == content


def test_demonstrations_come_first_and_the_expert_adds_what_is_missing(shown: Path, tmp_path: Path) -> None:
    good = usable(shown)
    summary, [line] = summary_of(recipe(shown), tmp_path / "run")
    assert 10 < summary.demonstrated == len(good) < summary.samples == 60
    for count in (len(good), len(read_samples(shown)[1]) - len(good), 60 - len(good)):
        assert f" {count}" in line
    summary_of(recipe(samples=60 - len(good)), tmp_path / "alone")
    played_by_run = [(tmp_path / run / "data" / "teacher.jsonl").read_bytes() for run in ("run", "alone")]
    assert played_by_run[0] == played_by_run[1]
    for name in ("reflector", "policy", "policy-no-reflection"):
        rows, taught = (read_rows(tmp_path / run / "sft" / f"{name}.jsonl") for run in ("run", "alone"))
        assert rows[len(good) :] == taught
        assert [row.task for row in rows[: len(good)]] == [sample.task.id for sample in good]
    _, kept = read_samples(tmp_path / "run" / "data" / "demonstrations.jsonl")
    assert kept == good


@pytest.mark.parametrize(("options", "ours"), [({"size": 9}, "size=9"), ({}, "the default size")])
def test_other_options_than_the_recipe_s_are_told(
    options: dict[str, int], ours: str, shown: Path, tmp_path: Path
) -> None:
    _, lines = summary_of(recipe(shown, samples=10, env={"name": "number_line", "options": options}), tmp_path / "run")
    assert lines[0] == f"demonstrations of {shown} were played with size=8; the recipe has {ours}"


def test_enough_demonstrations_need_no_teacher_and_have_the_layout_of_the_recipe(shown: Path, tmp_path: Path) -> None:
    layout = {"labels": "letters", "history": 2, "instructions": False}
    summary, _ = summary_of(recipe(shown, samples=10, prompt=layout), tmp_path / "run")
    assert (summary.samples, summary.demonstrated) == (10, 10)
    assert read_trajectories(tmp_path / "run" / "data" / "teacher.jsonl")[1] == []
    at, sample = next((at, sample) for at, sample in enumerate(usable(shown)[:10]) if len(sample.past) > 1)
    said, acted, bare = (
        read_rows(tmp_path / "run" / "sft" / f"{name}.jsonl")[at]
        for name in ("reflector", "policy", "policy-no-reflection")
    )
    past = "".join(f"Past: {action}\n" for action in sample.past[-2:])
    before = f"{past}{sample.observation.text}\n"
    menu = "".join(f"{label}. {action}\n" for label, action in zip("AB", sample.menu, strict=False)) + "Action:\n"
    assert (said.prompt.text, said.completion) == (f"{before}Reflection:", f" {sample.reflection}")
    assert acted.prompt.text == f"{before}Reflection: {sample.reflection}\n{menu}"
    assert bare.prompt.text == before + menu
    assert sample.menu["AB".index(acted.completion)] == sample.action
    assert acted.completion == bare.completion


def test_demonstrations_keep_what_prompts_of_the_past_need(shown: Path, tmp_path: Path) -> None:
    showing: dict[str, Any] = {
        "prompt": {"history": {"show": "transitions", "reward": True}},
        "players": {"reflector": {"carry": True}},
    }
    generate(recipe(shown, samples=20, **showing), tmp_path / "run")
    rows = {row.prompt.text for row in read_rows(tmp_path / "run" / "sft" / "reflector.jsonl")}
    layout = recipe(**showing).layout(ENV.instructions)
    assert rows <= {mine.text for each in played(12) for mine, _ in prompts_of(each, layout)}
    lines = [json.loads(line) for line in shown.read_text(encoding="utf-8").splitlines()]
    for line in lines[1:]:
        line |= {"visited": [], "rewards": [], "previous": "", "correctable": False}  # as where no prompt shows them
    shown.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    generate(recipe(shown, samples=20), tmp_path / "other")
    with pytest.raises(
        InvalidInput, match=r"line 3 has 0 visited for 1 past actions.*prompt.history.*play the episodes"
    ):
        generate(recipe(shown, samples=20, **showing), tmp_path / "refused")


def test_a_chat_teacher_is_asked_only_for_what_is_missing(
    shown: Path, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    good = len(usable(shown))
    data = {"teacher": "openai", "negatives": 0.0, "concurrency": 1, "endpoint": {"base_url": endpoint.url}}
    summary_of(recipe(shown, samples=good, data=data), tmp_path / "enough")
    assert endpoint.requests == []
    _, lines = summary_of(recipe(shown, samples=good + 3, data=data), tmp_path / "more")
    assert 3 <= len(endpoint.requests) < 12
    assert "about 3 calls" in lines[1]


def test_nothing_of_a_held_out_task_is_learned_from(tmp_path: Path) -> None:
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    saved(train, 4)
    unfit = saved(test, 3, split="test")
    summary, _ = summary_of(recipe(test, train, samples=8), tmp_path / "run")
    assert summary.held_out >= unfit + len(read_samples(train)[1]) - len(usable(train))
    rows = read_rows(tmp_path / "run" / "sft" / "policy.jsonl")
    assert not {row.task for row in rows} & {task.id for task in ENV.tasks("test")}
    assert not any(start in row.prompt.text for row in rows for start in STARTS)


def offered(*actions: str) -> dict[str, Any]:
    return {
        "menu": actions,
        "observation": {"text": "Number 1.", "actions": actions, "task": "", "images": (), "common": (), "short": ""},
    }


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda _: {"action": "fly"}, "'fly'"),
        (lambda _: {"menu": ["fly", "add one"], "action": "fly"}, "menu"),
        (lambda action: offered(action, "a", "b"), "max_actions is 2"),
        (lambda _: {"reflection": None}, "reflection is None"),
        (lambda _: {"action": "add\none", **offered("add\none")}, "span lines"),
    ],
)
def test_a_sample_that_is_no_legal_step_is_refused_by_its_line(
    change: Callable[[str], dict[str, Any]], fact: str, shown: Path, tmp_path: Path
) -> None:
    lines = shown.read_text().splitlines()
    sample = json.loads(lines[2])
    shown.write_text("\n".join([*lines[:2], json.dumps({**sample, **change(sample["action"])}), *lines[3:]]) + "\n")
    with pytest.raises(InvalidInput, match=rf"shown\.jsonl, line 3.*{fact}"):
        generate(recipe(shown), tmp_path / "run")
    assert not (tmp_path / "run" / "sft").exists()
