from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, WorkFailed, make_env
from reflectrl.data_gen import generate, read_rows
from reflectrl.data_gen.samples import Sample, read_samples
from reflectrl.rollout.record import prompts_of, read_trajectories


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
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


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
        assert row.prompt in pairs
        assert row.completion.startswith(" ")
    for row in read_rows(tmp_path / "sft" / "policy.jsonl"):
        assert row.prompt in policy
        assert row.completion in row.labels


def test_rows_without_reflection_differ_in_nothing_else(tmp_path: Path) -> None:
    generate(taxi({}), tmp_path)
    with_it, without = (read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ("policy", "policy-no-reflection"))
    reflections = [row.completion for row in read_rows(tmp_path / "sft" / "reflector.jsonl")]
    for row, bare, said in zip(with_it, without, reflections, strict=True):
        assert row.prompt.replace(f"Reflection:{said}\n", "") == bare.prompt
        assert (row.completion, row.labels, row.task, row.step) == (bare.completion, bare.labels, bare.task, bare.step)


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
        assert not any(start in row.prompt for start in starts)


def test_noise_is_played_while_the_experts_action_stays_the_label(tmp_path: Path) -> None:
    generate(recipe({"noise": 0.5, "negatives": 0.0, "samples": 80}), tmp_path)
    env = make_env("number_line")
    header, trajectories = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    labels = {row.prompt: row.completion for row in read_rows(tmp_path / "sft" / "policy.jsonl")}
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
    assert (summary.success_rate, summary.samples, summary.retries) == (1.0, 12, 0)
    assert summary.calls == len(endpoint.requests)
    assert summary.prompt_tokens == 7 * summary.calls
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
    summary = generate(remote(endpoint, {"trajectory": "oracle"}), tmp_path)
    assert summary.retries > 0
    assert all("Private note: The best next action is" in request.chat[1]["content"] for request in endpoint.requests)
    assert not any(b"Private note" in content or b"best next" in content for content in contents(tmp_path).values())


def test_a_teacher_that_only_repeats_its_spoiler_fails(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda chat: chat[1]["content"]
    with pytest.raises(WorkFailed, match="in 3 attempts.*repeats the private note"):
        generate(remote(endpoint, {"trajectory": "oracle"}), tmp_path)
    assert not (tmp_path / "sft").exists()


def test_a_teacher_that_names_no_label_fails(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda chat: "up, I think"  # noqa: ARG005
    with pytest.raises(WorkFailed, match="not a label of the menu"):
        generate(remote(endpoint, {"trajectory": "teacher"}), tmp_path)


def test_finished_episodes_survive_a_failure_and_are_not_asked_again(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = clever
    small = {"trajectory": "teacher", "concurrency": 1}
    generate(remote(endpoint, small), tmp_path / "whole")
    calls = len(endpoint.requests)
    endpoint.faults.extend(["none"] * (calls // 2) + ["401"])
    with pytest.raises(WorkFailed, match="key was refused"):
        generate(remote(endpoint, small), tmp_path / "broken")
    kept = len((tmp_path / "broken" / "data" / "episodes.partial.jsonl").read_text().splitlines()) - 1
    assert kept > 0
    endpoint.requests.clear()
    summary = generate(remote(endpoint, {**small, "concurrency": 2}), tmp_path / "broken")
    assert summary.calls < calls
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_finished_episodes_of_another_recipe_are_refused(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = clever
    endpoint.faults.extend(["none"] * 20 + ["401"])
    with pytest.raises(WorkFailed):
        generate(remote(endpoint, {"trajectory": "teacher", "concurrency": 1, "samples": 60}), tmp_path)
    with pytest.raises(InvalidInput, match="finished episodes of other settings"):
        generate(remote(endpoint, {"trajectory": "teacher"}, seed=5), tmp_path)


def test_openai_without_a_key_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY is not set"):
        generate(recipe({"teacher": "openai"}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_file_is_json_with_one_object_a_line(tmp_path: Path) -> None:
    generate(recipe({}), tmp_path)
    for content in contents(tmp_path).values():
        assert all(isinstance(json.loads(line), dict) for line in content.decode().splitlines())


def test_gen_data_by_the_expert_loads_neither_torch_nor_openai(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from reflectrl.config import Recipe; from reflectrl.data_gen import generate;"
        "generate(Recipe.model_validate({'name': 't', 'env': {'name': 'number_line'}}), pathlib.Path(sys.argv[1]));"
        "print([name for name in ('torch', 'openai', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
