"""The whole job with players behind a real HTTP endpoint."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.data_gen.generate import Spending
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.console import Reporter
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

pytestmark = pytest.mark.slow


def recipe(endpoint: ScriptedEndpoint, *more: str) -> Recipe:
    return load_recipe(
        "number_line/nano",
        [
            "data.samples=30",
            "sft.policy.steps=2",
            "rlft.stages.0.iterations=2",
            "rlft.episodes=4",
            "players.reflector.player=remote",
            f"players.reflector.endpoint.base_url={endpoint.url}",
            "players.reflector.endpoint.max_attempts=2",
            f"players.policy.endpoint.base_url={endpoint.url}",
            "eval.policies=[rlft, remote]",
            "eval.episodes=6",
            "eval.max_tasks=3",
            "eval.greedy=false",
            *more,
        ],
    )


def words(chat: Chat) -> str:
    """A reflector that judges the length of what it reads, and a policy that takes the first label."""
    asked_to_play = "menu" in chat[0]["content"]
    return "A" if asked_to_play else f"I read {len(chat[1]['content'])} characters."


def test_a_remote_reflector_advises_rlft_and_a_remote_policy_stands_in_the_table(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = words
    run = tmp_path / "run"
    run_stages(recipe(endpoint), run, STAGES)
    assert [row.policy for row in read_results(run / "eval.jsonl")] == ["rlft", "remote"]
    _, played = read_trajectories(run / "trajectories" / "eval-rlft-remote-sampled.jsonl")
    assert all("characters." in (turn.reflection or "") for trajectory in played for turn in trajectory.turns)
    _, remote = read_trajectories(run / "trajectories" / "eval-remote-none-sampled.jsonl")
    assert {turn.decision.choice.index for trajectory in remote for turn in trajectory.turns} == {0}
    asked = [request.chat[1]["content"] for request in endpoint.requests if "menu" not in request.chat[0]["content"]]
    assert asked
    assert not (run / "reflector").exists()  # nobody trained one


def test_an_endpoint_that_fails_stops_rlft_with_a_sentence_and_the_same_command_goes_on(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = words
    run = tmp_path / "run"
    run_stages(recipe(endpoint), run, ("gen-data", "sft"))
    endpoint.faults.extend(["401"] * 100)
    with pytest.raises(WorkFailed, match="key was refused"):
        run_stages(recipe(endpoint), run, ("rlft",))
    endpoint.faults.clear()
    run_stages(recipe(endpoint), run, ("rlft", "eval"))
    assert (run / "policy" / "model.safetensors").is_file()


def test_money_is_counted_over_all_stages_and_its_limit_stops_each(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = words
    prices = [f"players.{role}.endpoint.price={{prompt: 0, completion: 1000}}" for role in ("reflector", "policy")]
    run, priced = tmp_path / "run", recipe(endpoint, *prices)
    said = io.StringIO()
    told = Reporter(Console(file=said, width=200))
    run_stages(priced, run, ("gen-data", "sft"), reporter=told)
    with pytest.raises(WorkFailed, match="--max-cost"):
        run_stages(priced, run, ("rlft",), spending=Spending(max_cost=0.21), reporter=told)
    paid = len(endpoint.requests)
    assert 0 < paid * 5e-3 <= 0.21
    run_stages(priced, run, ("rlft", "eval"), spending=Spending(max_cost=1000.0), reporter=told)
    assert f"{len(endpoint.requests) * 5e-3:.4f} in all" in said.getvalue()
    asked = [str(request.chat) for request in endpoint.requests]
    assert len(asked) == len(set(asked))
    with pytest.raises(InvalidInput, match="price of model 'gpt-4o' .* is not known"):
        run_stages(recipe(endpoint), tmp_path / "other", ("gen-data", "sft", "rlft"), spending=Spending(max_cost=1.0))
