"""Runs whose policy writes its thoughts on a server in RLFT: those of this process, also after a kill."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import reflectrl
from completions_server import VERSION, CompletionsServer
from interruptions import command_that_ends
from tiny_models import CHAT, save_tiny
from trained_runs import play_stages, small_recipe
from warm_processes import WarmProcess

from reflectrl.config import Recipe, dump_recipe
from reflectrl.core import Trajectory
from reflectrl.core.run_files import METRICS, training_episodes_file
from reflectrl.rollout.record import read_trajectories

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")]  # peft's
LENGTH = 128


def recipe_of(base: Path, url: str = "", **more: Any) -> Recipe:
    server = json.dumps({"model": "served", "base_url": url, "backoff_s": 0.01, **more} if url else None)
    return small_recipe(
        *(f"model.name={base}", f"model.max_length={LENGTH}", "model.lora={r: 4, alpha: 8}"),
        *("prompt.action_mode=thought_choice", "players.policy.max_new_tokens=8", f"players.policy.server={server}"),
        *("players.reflector.player=none", "eval.controls=[]", "eval.policies=[rlft]", "eval.episodes=2"),
        *("data.samples=60", "rlft.episodes=3", "rlft.learning_rate=0.01"),
        "rlft.validation={every: 2, episodes: 2, greedy: true}",
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run after SFT, beside the base of its policy."""
    place = tmp_path_factory.mktemp("thoughts")
    save_tiny("llama", place / "base", size=64, max_length=LENGTH, template=CHAT)
    play_stages(recipe_of(place / "base"), place / "run", "gen-data", "sft")
    return place


@pytest.fixture
def server(begun: Path) -> Iterator[CompletionsServer]:
    with CompletionsServer(begun / "base", max_lora_rank=4) as served:
        yield served


def played(run: Path) -> list[list[tuple[Any, ...]]]:
    def of(episode: Trajectory) -> list[tuple[Any, ...]]:
        return [(turn.decision.action, turn.decision.choice.written.ids) for turn in episode.turns]  # type: ignore[union-attr]

    return [[*map(of, read_trajectories(run / training_episodes_file(number))[1])] for number in range(4)]


def test_it_writes_what_this_process_would_write_and_a_killed_run_goes_on_to_the_same_bytes(
    begun: Path, server: CompletionsServer, tmp_path: Path
) -> None:
    here, there, run = (shutil.copytree(begun / "run", tmp_path / name) for name in ("here", "there", "run"))
    play_stages(recipe_of(begun / "base"), here, "rlft")
    recipe = recipe_of(begun / "base", server.url)
    play_stages(recipe, there, "rlft", "eval")
    assert played(there) == played(here)
    assert len({ids for episodes in played(there) for steps in episodes for _, ids in steps}) > 4
    gaps = [json.loads(line)["logprob_gap"] for line in (there / METRICS).read_text().splitlines()]
    assert all(0 < gap < 1e-4 for gap in gaps)
    assert {asked["model"] for asked in server.asked} == {*server.loaded}  # the evaluation is played here
    assert not server.adapters
    assert not (there / "adapters").exists()
    [line] = (there / "calls" / "policy" / "servers.jsonl").read_text().splitlines()
    assert json.loads(line)["version"] == VERSION
    assert not (there / "calls" / "policy" / "replies.jsonl").exists()

    once, file = len(server.loaded), tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe), encoding="utf-8")
    command = ("rlft", "--recipe", str(file), "--runs", str(tmp_path), "--run", "run")
    killed = WarmProcess(tmp_path / "log", command_that_ends, METRICS, 4, signal.SIGKILL, *command)
    assert killed.wait() == -signal.SIGKILL, killed.said
    [left] = server.adapters
    with CompletionsServer(begun / "base", max_lora_rank=4) as replica:
        play_stages(recipe_of(begun / "base", server.url, replicas=[replica.url]), run, "rlft")
        assert left in server.loaded
        assert not {*server.adapters, *replica.adapters}
        assert replica.loaded
        assert server.loaded[-len(replica.loaded) :] == replica.loaded
    assert len({*server.loaded}) == len(server.loaded) > once + len(replica.loaded)  # no name is used again
    for name in (METRICS, training_episodes_file(3), "policy/adapter_model.safetensors"):
        assert (run / name).read_bytes() == (there / name).read_bytes()


def test_a_server_that_cannot_be_used_is_refused_before_any_work(
    begun: Path, server: CompletionsServer, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"

    def said(url: str, **more: Any) -> str:
        file.write_text(dump_recipe(recipe_of(begun / "base", url, **more)), encoding="utf-8")
        done = reflectrl("run", "--recipe", file, "--runs", tmp_path, "--run", "run")
        assert done.code == 2
        assert not (tmp_path / "run").exists()
        return done.err

    assert "cannot be reached" in said("http://127.0.0.1:9/v1")
    assert "not 'other'; set endpoint.model" in said(server.url, model="other")
    server.max_model_len = LENGTH - 1
    assert f"restart it with --max-model-len {LENGTH}" in said(server.url)


def test_a_run_stops_where_a_server_loses_an_adapter_or_takes_none(
    begun: Path, server: CompletionsServer, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe_of(begun / "base", server.url)), encoding="utf-8")
    run = shutil.copytree(begun / "run", tmp_path / "run")

    def said() -> str:
        done = reflectrl("rlft", "--recipe", file, "--runs", tmp_path, "--run", "run")
        assert done.code != 0
        return done.err

    server.max_lora_rank = 0
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank 4 or more" in said()
    assert not (run / METRICS).exists()
    server.max_lora_rank = 4

    def forget(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if len(server.loaded) == 4 and path == "/v1/completions":  # a restart in the middle
            server.adapters.clear()
        return body

    server.change = forget
    assert "the same command gives it another one" in said()
    server.change = lambda _, body: body
    play_stages(recipe_of(begun / "base", server.url), run, "rlft")
    assert len((run / METRICS).read_text().splitlines()) == 4
