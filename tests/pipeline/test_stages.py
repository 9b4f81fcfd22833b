from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from run_folders import forget_digests

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.load import recipe_names
from reflectrl.core import InvalidInput
from reflectrl.data_gen.rows import Row, write_rows
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.sft import training_rows, wanted_players
from reflectrl.report import write_report
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

SMALL = [
    "sft.reflector.steps=4",
    "sft.policy.steps=4",
    "rlft.stages.0.iterations=12",
    "rlft.save_every=2",
    "rlft.episodes=6",
    "rlft.record_episodes=2",
    "eval.episodes=12",
]


def recipe(*overrides: str, name: str = "number_line/nano") -> Recipe:
    return load_recipe(name, [*SMALL, *overrides])


def bytes_of(run: Path, *names: str) -> dict[str, bytes]:
    """Contents of files and folders of a run; checkpoints and clocks are left out by not naming them."""
    files = [p for name in names for p in ([run / name] if (run / name).is_file() else (run / name).rglob("*"))]
    return {str(p.relative_to(run)): p.read_bytes() for p in files if p.is_file()}


RESULTS = ("data", "sft", "base", "reflector", "policy-sft", "policy", "metrics.jsonl", "eval.jsonl", "trajectories")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    run_stages(recipe(), run, STAGES, reporter=Reporter(Console(file=io.StringIO())))
    return run


def test_a_run_leaves_everything_the_readme_names(finished):
    for name in (*RESULTS, "recipe.yaml", "stages.json", "throughput.jsonl", "checkpoints"):
        assert (finished / name).exists(), name
    assert load_recipe(str(finished / "recipe.yaml")) == recipe()


def test_models_are_safetensors_without_pickles(finished):
    for player in ("reflector", "policy-sft", "policy"):
        assert (finished / player / "model.safetensors").is_file()
        assert not list((finished / player).glob("*.bin"))


def test_rlft_moved_the_policy_and_left_the_reflector_alone(finished):
    assert bytes_of(finished, "policy") != bytes_of(finished, "policy-sft")
    metrics = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in metrics] == list(range(12))
    assert all(abs(row["kl"]) < 1e-5 for row in metrics)  # one update a batch: sampled and re-scored agree


def test_every_policy_of_the_recipe_is_in_the_table(finished):
    rows = read_results(finished / "eval.jsonl")
    assert {row.policy for row in rows} == {"random", "sft", "rlft", "expert"}
    expert = next(row for row in rows if row.policy == "expert")
    assert expert.metrics.success == 1.0
    header, played = read_trajectories(finished / "trajectories" / "eval-rlft-local-sampled.jsonl")
    assert header.env == "number_line"
    assert len(played) == 12
    assert all(turn.reflection is not None for trajectory in played for turn in trajectory.turns)


def test_the_advantages_of_recorded_episodes_lie_beside_them(finished):
    for number in range(12):
        _, played = read_trajectories(finished / "trajectories" / f"rlft-{number:05d}.jsonl")
        told = (finished / "trajectories" / f"advantages-{number:05d}.jsonl").read_text().splitlines()
        advantages = [json.loads(line) for line in told]
        assert [len(row) for row in advantages] == [len(trajectory.turns) for trajectory in played]
        assert any(value != 0 for row in advantages for value in row)


def test_same_recipe_and_seed_twice_give_the_same_bytes(finished, tmp_path):
    run_stages(recipe(), tmp_path / "again", STAGES)
    assert bytes_of(tmp_path / "again", *RESULTS) == bytes_of(finished, *RESULTS)


def test_prompts_are_reused_as_the_recipe_says(finished, tmp_path):
    run_stages(recipe("model.prefix_reuse=false"), tmp_path, STAGES[:3], reporter=Reporter(Console(file=io.StringIO())))

    def reuse(run):
        return [json.loads(line)["prompt_reuse"] for line in (run / "throughput.jsonl").read_text().splitlines()]

    assert reuse(tmp_path) == [0.0] * 12
    assert min(reuse(finished)) > 0.1
    read, anew = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (finished, tmp_path)
    )
    assert read[0] == pytest.approx(anew[0], abs=1e-4)


def test_done_stages_are_skipped(finished):
    said = io.StringIO()
    before = bytes_of(finished, *RESULTS)
    run_stages(recipe(), finished, STAGES, reporter=Reporter(Console(file=said)))
    assert said.getvalue().count("skipped") == 4
    assert bytes_of(finished, *RESULTS) == before


def test_a_run_in_worker_processes_is_the_same_to_the_byte(finished, tmp_path):
    workers = recipe("env.workers=2", "env.max_failures=1")
    run_stages(workers, tmp_path / "run", STAGES, reporter=Reporter(Console(file=io.StringIO())))
    assert bytes_of(tmp_path / "run", *RESULTS) == bytes_of(finished, *RESULTS)
    paces = (tmp_path / "run" / "throughput.jsonl").read_text().splitlines()
    assert {json.loads(pace)["env_failures"] for pace in paces} == {0}


def test_where_the_environment_is_played_is_no_input_of_a_stage(finished, tmp_path):
    said, run = io.StringIO(), tmp_path / "run"
    shutil.copytree(finished, run)
    elsewhere = recipe(
        "env.workers=2", "env.deadline_s=5", "env.on_failure=drop", "env.max_failures=9", "env.max_memory_mb=4000"
    )
    run_stages(elsewhere, run, STAGES, reporter=Reporter(Console(file=said)))
    assert said.getvalue().count("skipped") == 4


def test_how_an_endpoint_is_asked_and_paid_is_no_input_of_a_stage(finished, tmp_path):
    said, run = io.StringIO(), tmp_path / "run"
    shutil.copytree(finished, run)
    asked = ("timeout_s=9", "max_attempts=2", "max_rejected=0", "concurrency=1", "price={prompt: 1, completion: 2}")
    changed = recipe("data.concurrency=2", *(f"{part}.endpoint.{how}" for part in ("data", "players") for how in asked))
    run_stages(changed, run, STAGES, reporter=Reporter(Console(file=said)))
    assert said.getvalue().count("skipped") == 4


def test_a_ledger_that_counted_such_settings_as_inputs_is_still_good(finished, tmp_path):
    said, run = io.StringIO(), tmp_path / "run"
    shutil.copytree(finished, run)
    ledger = json.loads((run / "stages.json").read_text())
    for entry in (ledger[stage] for stage in STAGES):
        entry["inputs"] |= {"data.concurrency": 8, "data.endpoint.timeout_s": 60.0}
    (run / "stages.json").write_text(json.dumps(ledger))
    run_stages(recipe(), run, STAGES, reporter=Reporter(Console(file=said)))
    assert said.getvalue().count("skipped") == 4


def test_credentials_in_addresses_of_earlier_versions_are_left_out_of_what_is_made_of_a_run(finished, tmp_path):
    run, address = forget_digests(shutil.copytree(finished, tmp_path / "run")), "http://me:secret@host/v1?key=secret"
    ledger = json.loads((run / "stages.json").read_text())
    for entry in ledger.values():
        entry["inputs"]["data.endpoint.base_url"] = address
    (run / "stages.json").write_text(json.dumps(ledger))
    values = yaml.safe_load((run / "recipe.yaml").read_text())
    values["data"]["endpoint"]["base_url"] = address
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    assert read_recipe(run).data.endpoint.base_url == "http://host/v1"
    assert "secret" not in write_report([run], tmp_path / "report.html").read_text()
    with pytest.raises(InvalidInput, match=r"base_url: 'http://host/v1' -> 'http://other/v1'") as caught:
        run_stages(recipe("data.endpoint.base_url=http://other/v1"), run, STAGES)
    assert "secret" not in str(caught.value)
    said = io.StringIO()
    run_stages(recipe("data.endpoint.base_url=http://host/v1"), run, STAGES, reporter=Reporter(Console(file=said)))
    assert said.getvalue().count("skipped") == 4


def test_changed_inputs_of_a_done_stage_are_named_and_refused(finished):
    with pytest.raises(InvalidInput, match=r"rlft\.learning_rate: 0\.001 -> 0\.5"):
        run_stages(recipe("rlft.learning_rate=0.5"), finished, ("rlft",))
    with pytest.raises(InvalidInput, match=r"data\.samples: \d+ -> 41"):
        run_stages(recipe("data.samples=41"), finished, ("eval",))


def test_a_changed_evaluation_is_simply_done_again(tmp_path):
    run, only = tmp_path / "run", ["sft.enabled=false", "players.reflector=none", "rlft=null"]
    first = recipe(*only, "eval.policies=[random]")
    run_stages(first, run, STAGES)
    said = io.StringIO()
    run_stages(recipe(*only, "eval.policies=[random, expert]"), run, STAGES, reporter=Reporter(Console(file=said)))
    assert "evaluating again" in said.getvalue()
    assert len(read_results(run / "eval.jsonl")) == 2


@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_evaluation_does_not_depend_on_its_batch_size(batch_size, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    run_stages(recipe(f"eval.batch_size={batch_size}"), run, ("eval",))
    for row, other in zip(read_results(run / "eval.jsonl"), read_results(finished / "eval.jsonl"), strict=True):
        # entropies are sums of floats that depend on the padding; what was played does not
        assert replace(row.metrics, entropy=0.0) == replace(other.metrics, entropy=0.0), row.policy


def test_a_stage_before_its_time_says_what_to_run_first(tmp_path):
    with pytest.raises(InvalidInput, match="run `reflectrl gen-data` first"):
        run_stages(recipe(), tmp_path / "run", ("sft",))


def test_unknown_stage_names_the_nearest(tmp_path):
    with pytest.raises(InvalidInput, match="did you mean 'rlft'"):
        run_stages(recipe(), tmp_path / "run", ("rlf",))


def test_one_player_at_a_time_leaves_sft_open(tmp_path):
    run = tmp_path / "run"
    run_stages(recipe(), run, ("gen-data",))
    run_stages(recipe(), run, ("sft",), sft_players=("reflector",))
    assert not RunFolder(run).is_done("sft")
    with pytest.raises(InvalidInput, match="run `reflectrl sft` first"):
        run_stages(recipe(), run, ("rlft",))
    run_stages(recipe(), run, ("sft",), sft_players=("policy",))
    assert RunFolder(run).is_done("sft")


def test_a_second_process_on_one_folder_is_refused(tmp_path):
    with RunFolder(tmp_path / "run").locked(), pytest.raises(InvalidInput, match="another process is working"):
        run_stages(recipe(), tmp_path / "run", ("gen-data",))


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        run_stages(recipe(), tmp_path / "file" / "run", ("gen-data",))


def test_a_foreign_ledger_is_a_sentence(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stages.json").write_text("[]")
    with pytest.raises(InvalidInput, match="is not the ledger"):
        run_stages(recipe(), tmp_path / "run", ("gen-data",))


@pytest.mark.parametrize(
    "overrides",
    [
        ["players.reflector=none"],
        ["players.reflector=expert"],
        ["players.reflector=self"],
        ["sft.enabled=false", "players.reflector=none", "eval.policies=[base, rlft]"],
        ["model.lora={r: 4, alpha: 8}"],
    ],
    ids=["no reflection", "expert reflects", "single player", "rlft only", "lora"],
)
def test_ablations_go_from_data_to_a_table(overrides, tmp_path):
    run = tmp_path / "run"
    run_stages(recipe(*overrides, "rlft.stages.0.iterations=2"), run, STAGES)
    assert any(row.policy == "rlft" for row in read_results(run / "eval.jsonl"))


@pytest.mark.parametrize("name", recipe_names())
def test_each_player_of_each_recipe_is_trained_on_its_kind_of_rows_however_few_are_used(name, tmp_path):
    chosen = load_recipe(name, ["sft.reflector.max_rows=3", "sft.policy.max_rows=2"])
    for file in ("reflector", "policy", "policy-no-reflection"):
        labels = () if file == "reflector" else ("0", "1")
        write_rows(
            tmp_path / "sft" / f"{file}.jsonl", [Row(file, "1", "task", step, False, labels) for step in range(5)]
        )
    policy = "policy-no-reflection" if chosen.players.reflector == "none" else "policy"
    expected = {"reflector": ["reflector"] * 3, "policy": [policy] * 2, "both": ["reflector"] * 3 + [policy] * 2}
    for player in wanted_players(chosen):
        assert [row.prompt for row in training_rows(chosen, RunFolder(tmp_path), player)] == expected[player]


def test_a_recipe_has_a_single_player():
    """Without one, the test above would not see both kinds of rows in one training."""
    assert any("both" in wanted_players(load_recipe(name)) for name in recipe_names())


def test_controls_replace_the_reflector_s_words(tmp_path):
    run = tmp_path / "run"
    run_stages(recipe("eval.controls=[blank, shuffled, expert]", "rlft.stages.0.iterations=2"), run, STAGES)
    said = {}
    for control in ("blank", "shuffled", "expert"):
        _, played = read_trajectories(run / "trajectories" / f"eval-rlft-{control}-sampled.jsonl")
        said[control] = {turn.reflection for trajectory in played for turn in trajectory.turns}
    assert said["blank"] == {""}
    assert said["expert"] != said["shuffled"] != {""}


def test_killed_while_training_and_started_again_equals_never_killed(finished, tmp_path):
    run = tmp_path / "killed"
    command = [sys.executable, "-m", "reflectrl", "run", "--recipe", "number_line/nano", "--runs", str(tmp_path)]
    command += ["--run", "killed", *SMALL]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        # between the checkpoint after iteration 2 and the end
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 3:
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.005)
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert not RunFolder(run).is_done("rlft")
    run_stages(recipe(), run, STAGES)
    assert bytes_of(run, *RESULTS) == bytes_of(finished, *RESULTS)


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.run([*command, "-m", "reflectrl", *arguments], capture_output=True, text=True, timeout=240)


def test_rlft_in_two_processes_plays_twice_the_episodes_and_leaves_one_policy(finished, tmp_path):
    run = tmp_path / "number_line-nano"  # torchrun takes the option --run for one of its own
    run_stages(recipe(), run, ("gen-data", "sft"))
    done = torchrun("rlft", "--recipe", "number_line/nano", "--runs", str(tmp_path), *SMALL)
    assert done.returncode == 0, done.stderr[-2000:]
    assert RunFolder(run).is_done("rlft")
    assert (run / "policy" / "model.safetensors").is_file()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    alone = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(12))
    assert rows[0]["env_steps"] > 1.3 * alone[0]["env_steps"]


def test_other_stages_refuse_several_processes(tmp_path):
    done = torchrun("gen-data", "--recipe", "number_line/nano", "--runs", str(tmp_path))
    assert done.returncode != 0
    assert "only rlft takes them" in done.stderr
