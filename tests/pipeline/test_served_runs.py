"""Runs whose frozen players write behind a server: the same bytes as in this process, also after a kill."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import reflectrl
from completions_server import CompletionsServer
from interruptions import command_that_ends
from tiny import language_model, tokenizer
from tiny_models import save_tiny
from trained_runs import TrainedRuns, play_stages, small_recipe
from warm_processes import WarmProcess

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import METRICS, training_episodes_file
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.pipeline import run_stages
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

pytestmark = pytest.mark.slow

SHORT = (
    "sft.reflector.steps=80",
    "rlft.episodes=3",
    "eval.policies=[sft, rlft]",
    "eval.episodes=6",
    "eval.max_tasks=3",
    "eval.greedy=false",
    "eval.controls=[]",
)
NOWHERE = "http://127.0.0.1:9/v1"


def served_by(url: str, **more: Any) -> tuple[str, ...]:
    endpoint = json.dumps({"model": "served", "base_url": url, "backoff_s": 0.01, "concurrency": 4, **more})
    return ("players.reflector.player=server", f"players.reflector.endpoint={endpoint}", *SHORT)


@pytest.fixture(scope="module")
def begun(trained_run: TrainedRuns) -> Path:
    """A run whose reflector is fine-tuned, and has to be served now."""
    return trained_run(*served_by(NOWHERE), stages=("gen-data", "sft"))


@pytest.fixture
def server(begun: Path) -> Iterator[CompletionsServer]:
    with CompletionsServer(begun / "reflector") as served:
        yield served


def episodes(path: Path) -> Any:
    return read_trajectories(path)[1]


def test_a_served_reflector_makes_the_run_of_a_local_one(
    begun: Path, server: CompletionsServer, trained_run: TrainedRuns, tmp_path: Path
) -> None:
    local = trained_run(*SHORT)
    run = shutil.copytree(begun, tmp_path / "run")
    play_stages(small_recipe(*served_by(server.url)), run, "rlft", "eval")
    for name in ("metrics.jsonl", training_episodes_file(3), "policy/model.safetensors"):
        assert (run / name).read_bytes() == (local / name).read_bytes()
    assert [row.reflections for row in read_results(run / "eval.jsonl")] == ["server"] * 2
    said = {turn.reflection for each in episodes(run / training_episodes_file(3)) for turn in each.turns}
    assert len({words for words in said if words}) > 1
    for name in ("sft", "rlft"):
        there, here = (run / "trajectories" / f"eval-{name}-server-sampled.jsonl"), local / "trajectories"
        assert episodes(there) == episodes(here / f"eval-{name}-local-sampled.jsonl")
    asked = [tuple(each["prompt"]) for each in server.asked]
    assert len(asked) == len(set(asked))
    [line] = (run / "calls" / "reflector" / "servers.jsonl").read_text().splitlines()
    assert json.loads(line)["root"] == str(begun / "reflector")


def test_a_killed_run_with_samples_goes_on_at_another_address_to_the_same_bytes_and_asks_nothing_twice(
    begun: Path, server: CompletionsServer, tmp_path: Path
) -> None:
    warm = "players.reflector.temperature=1.0"
    whole, run = (shutil.copytree(begun, tmp_path / name) for name in ("whole", "run"))
    play_stages(small_recipe(*served_by(server.url), warm), whole, "rlft")
    once, file = len(server.asked), tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(small_recipe(*served_by(server.url), warm)), encoding="utf-8")
    command = ("rlft", "--recipe", str(file), "--runs", str(tmp_path), "--run", "run")
    killed = WarmProcess(tmp_path / "log", command_that_ends, METRICS, 3, signal.SIGKILL, *command)
    assert killed.wait() == -signal.SIGKILL, killed.said
    before = len(server.asked) - once
    with CompletionsServer(begun / "reflector") as elsewhere:
        play_stages(small_recipe(*served_by(elsewhere.url), warm), run, "rlft")
        assert before + len(elsewhere.asked) == once
        assert elsewhere.asked
    for name in (METRICS, training_episodes_file(3), "policy/model.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    served_there = (run / "calls" / "reflector" / "servers.jsonl").read_text().splitlines()
    assert [json.loads(line)["address"] for line in served_there] == [server.url, elsewhere.url]


def test_a_server_that_cannot_be_used_is_refused_before_any_work(
    begun: Path, server: CompletionsServer, tmp_path: Path
) -> None:
    run = shutil.copytree(begun, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}

    def said(url: str, **more: Any) -> str:
        file = tmp_path / "recipe.yaml"
        file.write_text(dump_recipe(small_recipe(*served_by(url, **more))), encoding="utf-8")
        done = reflectrl("rlft", "--recipe", file, "--runs", tmp_path, "--run", "run")
        assert done.code == 2
        return done.err

    assert "cannot be reached" in said(NOWHERE)
    assert "not 'other'; set endpoint.model" in said(server.url, model="other")
    server.max_model_len = 20
    assert "restart it with --max-model-len" in said(server.url)
    server.max_model_len = 4096
    save_tiny("llama", tmp_path / "other")
    with CompletionsServer(tmp_path / "other") as other:
        assert "reads a text as other tokens" in said(other.url)
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_a_run_stops_where_its_reflector_has_to_be_served(tmp_path: Path) -> None:
    recipe = small_recipe(*served_by(NOWHERE), "data.samples=30", "sft.policy.steps=1", "sft.reflector.steps=1")
    with pytest.raises(InvalidInput, match=f"at {NOWHERE} cannot be used.*docs/scaling.md"):
        run_stages(recipe, tmp_path / "run", ("gen-data", "sft", "rlft", "eval"))
    assert (tmp_path / "run" / "policy-sft").is_dir()
    assert not (tmp_path / "run" / METRICS).exists()


def test_the_other_frozen_players_write_there_too(tmp_path: Path) -> None:
    model = language_model("llama", max_position_embeddings=512, initializer_range=0.3)
    save_model(LanguageModel(model, tokenizer()), tmp_path / "frozen")

    def run_of(player: str, url: str) -> Path:
        endpoint = {"endpoint": {"model": "served", "base_url": url}} if player == "server" else {}
        given = {"player": player, "model": {"name": str(tmp_path / "frozen"), "max_length": 512}, **endpoint}
        changes = [f"players.{role}={json.dumps(given)}" for role in ("planner", "rater", "corrector")]
        thinks = ("prompt.action_mode=thought_choice", "players.policy.max_new_tokens=4", "model.max_length=256")
        trained = ("rlft.terms.sft_thought.coef=1.0", "rlft.rewards={env: 1.0, rater: 0.5}", "data.samples=40")
        short = ("rlft.lessons.0.iterations=2", "rlft.episodes=3", "eval.policies=[sft]", "eval.episodes=2")
        alone = ("players.reflector.player=none", "eval.controls=[]", "eval.max_tasks=2")
        play_stages(small_recipe(*changes, *thinks, *trained, *short, *alone), run := tmp_path / player)
        return run

    with CompletionsServer(tmp_path / "frozen") as frozen:
        there, here = run_of("server", frozen.url), run_of("local", "")
        assert {bool(asked.get("allowed_token_ids")) for asked in frozen.asked} == {False, True}
    for name in ("sft/policy.jsonl", "metrics.jsonl", "ratings.jsonl", training_episodes_file(1)):
        assert (there / name).read_bytes() == (here / name).read_bytes()


def test_check_server_compares_and_says_what_is_missing(
    begun: Path, server: CompletionsServer, trained_run: TrainedRuns, tmp_path: Path
) -> None:
    run = shutil.copytree(begun, tmp_path / "run")
    file = run / "recipe.yaml"
    file.write_text(file.read_text().replace(NOWHERE, server.url))
    (run / "stages.json").write_text(_without_digests(run))
    done = reflectrl("check-server", run, "--prompts", 12)
    assert done.code == 0, done.err
    assert "reflector: equal words after 12 of 12 (100%) prompts; log-probabilities" in done.out
    assert float(done.out.split()[-1]) < 1e-4
    assert not (run / "calls").exists()

    def shortened(_: str, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "choices": [{**each, "token_ids": [5]} for each in body.get("choices", ())]}

    server.change = lambda path, body: body if path == "/v1/models" else shortened(path, body)
    said = reflectrl("check-server", run, "--prompts", 12).out
    assert "0 of 12 (0%) prompts" in said
    assert "it tells none" in said
    local = reflectrl("check-server", trained_run(*SHORT))
    assert (local.code, "no player of" in local.err) == (2, True)


def _without_digests(run: Path) -> str:
    ledger = json.loads((run / "stages.json").read_text())
    for entry in ledger.values():
        if isinstance(entry, dict):
            entry.pop("recipe", None)
    return json.dumps(ledger)


def test_an_export_writes_its_reflections_itself(begun: Path, tmp_path: Path) -> None:
    done = reflectrl("export", begun, "--out", tmp_path / "agent")
    assert done.code == 0, done.err
    exported = load_recipe(tmp_path / "agent" / "recipe.yaml")
    assert (exported.players.reflector.player, exported.players.reflector.endpoint.base_url) == ("local", None)
    assert (tmp_path / "agent" / "reflector" / "model.safetensors").is_file()
