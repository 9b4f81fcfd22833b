"""Stages in several processes, as `torchrun` starts them: what they write is what one process writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser, prepare_multi_gpu_env
from cpu_fsdp import CONFIG, asked
from prepared_runs import files
from run_folders import unfinish
from safetensors.torch import load_file
from trained_runs import SMALL, TrainedRuns, play_stages, small_recipe
from warm_processes import command_line, command_line_of_rank, start_ranks

from reflectrl.config import Recipe
from reflectrl.core.jsonl import append_jsonl
from reflectrl.core.run_files import unfinished_file, unfinished_files
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.team import Team

pytestmark = pytest.mark.slow

EVALUATED = (
    "eval.policies=[random, sft, rlft]",
    "eval.controls=[blank, shuffled]",
    "eval.greedy=true",
    "eval.trials.policies=[rlft]",
    "eval.trials.count=2",
    "sft.policy.steps=25",
)


def in_ranks(run: Path, stage: str, *overrides: str, recipe: str = "number_line/nano", ranks: int = 2) -> list[str]:
    """Run a stage in several processes; return what each of them has said."""
    given = small_recipe(*overrides, name=recipe)
    (run.parent / "recipe.yaml").write_text(given.model_dump_json())
    command = (stage, "--recipe", str(run.parent / "recipe.yaml"), "--runs", str(run.parent), "--run", run.name)
    started = start_ranks(run.parent, command_line, *command, ranks=ranks)
    for process in started:
        assert process.wait() == 0, process.said
    return [process.said for process in started]


def test_an_evaluation_writes_the_same_bytes_in_one_and_three_processes(
    trained_run: TrainedRuns, tmp_path: Path
) -> None:
    name = "rap/nano_trials"
    before = trained_run(*EVALUATED, name=name, stages=STAGES[:3])
    runs = [shutil.copytree(before, tmp_path / name / "run") for name in ("one", "three")]
    play_stages(small_recipe(*EVALUATED, name=name), runs[0], "eval")
    said = in_ranks(runs[1], "eval", *EVALUATED, recipe=name, ranks=3)
    assert "success on" in said[0]
    assert set(said[1:]) == {""}
    alone, there = ({**files(run), "recipe.yaml": b""} for run in runs)
    assert {path for path in alone if path.startswith("trajectories/eval-rlft-shuffled")}
    assert "trials.jsonl" in alone
    assert {path for path in alone if there.get(path) != alone[path]} == set()
    assert there.keys() == alone.keys()


def make_base(run: Path, recipe: Recipe) -> None:
    """Leave the base of another recipe in a run folder, as a refused attempt does."""
    Team(recipe, RunFolder(run)).base("policy")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_fine_tuned_alike(run: Path, alone: Path, *players: str) -> None:
    for player in players:
        found, expected = (lines(each / f"sft/{player}-training.jsonl") for each in (run, alone))
        assert len(found) == len(expected) > 0
        for here, there in zip(found, expected, strict=True):
            close = {
                key: pytest.approx(at, rel=0, abs=1e-5) if isinstance(at, float) else at for key, at in there.items()
            }
            assert here == close
    for folder in alone.glob("*/model.safetensors"):
        if folder.parent.name in ("reflector", "policy-sft"):
            weights, others = load_file(run / folder.relative_to(alone)), load_file(folder)
            assert weights.keys() == others.keys()
            # the gradient of the keys' bias is nothing but rounding, which Adam scales up
            compared = [name for name in weights if not name.endswith("attn.c_attn.bias")]
            assert max(float((weights[name] - others[name]).abs().max()) for name in compared) < 1e-4


def test_rows_that_other_processes_have_played_are_not_played_again(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run(), tmp_path / "run")
    rows = lines(run / "eval.jsonl")
    unfinish(run, "eval")
    (run / "eval.jsonl").unlink()
    for rank in (0, 1):  # as if two processes had been killed when all was played but not put together
        append_jsonl(run / unfinished_file("eval", rank), rows[rank::2])
    played = {path: path.stat().st_mtime_ns for path in (run / "trajectories").glob("eval-*.jsonl")}
    play_stages(small_recipe(), run, "eval")
    assert lines(run / "eval.jsonl") == rows
    assert {path: path.stat().st_mtime_ns for path in played} == played
    assert unfinished_files(run, "eval") == []


def test_a_whole_run_in_two_processes_fine_tunes_like_one_process_and_plays_twice_the_episodes(
    trained_run: TrainedRuns, tmp_path: Path
) -> None:
    alone, run = trained_run(), tmp_path / "run"
    said = in_ranks(run, "run")
    assert "gen-data           works in the first process; the others wait" in said[0]
    assert "report: " in said[0]
    assert not any(word in said[1] for word in ("report: ", "gen-data", "loss", "success"))
    for path in ("data/teacher.jsonl", "sft/reflector.jsonl", "sft/policy.jsonl", "base/model.safetensors"):
        assert (run / path).read_bytes() == (alone / path).read_bytes()
    assert_fine_tuned_alike(run, alone, "reflector", "policy")
    assert not (run / "checkpoints" / "sft-policy").exists()
    rows, before = lines(run / "metrics.jsonl"), lines(alone / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(4))
    assert rows[0]["env_steps"] > 1.3 * before[0]["env_steps"]  # each process plays as many episodes as one alone
    assert {each["policy"] for each in lines(run / "eval.jsonl")} == {
        each["policy"] for each in lines(alone / "eval.jsonl")
    }


def test_a_single_player_is_fine_tuned_alike_whose_rows_of_both_kinds_are_dealt(
    trained_run: TrainedRuns, tmp_path: Path
) -> None:
    both = ("players.reflector.player=self", "sft.policy.batch_size=8", "sft.policy.micro_batch_size=4")
    alone = trained_run(*both, stages=STAGES[:2])
    run = shutil.copytree(trained_run(*both, stages=STAGES[:1]), tmp_path / "run")
    in_ranks(run, "sft", *both)
    assert_fine_tuned_alike(run, alone, "reflector", "policy")


def test_processes_that_wait_for_one_that_fails_end_with_a_sentence(tmp_path: Path) -> None:
    asked = ("data.teacher=openai", "data.endpoint.base_url=http://127.0.0.1:9/v1", "data.endpoint.max_attempts=1")
    command = ("gen-data", "--recipe", "number_line/nano", "--runs", str(tmp_path), "--run", "run", *asked)
    first, second = start_ranks(tmp_path, command_line, *command, *SMALL)
    assert first.wait() != 0
    assert second.wait(30) == 1
    assert "process 1 of 2 ends, because another one has ended; its message says why." in second.said
    assert "Traceback" not in second.said


def test_processes_with_different_recipes_are_refused_before_any_work(tmp_path: Path) -> None:
    command = ("gen-data", "--recipe", "number_line/nano", "--runs", str(tmp_path), "--run", "run")
    for process in start_ranks(tmp_path, command_line_of_rank, *command):
        assert process.wait() == 2
        assert "processes 1 of 2 have another recipe or run folder than process 0" in process.said
    assert not (tmp_path / "run").exists()


def test_a_base_of_an_attempt_with_another_recipe_is_not_used(tmp_path: Path) -> None:
    narrow = ("model.builtin.width=32", "sft.policy.batch_size=8", "sft.policy.micro_batch_size=8")
    play_stages(small_recipe(), tmp_path / "run", "gen-data")
    make_base(tmp_path / "run", small_recipe(*narrow))
    in_ranks(tmp_path / "run", "sft")
    assert json.loads((tmp_path / "run" / "base" / "config.json").read_text())["n_embd"] == 64


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_accelerate_launches_what_the_shipped_configurations_ask_for(name: str) -> None:
    command = ["--config_file", str(CONFIG.with_name(f"{name}.yaml")), "-m", "reflectrl", "rlft"]
    given, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    found = prepare_multi_gpu_env(given)
    assert (found["ACCELERATE_MIXED_PRECISION"], given.num_processes) == ("no", 2)
    if name == "ddp":
        assert "ACCELERATE_USE_FSDP" not in found
    else:
        wanted = {key: at.lower() for key, at in asked().items()}
        assert {key: found.get(key, "").lower() for key in wanted} == wanted
