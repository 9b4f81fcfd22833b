"""Episodes that somebody played: kept in a file, and learned from before the teacher is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, Trajectory, WorkFailed, make_env
from reflectrl.data_gen import DataSummary, generate, read_rows
from reflectrl.data_gen.demonstrations import check_place, save_episode
from reflectrl.data_gen.samples import read_samples
from reflectrl.players import ExpertPolicy, ExpertReflector, RandomPolicy, ScriptedReflector, reflecting
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import Header, read_trajectories

HEADER = Header("number_line", {"size": 8}, PromptFormat())
ENV = make_env("number_line", size=8)
STARTS = [ENV.reset(seed=0, options={"task": task})[0] for part in ("validation", "test") for task in ENV.tasks(part)]


def played(count: int, split: str = "train") -> list[Trajectory]:
    """Episodes of the expert, who says something of its own that no teacher would."""
    episodes = [Episode(task, seed) for seed, task in enumerate(ENV.tasks(split)[:count])]
    words = ScriptedReflector(lambda text: f"I see  {text.splitlines()[-2][:9]},\nso I go.")
    return rollout([ENV], episodes, policy=ExpertPolicy(), seats=reflecting(words), layout=HEADER.prompt)


def saved(path: Path, count: int = 12, split: str = "train") -> int:
    return sum(save_episode(path, HEADER, trajectory) for trajectory in played(count, split))


def recipe(*files: Path, samples: int = 60, **sections: Any) -> Recipe:
    data = {"samples": samples, "demonstrations": [str(file) for file in files], **sections.pop("data", {})}
    return Recipe.model_validate(
        {"name": "test", "env": {"name": "number_line", "options": {"size": 8}}, "data": data, **sections}
    )


def summary_of(made_of: Recipe, folder: Path) -> tuple[DataSummary, list[str]]:
    told: list[str] = []
    summary = generate(made_of, folder, tell=told.append)
    assert summary is not None
    return summary, told


def usable(path: Path) -> list[Any]:
    return [sample for sample in read_samples(path)[1] if sample.observation.text not in STARTS]


def test_an_episode_is_kept_as_samples_and_more_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shown.jsonl"
    check_place(path, HEADER)
    [first, second] = played(2)
    assert save_episode(path, HEADER, first) == len(first.turns)
    check_place(path, HEADER)
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


def test_an_episode_that_failed_is_not_kept(tmp_path: Path) -> None:
    episodes = [Episode(ENV.tasks("train")[0], seed) for seed in range(8)]
    tried = rollout([ENV], episodes, policy=RandomPolicy(), seats=reflecting(ExpertReflector()), layout=HEADER.prompt)
    failed = next(trajectory for trajectory in tried if not trajectory.success)
    assert save_episode(tmp_path / "shown.jsonl", HEADER, failed) == 0
    assert not (tmp_path / "shown.jsonl").exists()


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (Header("number_line", {"size": 9}, PromptFormat()), "of 'number_line' with size=8; these are of .* size=9"),
        (Header("dangerous_taxi", {}, PromptFormat()), "these are of 'dangerous_taxi' with no options: choose another"),
    ],
)
def test_a_file_of_another_environment_or_other_options_is_refused(
    header: Header, sentence: str, tmp_path: Path
) -> None:
    saved(tmp_path / "shown.jsonl", 2)
    with pytest.raises(InvalidInput, match=sentence):
        check_place(tmp_path / "shown.jsonl", header)


def test_other_prompts_are_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    saved(tmp_path / "shown.jsonl", 2)
    check_place(tmp_path / "shown.jsonl", Header("number_line", {"size": 8}, PromptFormat(labels="letters")))


def test_what_a_kill_left_unfinished_is_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    saved(path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"task": {"id": "4-to')
    check_place(path, HEADER)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", ["my notes, without a last newline", '{"format": "reflectrl-trajectories"}\nx'])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(InvalidInput, match="notes.txt holds something else than episodes; choose another file"):
        check_place(path, HEADER)
    assert path.read_text() == content


def test_a_folder_is_no_place_for_episodes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_place(tmp_path / "file", HEADER)
    for path in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(InvalidInput, match="is a folder; expected|is not a folder; choose another file"):
            check_place(path, HEADER)


def test_a_disk_that_refuses_is_a_sentence() -> None:
    with pytest.raises(WorkFailed, match="/dev/full cannot be written .*, so the last episode is lost"):
        save_episode(Path("/dev/full"), HEADER, played(1)[0])


def test_demonstrations_come_first_and_the_expert_adds_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    saved(path)
    shown = usable(path)
    summary, told = summary_of(recipe(path), tmp_path / "run")
    assert 10 < summary.demonstrated == len(shown) < summary.samples == 60
    assert told == [
        f"demonstrations: {len(shown)} samples; {len(read_samples(path)[1]) - len(shown)} show held-out tasks and are "
        f"left out; the teacher adds {60 - len(shown)}"
    ]
    alone, _ = summary_of(recipe(samples=60 - len(shown)), tmp_path / "alone")
    assert summary.episodes == alone.episodes
    for name in ("reflector", "policy", "policy-no-reflection"):
        rows, taught = (read_rows(tmp_path / run / "sft" / f"{name}.jsonl") for run in ("run", "alone"))
        assert rows[len(shown) :] == taught
        assert [row.task for row in rows[: len(shown)]] == [sample.task.id for sample in shown]
    _, kept = read_samples(tmp_path / "run" / "data" / "demonstrations.jsonl")
    assert kept == shown


def test_rows_have_the_layout_of_the_recipe_and_the_words_of_the_demonstration(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    saved(path)
    layout = {"labels": "letters", "history": 2, "instructions": False}
    summary_of(recipe(path, samples=10, prompt=layout), tmp_path / "run")
    at, sample = next((at, sample) for at, sample in enumerate(usable(path)[:10]) if len(sample.past) > 1)
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


def test_enough_demonstrations_need_no_teacher(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    saved(path)
    summary, told = summary_of(recipe(path, samples=10), tmp_path / "run")
    assert (summary.samples, summary.demonstrated, summary.episodes, summary.success_rate) == (10, 10, 0, 0.0)
    assert told[0].endswith("no teacher is asked")
    assert read_trajectories(tmp_path / "run" / "data" / "teacher.jsonl")[1] == []
    assert [row.task for row in read_rows(tmp_path / "run" / "sft" / "policy.jsonl")] == [
        sample.task.id for sample in usable(path)[:10]
    ]


def test_a_chat_teacher_is_asked_only_for_what_is_missing(
    endpoint: ScriptedEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    path = tmp_path / "shown.jsonl"
    saved(path)
    shown = len(usable(path))
    data = {"teacher": "openai", "negatives": 0.0, "concurrency": 1, "endpoint": {"base_url": endpoint.url}}
    summary_of(recipe(path, samples=shown, data=data), tmp_path / "enough")
    assert endpoint.requests == []
    _, told = summary_of(recipe(path, samples=shown + 3, data=data), tmp_path / "more")
    assert 3 <= len(endpoint.requests) < 12
    assert told[0].endswith("the teacher adds 3")
    assert told[1].startswith("estimate: about 3 calls to ")


def test_nothing_of_a_held_out_task_is_learned_from(tmp_path: Path) -> None:
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    saved(train, 4)
    unfit = saved(test, 3, split="test")
    summary, _ = summary_of(recipe(test, train, samples=8), tmp_path / "run")
    starts = len(read_samples(train)[1]) - len(usable(train))
    assert summary.held_out >= unfit + starts
    rows = read_rows(tmp_path / "run" / "sft" / "policy.jsonl")
    assert not {row.task for row in rows} & {task.id for task in ENV.tasks("test")}
    assert not any(start in row.prompt.text for row in rows for start in STARTS)


def test_a_missing_file_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        generate(recipe(Path("my shown.jsonl")), tmp_path / "run")
    assert str(caught.value) == (
        "data.demonstrations names 'my shown.jsonl', which is not a file; make it with `reflectrl play number_line "
        "size=8 --expert --episodes 40 --save 'my shown.jsonl'`, or play yourself: leave out --expert."
    )
    for odd in (tmp_path, tmp_path / ("x" * 300), Path("\0")):
        with pytest.raises(InvalidInput, match="which is not a file"):
            generate(recipe(odd), tmp_path / "run")


def other_action(sample: dict[str, Any]) -> None:
    sample["action"] = "fly"


def other_menu(sample: dict[str, Any]) -> None:
    sample["menu"] = ["fly", "add one"]
    sample["action"] = "fly"


def long_menu(sample: dict[str, Any]) -> None:
    sample["menu"] = sample["observation"]["actions"] = [sample["action"], "a", "b"]


def no_reflection(sample: dict[str, Any]) -> None:
    sample["reflection"] = None


def lines_in_an_action(sample: dict[str, Any]) -> None:
    sample["menu"] = sample["observation"]["actions"] = ["add\none"]
    sample["action"] = "add\none"


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (other_action, "line 3 plays 'fly', which is not in its menu; remove the line"),
        (other_menu, "line 3 has another menu than the actions of its state"),
        (long_menu, "line 3 cannot be learned from: it showed a menu that has 3 actions, but max_actions is 2"),
        (no_reflection, "line 3, reflection is None"),
        (lines_in_an_action, "line 3 cannot be learned from: it showed actions .* which are empty or span lines"),
    ],
)
def test_a_sample_that_nobody_could_have_played_is_told_with_its_line(
    harm: Callable[[dict[str, Any]], None], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "shown.jsonl"
    saved(path)
    lines = path.read_text().splitlines()
    sample = json.loads(lines[2])
    harm(sample)
    path.write_text("\n".join([*lines[:2], json.dumps(sample), *lines[3:]]) + "\n")
    with pytest.raises(InvalidInput, match=f"shown.jsonl, {sentence}"):
        generate(recipe(path), tmp_path / "run")
    assert not (tmp_path / "run" / "sft").exists()


def test_a_file_of_another_environment_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    saved(path, 1)
    taxi = recipe(path).model_copy(update={"env": replace(recipe().env, name="dangerous_taxi")})
    with pytest.raises(InvalidInput, match=r"line 1 names the environment 'number_line'; expected 'dangerous_taxi'"):
        generate(taxi, tmp_path / "run")


def test_trajectories_are_no_samples(tmp_path: Path) -> None:
    summary_of(recipe(samples=5), tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"'reflectrl-trajectories'; expected 'reflectrl-samples'"):
        generate(recipe(tmp_path / "run" / "data" / "teacher.jsonl"), tmp_path / "other")
