from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from records import prompts_of
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.core import Hints, InvalidInput, Observation, Task, WorkFailed, make_env, register_env
from reflectrl.data_gen import generate, read_rows
from reflectrl.data_gen.episodes import ExpertTeacher, Request
from reflectrl.data_gen.rows import read_samples
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import State
from reflectrl.rollout.record import read_trajectories
from reflectrl.seats.table import view


def recipe(data: dict[str, object], **sections: object) -> Recipe:
    fields: dict[str, object] = {
        "name": "test",
        "env": {"name": "number_line"},
        "data": {"samples": 40, **data},
        **sections,
    }
    return Recipe.model_validate(fields)


def taxi(data: dict[str, object], **sections: object) -> Recipe:
    return recipe(data, env={"name": "dangerous_taxi"}, **sections)


def remote(endpoint: ScriptedEndpoint, data: dict[str, object], **sections: object) -> Recipe:
    there = {"base_url": endpoint.url, "max_attempts": 3, "backoff_s": 0.01}
    return recipe({"teacher": "openai", "endpoint": there, "samples": 12, "concurrency": 2, **data}, **sections)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of data and rows, without the replies, which are in the order of their arrival."""
    paths = (folder / part for part in ("data", "sft"))
    files = sorted(file for path in paths for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def clever(chat: Chat) -> str:
    """Reply as a model that knows the number line: a reflection, or the right label if shown a menu."""
    question = chat[-1]["content"]
    if "Now choose" not in question:
        return "The target is\n elsewhere."
    number, target = re.findall(r"Number (\d+), target (\d+)", chat[1]["content"])[0]
    wanted = "add one" if int(number) < int(target) else "subtract one"
    return next(line.split(".")[0] for line in question.splitlines() if line.endswith(wanted))


ROWS = ("reflector", "policy", "policy-no-reflection")


def test_the_expert_teaches_exactly_the_wanted_number_of_samples(tmp_path: Path) -> None:
    counts: list[tuple[int, int, str]] = []
    summary = generate(taxi({"samples": 50}), tmp_path, lambda *count: counts.append(count))
    assert set(contents(tmp_path)) == {"data/negatives.jsonl", "data/teacher.jsonl", *(f"sft/{n}.jsonl" for n in ROWS)}
    said, acted, bare = (read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ROWS)
    _, negatives = read_samples(tmp_path / "data" / "negatives.jsonl")
    assert len(said) == len(acted) == summary.samples == 50
    assert sum(row.negative for row in acted) == summary.negatives == len(negatives) > 0
    assert all(episode.success for episode in read_trajectories(tmp_path / "data" / "teacher.jsonl")[1])
    assert counts[-1] == (50, 50, "samples")
    assert counts == sorted(counts)
    for row, without, reflection in zip(acted, bare, said, strict=True):
        assert row.prompt.text.replace(f"Reflection:{reflection.completion}\n", "") == without.prompt.text
        assert (row.completion, row.task, row.step) == (without.completion, without.task, without.step)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for folder, seed, samples in (("a", 0, 40), ("b", 0, 40), ("c", 1, 40), ("more", 0, 60)):
        data = {"noise": 0.3, "samples": samples}
        generate(taxi(data, seed=seed, prompt={"shuffle": True}), tmp_path / folder)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")
    few, more = (read_rows(tmp_path / folder / "sft" / "policy.jsonl") for folder in ("a", "more"))
    assert few == more[:40]


def test_rows_hold_the_experts_labels(tmp_path: Path) -> None:
    data = {"noise": 0.5, "negatives": 0.0, "samples": 80}
    generate(recipe(data, prompt={"shuffle": True, "labels": "letters"}), tmp_path)
    env = make_env("number_line")
    header, trajectories = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    said, acted = (read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ROWS[:2])
    labels = {row.prompt.text: row.prompt.menu.labels.index(row.completion) for row in acted}
    shown: set[str] = set()
    strayed = 0
    for trajectory in trajectories:
        env.reset(seed=trajectory.seed, options={"task": trajectory.task})
        for turn, prompts in zip(trajectory.turns, prompts_of(trajectory, header.prompt), strict=True):
            shown.update(prompt.text for prompt in prompts)
            if prompts[1].text in labels:
                assert turn.menu[labels[prompts[1].text]] == env.expert()
                strayed += turn.decision.action != env.expert()
            env.step(turn.decision.action)
    assert strayed > 0
    assert {row.prompt.text for row in (*said, *acted)} <= shown
    assert any("Mistake" in row.completion for row in said)


def test_a_negative_sample_follows_a_wrong_action(tmp_path: Path) -> None:
    generate(taxi({"negatives": 1.0, "samples": 80}), tmp_path)
    env = make_env("dangerous_taxi")
    episodes = {trajectory.seed: trajectory for trajectory in read_trajectories(tmp_path / "data" / "teacher.jsonl")[1]}
    for sample in read_samples(tmp_path / "data" / "negatives.jsonl")[1]:
        played = episodes[sample.seed].actions
        assert sample.past[:-1] == played[: len(sample.past) - 1]
        assert sample.past[-1] != played[len(sample.past) - 1]
        env.reset(seed=sample.seed, options={"task": sample.task})
        for action in sample.past:
            env.step(action)
        assert env.hints().mistaken  # never an action that is as good as the advised one
        there = (env.observation, env.expert(), env.reflection())
        assert there == (sample.observation, sample.action, sample.reflection)


class FarLine(NumberLine):
    """Environment with one held-out split, and no tasks in the usual ones."""

    further_splits = ("far",)

    def tasks(self, split: str) -> Sequence[Task]:
        return [] if split in ("validation", "test") else super().tasks("test" if split == "far" else "train")


@pytest.mark.parametrize("name", ["dangerous_taxi", "far_line"])
def test_no_sample_shows_a_held_out_start(name: str, tmp_path: Path) -> None:
    register_env("far_line", FarLine)
    assert generate(recipe({"samples": 150}, env={"name": name}), tmp_path).held_out > 0
    env = make_env(name)
    tasks = [task for split in env.splits if split != "train" for task in env.any_tasks(split)]
    starts = [env.reset(seed=0, options={"task": task})[0] for task in tasks]
    for row in read_rows(tmp_path / "sft" / "reflector.jsonl"):
        assert not any(start in row.prompt.text for start in starts)


CLOSED: list[NumberLine] = []


class LineToClose(NumberLine):
    """Number line that counts how often it is closed."""

    def close(self) -> None:
        CLOSED.append(self)


def test_environments_of_this_process_are_closed_at_the_end(tmp_path: Path) -> None:
    register_env("line_to_close", LineToClose)
    CLOSED.clear()
    generate(recipe({}, env={"name": "line_to_close"}), tmp_path)
    assert len(CLOSED) == 1


@pytest.mark.parametrize(
    ("hints", "fact"),
    [
        (Hints(), r"expert\(\)"),
        (Hints("go east"), r"reflection\(\)"),
        (Hints(None, "Well."), "None"),
        (Hints("fly", "Well."), "'fly'"),
    ],
)
def test_an_expert_without_advice_or_off_the_menu_is_refused(hints: Hints, fact: str) -> None:
    here, layout = Observation("A hall.", ("go east", "go west")), PromptFormat()
    seen = view("reflector", layout, State(here, ("go up", "go out"), hints=hints), hints=True)
    with pytest.raises(InvalidInput, match=rf"{fact}.*'A hall\.', after \['go up', 'go out'\]; expected"):
        asyncio.run(ExpertTeacher().advise(Request(seen, layout.menu_of(here), mistaken=False)))


def test_a_chat_teacher_reflects_and_plays_its_choice(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = clever
    summary = generate(remote(endpoint, {"trajectory": "teacher", "concurrency": 1}), tmp_path / "one")
    assert (summary.samples, summary.usage.retries) == (12, 0)
    assert all(episode.success for episode in read_trajectories(tmp_path / "one" / "data" / "teacher.jsonl")[1])
    assert summary.usage.calls == len(endpoint.requests)
    assert summary.usage.prompt_tokens == 7 * summary.usage.calls
    chats = [request.chat for request in endpoint.requests]
    assert {len(chat) for chat in chats} == {2, 4}
    assert all("Private note" not in str(chat) for chat in chats)
    assert any("mistake" in chat[1]["content"] for chat in chats)
    rows = read_rows(tmp_path / "one" / "sft" / "reflector.jsonl")
    assert {row.completion for row in rows} == {" The target is elsewhere."}
    endpoint.faults.extend(["slow:0.05", "none", "none", "slow:0.03"] * 3)
    generate(remote(endpoint, {"trajectory": "teacher", "concurrency": 4}), tmp_path / "four")
    assert contents(tmp_path / "one") == contents(tmp_path / "four")


def asked(endpoint: ScriptedEndpoint) -> set[str]:
    """Return the requests for a reflection, the last line of each question about a state."""
    return {request.chat[1]["content"].splitlines()[-1] for request in endpoint.requests}


def test_an_oracle_s_spoiler_reaches_the_teacher_and_no_file(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    oracle = remote(endpoint, {"trajectory": "oracle"})
    endpoint.reply = lambda chat: chat[1]["content"]
    with pytest.raises(WorkFailed, match=r"2\d calls were set aside.*in 3 attempts.*repeats the private note"):
        generate(oracle, tmp_path / "given up")
    assert not (tmp_path / "given up" / "sft").exists()
    endpoint.requests.clear()
    endpoint.reply = lambda chat: chat[-1]["content"] if len(chat) == 2 else "Closer now."
    generate(oracle, tmp_path / "run")
    assert any(len(request.chat) == 4 for request in endpoint.requests)
    assert all("Private note: The best next action is" in request.chat[1]["content"] for request in endpoint.requests)
    written = b"".join(contents(tmp_path / "run").values())
    assert b"Private note" not in written
    assert b"best next" not in written


def test_a_call_without_a_usable_reply_is_set_aside(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    def moody(chat: Chat) -> str:
        return "7" if "Now choose" in str(chat) and "Number 1, target 6" in str(chat) else clever(chat)

    endpoint.reply = moody
    asked = remote(endpoint, {"trajectory": "teacher", "samples": 30})
    summary = generate(asked, tmp_path)
    assert (summary.samples, summary.usage.rejected) == (30, 1)
    [line] = (tmp_path / "calls" / "teacher" / "rejected.jsonl").read_text().splitlines()
    assert "not a label of the menu" in json.loads(line)["reason"]
    assert "Number 1, target 6" in json.loads(line)["chat"][1]["content"]
    _, episodes = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    assert any(episode.truncated and not episode.success for episode in episodes)
    assert not any("Number 1, target 6" in row.prompt.text for row in read_rows(tmp_path / "sft" / "policy.jsonl"))
    endpoint.requests.clear()
    before = contents(tmp_path)
    generate(asked, tmp_path)
    assert (endpoint.requests, contents(tmp_path)) == ([], before)


def test_a_teacher_without_usable_replies_is_given_up(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda _: " "
    there = {"base_url": endpoint.url, "max_attempts": 1, "max_rejected": 1000}
    hopeless = remote(endpoint, {"trajectory": "oracle", "endpoint": there})
    with pytest.raises(
        InvalidInput, match=r"without a sample, and \d+ calls .* no usable reply; .*rejected\.jsonl says"
    ):
        generate(hopeless, tmp_path)
    rejected = (tmp_path / "calls" / "teacher" / "rejected.jsonl").read_text().splitlines()
    assert len(rejected) == len(endpoint.requests)


@pytest.mark.slow
def test_gen_data_by_the_expert_loads_neither_torch_nor_openai(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from reflectrl.config import Recipe; from reflectrl.data_gen import generate;"
        "generate(Recipe.model_validate({'name': 't', 'env': {'name': 'number_line'}}), pathlib.Path(sys.argv[1]));"
        "print([name for name in ('torch', 'openai', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
