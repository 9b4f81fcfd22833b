from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from records import prompts_of
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, Task, WorkFailed, make_env, register_env
from reflectrl.data_gen import generate, read_rows
from reflectrl.data_gen.generate import Spending
from reflectrl.data_gen.samples import Sample, read_samples
from reflectrl.envs.number_line import NumberLine
from reflectrl.rollout.record import read_trajectories


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
    there = {"base_url": endpoint.url, "max_attempts": 3}
    return recipe({"teacher": "openai", "endpoint": there, "samples": 12, "concurrency": 2, **data}, **sections)


def contents(folder: Path) -> dict[str, bytes]:
    """What was made; the replies are in the order in which they came."""
    paths = (folder / part for part in ("data", "dataset", "sft"))
    files = sorted(file for path in paths for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def kept(folder: Path) -> list[str]:
    return (folder / "calls" / "teacher" / "replies.jsonl").read_text().splitlines()


def rejected(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "calls" / "teacher" / "rejected.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def samples_of(folder: Path) -> list[Sample]:
    return read_samples(folder / "data" / "negatives.jsonl")[1]


def clever(chat: Chat) -> str:
    """A model that knows the number line: reflects, and names the right label when shown a menu."""
    question = chat[-1]["content"]
    if "Now choose" not in question:
        return "The target is\n elsewhere."
    number, target = re.findall(r"Number (\d+), target (\d+)", chat[1]["content"])[0]
    wanted = "add one" if int(number) < int(target) else "subtract one"
    return next(line.split(".")[0] for line in question.splitlines() if line.endswith(wanted))


def test_the_expert_teaches_exactly_the_wanted_number_of_samples(tmp_path: Path) -> None:
    counts: list[tuple[int, int, str]] = []
    summary = generate(taxi({"samples": 50}), tmp_path, lambda *count: counts.append(count))
    assert set(contents(tmp_path)) == {
        "data/negatives.jsonl",
        "data/teacher.jsonl",
        "sft/policy-no-reflection.jsonl",
        "sft/policy.jsonl",
        "sft/reflector.jsonl",
    }
    rows = {
        name: read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ("reflector", "policy", "policy-no-reflection")
    }
    assert {len(found) for found in rows.values()} == {summary.samples} == {50}
    assert sum(row.negative for row in rows["policy"]) == summary.negatives == len(samples_of(tmp_path)) > 0
    assert summary.success_rate == 1.0
    assert counts[-1] == (50, 50, "samples")
    assert counts == sorted(counts)


def test_the_same_seed_writes_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        generate(taxi({"noise": 0.3}, seed=seed, prompt={"shuffle": True}), tmp_path / folder)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")


def test_more_samples_begin_with_the_fewer(tmp_path: Path) -> None:
    for folder, count in (("few", 20), ("many", 60)):
        generate(taxi({"samples": count}), tmp_path / folder)
    few, many = (read_rows(tmp_path / folder / "sft" / "policy.jsonl") for folder in ("few", "many"))
    assert few == many[:20]


def test_rows_hold_the_prompts_of_the_trajectories(tmp_path: Path) -> None:
    generate(recipe({"negatives": 0.0}, prompt={"shuffle": True, "labels": "letters"}), tmp_path)
    header, trajectories = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    pairs = {pair[0].text: pair for trajectory in trajectories for pair in prompts_of(trajectory, header.prompt)}
    policy = {pair[1].text for pair in pairs.values()}
    for row in read_rows(tmp_path / "sft" / "reflector.jsonl"):
        assert row.prompt.text in pairs
        assert row.completion.startswith(" ")
    for row in read_rows(tmp_path / "sft" / "policy.jsonl"):
        assert row.prompt.text in policy
        assert row.completion in row.prompt.menu.labels


def test_rows_without_reflection_differ_in_nothing_else(tmp_path: Path) -> None:
    generate(taxi({}), tmp_path)
    with_it, without = (read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ("policy", "policy-no-reflection"))
    reflections = [row.completion for row in read_rows(tmp_path / "sft" / "reflector.jsonl")]
    for row, bare, said in zip(with_it, without, reflections, strict=True):
        assert row.prompt.text.replace(f"Reflection:{said}\n", "") == bare.prompt.text
        assert (row.completion, row.task, row.step) == (bare.completion, bare.task, bare.step)


def test_a_negative_sample_follows_a_wrong_action_and_only_that_step_is_kept(tmp_path: Path) -> None:
    generate(taxi({"negatives": 1.0, "samples": 80}), tmp_path)
    env = make_env("dangerous_taxi")
    episodes = {trajectory.seed: trajectory for trajectory in read_trajectories(tmp_path / "data" / "teacher.jsonl")[1]}
    for sample in samples_of(tmp_path):
        played = episodes[sample.seed].actions
        assert sample.past[:-1] == played[: len(sample.past) - 1]
        assert sample.past[-1] != played[len(sample.past) - 1]
        env.reset(seed=sample.seed, options={"task": sample.task})
        for action in sample.past:
            env.step(action)
        assert (env.observation, env.expert(), env.reflection()) == (
            sample.observation,
            sample.action,
            sample.reflection,
        )


def test_no_sample_shows_the_start_of_a_held_out_task(tmp_path: Path) -> None:
    summary = generate(taxi({"samples": 150}), tmp_path)
    env = make_env("dangerous_taxi")
    tasks = [task for split in ("validation", "test") for task in env.split_tasks(split)]
    starts = [env.reset(seed=0, options={"task": task})[0] for task in tasks]
    assert summary.held_out > 0
    for row in read_rows(tmp_path / "sft" / "reflector.jsonl"):
        assert not any(start in row.prompt.text for start in starts)


class FarLine(NumberLine):
    """Has one held-out split, and no task in the usual ones."""

    further_splits = ("far",)

    def tasks(self, split: str) -> Sequence[Task]:
        return [] if split in ("validation", "test") else super().tasks("test" if split == "far" else "train")


def test_no_sample_shows_the_start_of_a_task_of_a_further_split(tmp_path: Path) -> None:
    register_env("far_line", FarLine)
    assert generate(recipe({"samples": 60}, env={"name": "far_line"}), tmp_path).held_out > 0
    env = FarLine()
    starts = [env.reset(seed=0, options={"task": task})[0] for task in env.tasks("far")]
    for row in read_rows(tmp_path / "sft" / "reflector.jsonl"):
        assert not any(start in row.prompt.text for start in starts)


def test_noise_is_played_while_the_experts_action_stays_the_label(tmp_path: Path) -> None:
    generate(recipe({"noise": 0.5, "negatives": 0.0, "samples": 80}), tmp_path)
    env = make_env("number_line")
    header, trajectories = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    labels = {row.prompt.text: row.completion for row in read_rows(tmp_path / "sft" / "policy.jsonl")}
    strayed = 0
    for trajectory in trajectories:
        env.reset(seed=trajectory.seed, options={"task": trajectory.task})
        for turn, (_, prompt) in zip(trajectory.turns, prompts_of(trajectory, header.prompt), strict=True):
            if prompt.text in labels:
                assert turn.menu[int(labels[prompt.text])] == env.expert()
                strayed += turn.decision.action != env.expert()
            env.step(turn.decision.action)
    assert strayed > 0
    assert any("Mistake" in row.completion for row in read_rows(tmp_path / "sft" / "reflector.jsonl"))


def test_a_chat_teacher_reflects_then_chooses_and_plays_its_choice(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = clever
    summary = generate(remote(endpoint, {"trajectory": "teacher"}), tmp_path)
    assert summary is not None
    assert (summary.success_rate, summary.samples, summary.usage.retries) == (1.0, 12, 0)
    assert summary.usage.calls == len(endpoint.requests)
    assert summary.usage.prompt_tokens == 7 * summary.usage.calls
    chats = [request.chat for request in endpoint.requests]
    assert {len(chat) for chat in chats} == {2, 4}
    assert all("Private note" not in str(chat) for chat in chats)
    assert any("mistake" in chat[1]["content"] for chat in chats)
    assert {row.completion for row in read_rows(tmp_path / "sft" / "reflector.jsonl")} == {" The target is elsewhere."}


def test_the_result_does_not_depend_on_which_episode_ends_first(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = clever
    for folder, concurrency in (("one", 1), ("four", 4)):
        endpoint.faults.extend(["slow:0.05", "none", "none", "slow:0.03"] * 3)
        generate(remote(endpoint, {"trajectory": "teacher", "concurrency": concurrency}), tmp_path / folder)
    assert contents(tmp_path / "one") == contents(tmp_path / "four")


def test_an_oracles_spoiler_reaches_the_teacher_and_no_file(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    def parrot(chat: Chat) -> str:
        return chat[-1]["content"] if len(chat) == 2 else "Closer now."

    endpoint.reply = parrot
    generate(remote(endpoint, {"trajectory": "oracle"}), tmp_path)
    assert any(len(request.chat) == 4 for request in endpoint.requests)
    assert all("Private note: The best next action is" in request.chat[1]["content"] for request in endpoint.requests)
    assert not any(b"Private note" in content or b"best next" in content for content in contents(tmp_path).values())


def test_a_teacher_that_only_repeats_its_spoiler_is_given_up(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda chat: chat[1]["content"]
    with pytest.raises(WorkFailed, match=r"2\d calls were set aside.*in 3 attempts.*repeats the private note"):
        generate(remote(endpoint, {"trajectory": "oracle"}), tmp_path)
    assert not (tmp_path / "sft").exists()


def test_a_call_without_a_usable_reply_is_set_aside_and_the_others_go_on(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    def moody(chat: Chat) -> str:
        return "7" if "Now choose" in str(chat) and "Number 2, target 5" in str(chat) else clever(chat)

    endpoint.reply = moody
    told = remote(endpoint, {"trajectory": "teacher", "samples": 30})
    summary = generate(told, tmp_path)
    assert summary is not None
    assert summary.samples == 30
    assert summary.usage.rejected == len(rejected(tmp_path)) == 1
    [call] = rejected(tmp_path)
    assert "not a label of the menu" in call["reason"]
    assert "Number 2, target 5" in call["chat"][1]["content"]
    _, episodes = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    assert any(episode.truncated and not episode.success for episode in episodes)
    assert not any("Number 2, target 5" in row.prompt.text for row in read_rows(tmp_path / "sft" / "policy.jsonl"))
    endpoint.requests.clear()
    before = contents(tmp_path)
    generate(told, tmp_path)
    assert (endpoint.requests, contents(tmp_path)) == ([], before)


def test_what_was_paid_for_survives_a_failure_and_is_not_asked_again(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = clever
    small = {"trajectory": "teacher", "concurrency": 1}
    generate(remote(endpoint, small), tmp_path / "whole")
    calls = len(endpoint.requests)
    endpoint.faults.extend(["none"] * (calls // 2) + ["401"])
    with pytest.raises(WorkFailed, match="key was refused"):
        generate(remote(endpoint, small), tmp_path / "broken")
    assert len(kept(tmp_path / "broken")) == calls // 2
    endpoint.requests.clear()
    generate(remote(endpoint, small), tmp_path / "broken")
    assert len(endpoint.requests) == calls - calls // 2
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


PRICED = {"price": {"prompt": 1.0, "completion": 2.0}}


def priced(endpoint: ScriptedEndpoint) -> Recipe:
    there = {"base_url": endpoint.url, "max_tokens": 50, **PRICED}
    return remote(endpoint, {"trajectory": "teacher", "endpoint": there, "concurrency": 1})


def test_no_more_than_the_allowed_money_is_spent_and_more_goes_on(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = clever
    whole = generate(priced(endpoint), tmp_path / "whole")
    assert whole is not None
    assert whole.spent == whole.usage.cost == pytest.approx(whole.usage.calls * 17e-6)
    calls = len(endpoint.requests)
    endpoint.requests.clear()
    with pytest.raises(WorkFailed, match="0.001.*--max-cost"):
        generate(priced(endpoint), tmp_path / "poor", spending=Spending(max_cost=0.001))
    assert 0 < len(endpoint.requests) * 17e-6 <= 0.001
    summary = generate(priced(endpoint), tmp_path / "poor", spending=Spending(max_cost=1.0))
    assert summary is not None
    assert summary.spent == pytest.approx(whole.spent)
    assert len(endpoint.requests) == calls
    assert contents(tmp_path / "poor") == contents(tmp_path / "whole")


def test_a_limit_on_money_needs_a_price(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="gpt-4o.*price"):
        generate(remote(endpoint, {}), tmp_path, spending=Spending(max_cost=1.0))


def test_openai_without_a_key_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY is not set"):
        generate(recipe({"teacher": "openai"}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_gen_data_by_the_expert_loads_neither_torch_nor_openai(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from reflectrl.config import Recipe; from reflectrl.data_gen import generate;"
        "generate(Recipe.model_validate({'name': 't', 'env': {'name': 'number_line'}}), pathlib.Path(sys.argv[1]));"
        "print([name for name in ('torch', 'openai', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
