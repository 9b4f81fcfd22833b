"""All stages with players behind a real HTTP endpoint."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import play_stages, small_recipe

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.data_gen.generate import Spending
from reflectrl.pipeline import run_stages
from reflectrl.pipeline.console import Reporter
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

pytestmark = pytest.mark.slow


def recipe(endpoint: ScriptedEndpoint, *more: str) -> Recipe:
    return small_recipe(
        *("data.samples=30", "sft.policy.steps=2", "rlft.lessons.0.iterations=2", "rlft.episodes=4"),
        *("eval.policies=[rlft, remote]", "eval.episodes=6", "eval.max_tasks=3", "eval.greedy=false"),
        *("players.reflector.player=remote", "players.reflector.endpoint.max_attempts=2"),
        *(f"players.{role}.endpoint.base_url={endpoint.url}" for role in ("reflector", "policy")),
        *more,
    )


def words(chat: Chat) -> str:
    """Reply as a reflector that reports the length of its prompt, or as a policy that takes the first label."""
    asked_to_play = "menu" in chat[0]["content"]
    return "A" if asked_to_play else f"I read {len(chat[1]['content'])} characters."


def test_remote_players_go_on_after_a_failure(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = words
    run = tmp_path / "run"
    play_stages(recipe(endpoint), run, "gen-data", "sft")
    endpoint.faults.extend(["401"] * 100)
    with pytest.raises(WorkFailed, match="key was refused"):
        play_stages(recipe(endpoint), run, "rlft")
    endpoint.faults.clear()
    play_stages(recipe(endpoint), run, "rlft", "eval")
    assert [row.policy for row in read_results(run / "eval.jsonl")] == ["rlft", "remote"]
    _, played = read_trajectories(run / "trajectories" / "eval-rlft-remote-sampled.jsonl")
    assert all("characters." in (turn.reflection or "") for trajectory in played for turn in trajectory.turns)
    _, remote = read_trajectories(run / "trajectories" / "eval-remote-remote-sampled.jsonl")
    assert {turn.decision.choice.index for trajectory in remote for turn in trajectory.turns} == {0}
    assert all("characters." in (turn.reflection or "") for trajectory in remote for turn in trajectory.turns)
    assert not (run / "reflector").exists()  # none was trained


def test_money_is_counted_over_all_stages_and_its_limit_stops_each(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = words
    prices = [f"players.{role}.endpoint.price={{prompt: 0, completion: 1000}}" for role in ("reflector", "policy")]
    run, priced = tmp_path / "run", recipe(endpoint, *prices)
    said = io.StringIO()
    report = Reporter(Console(file=said, width=200))
    run_stages(priced, run, ("gen-data", "sft"), reporter=report)
    with pytest.raises(WorkFailed, match="--max-cost"):
        run_stages(priced, run, ("rlft",), spending=Spending(max_cost=0.21), reporter=report)
    paid = len(endpoint.requests)
    assert 0 < paid * 5e-3 <= 0.21
    run_stages(priced, run, ("rlft", "eval"), spending=Spending(max_cost=1000.0), reporter=report)
    assert f"{len(endpoint.requests) * 5e-3:.4f} in all" in said.getvalue()
    asked = [str(request.chat) for request in endpoint.requests]
    assert len(asked) == len(set(asked))
    elsewhere = recipe(endpoint, "players.reflector.endpoint.base_url=https://chat.example/v1")
    with pytest.raises(InvalidInput, match="price of model 'gpt-4o' .* is not known"):
        run_stages(elsewhere, tmp_path / "other", ("gen-data", "sft", "rlft"), spending=Spending(max_cost=1.0))
