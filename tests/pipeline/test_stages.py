from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace

import pytest
import torch
from faulty import restored_registry
from prepared_runs import results
from trained_runs import play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, WorkFailed, register_env
from reflectrl.data_gen.generate import Spending
from reflectrl.data_gen.rows import Row, write_rows
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.sft_stage import reflected_rows, shows, training_rows, wanted_players, with_own_reflections
from reflectrl.pipeline.stages import memory_errors
from reflectrl.pipeline.team import Team
from reflectrl.prompts import Menu, Prompt
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

MADE = ("data", "sft", "base", "reflector", "policy-sft", "policy", "metrics.jsonl", "eval.jsonl", "trajectories")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(trained_run):
    return trained_run()


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


def test_a_run_leaves_everything_that_the_readme_names(finished):
    for name in (*MADE, "recipe.yaml", "stages.json", "throughput.jsonl", "checkpoints"):
        assert (finished / name).exists(), name
    assert load_recipe(str(finished / "recipe.yaml")) == small_recipe()
    weights = {
        (finished / player / "model.safetensors").read_bytes() for player in ("reflector", "policy-sft", "policy")
    }
    assert len(weights) == 3
    assert {path.suffix for path in finished.rglob("*.*")} <= {".jsonl", ".json", ".safetensors", ".yaml", ".jinja", ""}
    rows = read_results(finished / "eval.jsonl")
    assert {row.policy for row in rows} == {"random", "sft", "rlft", "expert"}
    assert next(row for row in rows if row.policy == "expert").metrics.success == 1.0
    header, played = read_trajectories(finished / "trajectories" / "eval-rlft-local-sampled.jsonl")
    assert (header.env, len(played)) == ("number_line", 12)


def test_each_iteration_is_reported_with_its_episodes_and_their_advantages(finished):
    assert min(pace["prompt_reuse"] for pace in lines(finished / "throughput.jsonl")) > 0.1
    metrics = lines(finished / "metrics.jsonl")
    assert [row["iteration"] for row in metrics] == list(range(4))
    assert all(abs(row["kl"]) < 1e-5 for row in metrics)  # one update a batch: sampled and re-scored agree
    for number in range(4):
        _, played = read_trajectories(finished / "trajectories" / f"rlft-{number:05d}.jsonl")
        advantages = lines(finished / "trajectories" / f"advantages-{number:05d}.jsonl")
        assert [len(row) for row in advantages] == [len(trajectory.turns) for trajectory in played]
        assert any(value != 0 for row in advantages for value in row)


@pytest.mark.parametrize(("visible", "seen"), [(None, "0"), ("2,3", "2"), ("", "")])
def test_a_single_process_sees_one_gpu(visible, seen, run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "skipped" in play_stages(small_recipe(), run, "gen-data")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_with_workers(finished, tmp_path):
    play_stages(small_recipe("env.workers=2", "env.max_failures=1"), tmp_path / "run")
    again, before = results(tmp_path / "run"), results(finished)
    assert again.pop("recipe.yaml") != before.pop("recipe.yaml")
    assert again == before
    assert {pace["env_failures"] for pace in lines(tmp_path / "run" / "throughput.jsonl")} == {0}


@pytest.mark.slow
def test_x7_another_seed_gives_another_run(finished, trained_run):
    before, other = results(finished), results(trained_run("seed=7"))
    assert set(other) == set(before)
    drawn = {"metrics.jsonl", "eval.jsonl", "data/teacher.jsonl", "sft/policy.jsonl", "policy/model.safetensors"}
    assert all(other[name] != before[name] for name in drawn)


# ---- what changes a stage --------------------------------------------------------------------------------------------

ASKED = ("timeout_s=9", "max_attempts=2", "max_rejected=0", "concurrency=1", "price={prompt: 1, completion: 2}")
NO_INPUTS = (
    *("env.workers=2", "env.deadline_s=5", "env.on_failure=drop", "env.max_failures=9", "env.max_memory_mb=4000"),
    *("eval.batch_size=7", "rlft.batch_size=3", "rlft.micro_batch_tokens=512", "rlft.save_every=3"),
    "rlft.record_episodes=1",
    *("data.concurrency=2", *(f"{part}.endpoint.{how}" for part in ("data", "players.reflector") for how in ASKED)),
)


def test_done_stages_are_skipped_whatever_changes_that_no_result_depends_on(run):
    before = results(run)
    for changes in ((), NO_INPUTS):
        assert play_stages(small_recipe(*changes), run).count("skipped") == 4
        assert results(run) == before


def test_changed_inputs_of_a_done_stage_are_named_and_refused(finished):
    with pytest.raises(InvalidInput, match=r"rlft\.learning_rate: 0\.001 -> 0\.5"):
        play_stages(small_recipe("rlft.learning_rate=0.5"), finished, "rlft")
    with pytest.raises(InvalidInput, match=r"\(rlft\.lessons\.0\.iterations: \d+ -> 90\)"):
        play_stages(small_recipe("rlft.lessons.0.iterations=90"), finished, "rlft")
    with pytest.raises(InvalidInput, match=r"data\.samples: \d+ -> 41"):
        play_stages(small_recipe("data.samples=41"), finished, "eval")


@pytest.mark.slow
def test_batch_size_changes_no_evaluation_and_controls_replace_words(finished, run):
    play_stages(small_recipe("eval.batch_size=7", "eval.controls=[blank, shuffled, expert]"), run, "eval")
    rows = {(row.policy, row.reflections, row.mode): row.metrics for row in read_results(run / "eval.jsonl")}
    for row in read_results(finished / "eval.jsonl"):
        # entropies are sums of floats that depend on the padding; what was played does not
        metrics = rows[row.policy, row.reflections, row.mode]
        assert replace(row.metrics, entropy=0.0) == replace(metrics, entropy=0.0), row.policy
    said = {}
    for control in ("blank", "shuffled", "expert"):
        _, played = read_trajectories(run / "trajectories" / f"eval-rlft-{control}-sampled.jsonl")
        said[control] = {turn.reflection for trajectory in played for turn in trajectory.turns}
    assert said["blank"] == {""}
    assert said["expert"] != said["shuffled"] != {""}


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_players_are_fine_tuned_one_at_a_time(trained_run, tmp_path):
    with pytest.raises(InvalidInput, match="needs 'gen-data'"):
        play_stages(small_recipe(), tmp_path / "run", "sft")
    with pytest.raises(InvalidInput, match="'rlft'"):
        play_stages(small_recipe(), tmp_path / "run", "rlf")
    assert not (tmp_path / "run").exists()
    run = shutil.copytree(trained_run(stages=STAGES[:1]), tmp_path / "run")
    with pytest.raises(InvalidInput, match="it trains: policy"):
        run_stages(small_recipe("players.reflector.player=none"), run, ("sft",), sft_players=("reflector",))
    shutil.rmtree(run)
    run = shutil.copytree(trained_run(stages=STAGES[:1]), tmp_path / "run")
    run_stages(small_recipe(), run, ("sft",), sft_players=("reflector",))
    assert not RunFolder(run).is_done("sft")
    with pytest.raises(InvalidInput, match="needs 'sft'"):
        play_stages(small_recipe(), run, "rlft")
    run_stages(small_recipe(), run, ("sft",), sft_players=("policy",))
    assert RunFolder(run).is_done("sft")


def test_the_seconds_of_a_stage_add_up(tmp_path):
    run, recipe = RunFolder(tmp_path / "run"), small_recipe()

    def seconds():
        entry = json.loads((run / "stages.json").read_text())["sft"]
        return entry["wall_seconds"], entry["cpu_seconds"]

    def stop():
        time.sleep(0.2)
        raise KeyboardInterrupt

    with run.locked():
        with pytest.raises(KeyboardInterrupt), run.begun(recipe, "sft"), run.timed("sft"):
            stop()
        stopped = seconds()
        assert stopped[0] >= 0.2 > stopped[1]
        run.begin(recipe, "sft")  # killed before it could note its seconds
        assert seconds() == stopped
        with run.begun(recipe, "sft"), run.timed("sft"):
            sum(range(3_000_000))
        assert all(after > before for after, before in zip(seconds(), stopped, strict=True))
        run.finish(recipe, "sft")
        assert seconds()[0] >= 0.2


class Undecided(NumberLine):
    """NumberLine whose expert says nothing."""

    def expert(self):
        return None

    def reflection(self):
        return None


@pytest.mark.parametrize(("key", "method"), [("policies", r"expert\(\)"), ("controls", r"reflection\(\)")])
def test_an_expert_that_the_evaluation_needs_is_asked_before_gen_data(key, method, tmp_path):
    with restored_registry():
        register_env("undecided", Undecided)
        asked = {"policies": "[sft, rlft]", "controls": "[]", key: "[expert]"}
        changes = [f"eval.{name}={value}" for name, value in asked.items()]
        recipe = small_recipe("env={name: undecided, options: {size: 8}}", *changes)
        with pytest.raises(InvalidInput, match=f"eval.{key} has 'expert', .* says nothing .*; write {method} for"):
            run_stages(recipe, tmp_path / "run", STAGES)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_too_long_prompts_are_found_before_sft(trained_run, tmp_path):
    run = shutil.copytree(trained_run(stages=STAGES[:1]), tmp_path / "run")
    with pytest.raises(InvalidInput, match="max_length"):
        run_stages(small_recipe("model.max_length=16"), run, ("sft",))
    assert not RunFolder(run).has_begun("sft")
    run_stages(small_recipe("sft.reflector.steps=1", "sft.policy.steps=1"), run, ("sft",))


def test_a_dry_run_is_for_gen_data_alone(trained_run, tmp_path):
    run = shutil.copytree(trained_run(stages=STAGES[:1]), tmp_path / "run")
    with pytest.raises(InvalidInput, match="only gen-data"):
        run_stages(small_recipe(), run, STAGES, spending=Spending(dry_run=True))
    assert not RunFolder(run).has_begun("sft")
    run_stages(small_recipe(), tmp_path / "new", ("gen-data",), spending=Spending(dry_run=True))
    assert not (tmp_path / "new").exists()


def test_a_full_device_is_a_sentence():
    with pytest.raises(WorkFailed, match=r"lower rlft\.micro_batch_tokens or rlft\.batch_size"), memory_errors("rlft"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


# ---- recipes ---------------------------------------------------------------------------------------------------------

ABLATIONS = {
    "expert reflects": ["players.reflector.player=expert", "model.prefix_reuse=false", "eval.controls=[blank, expert]"],
    "rlft only": ["sft.enabled=false", "players.reflector.player=none", "eval.policies=[base, rlft]"],
}


@pytest.mark.slow
def test_a_recipe_without_rlft_is_evaluated_after_sft(trained_run, tmp_path):
    only = ("rlft=null", "eval.policies=[sft]", "eval.controls=[]")
    run = shutil.copytree(trained_run(*only, stages=STAGES[:2]), tmp_path / "run")
    assert "not part of this recipe" in play_stages(small_recipe(*only), run, "eval")
    assert {row.policy for row in read_results(run / "eval.jsonl")} == {"sft"}


@pytest.mark.slow
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_ablations_go_from_data_to_a_table(ablation, tmp_path):
    short = ("data.samples=40", "rlft.lessons.0.iterations=1", "eval.policies=[rlft]", "eval.episodes=2")
    play_stages(small_recipe(*short, *ABLATIONS[ablation], "eval.max_tasks=2"), tmp_path / "run")
    rows = read_results(tmp_path / "run" / "eval.jsonl")
    said = [row.reflections for row in rows if (row.policy, row.mode) == ("rlft", "sampled")]
    assert said == (["expert", "blank"] if ablation == "expert reflects" else ["none"])  # its own words are no control
    [pace] = lines(tmp_path / "run" / "throughput.jsonl")
    assert (pace["prompt_reuse"] == 0) == ("model.prefix_reuse=false" in ABLATIONS[ablation])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("local", {"reflector": ["reflector"] * 3, "policy": ["policy"] * 2}),
        ("self", {"both": ["reflector"] * 3 + ["policy"] * 2}),
        ("expert", {"policy": ["policy"] * 2}),
        ("none", {"policy": ["policy-no-reflection"] * 2}),
    ],
)
def test_each_player_is_trained_on_its_rows(kind, expected, tmp_path):
    recipe = small_recipe(f"players.reflector.player={kind}", "sft.reflector.max_rows=3", "sft.policy.max_rows=2")
    for file in ("reflector", "policy", "policy-no-reflection"):
        menu = None if file == "reflector" else Menu(("0", "1"), ("left", "right"))
        player = "policy" if menu else "reflector"
        rows = [Row(player, Prompt(file, (), "", menu), "1", "task", step, False) for step in range(5)]
        write_rows(tmp_path / "sft" / f"{file}.jsonl", rows)
    run = RunFolder(tmp_path)
    rows = {player: training_rows(recipe, run, player) for player in wanted_players(recipe)}
    assert {player: [row.prompt.head for row in given] for player, given in rows.items()} == expected


def test_a_policy_may_be_shown_the_words_of_its_own_reflector_in_place_of_the_teacher_s(trained_run):
    recipe = small_recipe("data.reflection_dropout=0.3", "sft.policy.own_reflections=1.0")
    run = RunFolder(trained_run("data.reflection_dropout=0.3", "sft.policy.own_reflections=1.0", stages=STAGES[:2]))
    taught = training_rows(recipe, run, "reflector")
    words = Team(recipe, run).reflector(None).write([row.prompt for row in taught], [0.0] * len(taught))
    written = {
        (row.task, row.seed, row.step, row.negative): (row.completion, own.text)
        for row, own in zip(taught, words, strict=True)
    }
    before = training_rows(recipe, run, "policy")
    sources = reflected_rows(run, before)
    after = with_own_reflections(recipe, run, before, sources)
    exchanged = 0
    for row, shown, source in zip(before, after, sources, strict=True):
        teachers, own = written[row.task, row.seed, row.step, row.negative]
        if row.prompt.said != f"Reflection:{teachers}\n":  # blank, or another row's
            assert shown == row
            assert not shows(row, source)
            continue
        assert shows(row, source)
        assert shown == replace(row, prompt=replace(row.prompt, said=f"Reflection: {own}".strip() + "\n"))
        exchanged += shown != row
    assert exchanged > 50
    half = with_own_reflections(
        small_recipe("data.reflection_dropout=0.3", "sft.policy.own_reflections=0.5"), run, before, sources
    )
    assert 0.3 < sum(a != b for a, b in zip(before, half, strict=True)) / exchanged < 0.7


def test_a_policy_that_reads_its_own_reflector_is_not_trained_before_it(tmp_path):
    recipe = small_recipe("sft.policy.own_reflections=1.0")
    run_stages(recipe, tmp_path / "run", ["gen-data"])
    with pytest.raises(InvalidInput, match="fine-tune the reflector first"):
        run_stages(recipe, tmp_path / "run", ["sft"], sft_players=["policy"])


# ---- several processes -----------------------------------------------------------------------------------------------


def test_a_budget_of_one_process_s_minutes_is_refused_in_several(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInput, match="by the pace of one process, but 2 were started"):
        play_stages(small_recipe("budget.minutes=1"), tmp_path / "run", "gen-data")


def test_rows_that_processes_cannot_share_equally_are_refused_before_work_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InvalidInput, match=r"sft\.policy\.batch_size=16 was given with 3 processes"):
        play_stages(small_recipe(), tmp_path / "run", "gen-data")
    assert not (tmp_path / "run").exists()
