"""Every stage with a real language model behind llama.cpp's server: as teacher, as reflector and as policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from llama_server import CONTEXT, LlamaServer
from trained_runs import play_stages, small_recipe

from reflectrl.config import Recipe
from reflectrl.core import WorkFailed
from reflectrl.core.messages import LabelChat
from reflectrl.data_gen import read_rows
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import RejectedReply, read_replies
from reflectrl.endpoint.replies import WAYS, LabelWays
from reflectrl.prompts.teacher import named
from reflectrl.rollout.results import read_results

pytestmark = pytest.mark.slow

ONCE = ("max_attempts=1", "max_rejected=60")
"""Endpoint settings for a weak model, which would only repeat itself: unusable replies are left out."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(tmp_path_factory.mktemp("llama") / "log") as server:
        yield server  # while it still loads its model


def recipe(url: str, *more: str) -> Recipe:
    there = (f"{role}.endpoint.base_url={url}" for role in ("data", "players.reflector", "players.policy"))
    brief = (f"{role}.endpoint.max_tokens=24" for role in ("data", "players.reflector", "players.policy"))
    once = (f"{role}.endpoint.{limit}" for role in ("data", "players.reflector") for limit in ONCE)
    few = ("data.teacher=openai", "data.concurrency=2", "env.options.size=4")
    return small_recipe(*few, *there, *brief, *once, *more)


def test_a_local_server_teaches_reflects_and_plays(server: LlamaServer, tmp_path: Path) -> None:
    asked = recipe(
        server.url,
        *("data.trajectory=teacher", "data.samples=3", "data.endpoint.temperature=0.7"),
        *("players.reflector.player=remote", "sft.policy.steps=1"),
        *(
            "rlft.lessons.0.iterations=1",
            "rlft.episodes=1",
            "eval.policies=[remote]",
            "eval.episodes=1",
            "eval.max_tasks=1",
        ),
    )
    shown = play_stages(asked, tmp_path)
    assert "dollars" not in shown
    assert "price" not in shown
    labels = [reply for reply in read_replies(tmp_path / "calls" / "teacher") if reply.text in ("0", "1")]
    assert len(labels) >= 3
    assert not any(reply.words for reply in labels)
    rows = {name: read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ("reflector", "policy")}
    assert [len(rows["reflector"]), len(rows["policy"])] == [3, 3]
    assert all(row.completion.strip() for row in rows["reflector"])
    assert [row.policy for row in read_results(tmp_path / "eval.jsonl")] == ["remote"]
    for calls in ("reflector", "policy"):
        assert any(reply.text for reply in read_replies(tmp_path / "calls" / calls))


def test_an_oracle_s_reflections_name_no_next_action(server: LlamaServer, tmp_path: Path) -> None:
    play_stages(recipe(server.url, "data.samples=2", "data.endpoint.temperature=0.7"), tmp_path, "gen-data")
    reflected, chosen = (read_rows(tmp_path / "sft" / f"{name}.jsonl") for name in ("reflector", "policy"))
    assert len(reflected) == 2
    for said, row in zip(reflected, chosen, strict=True):
        action = row.prompt.menu.actions[row.prompt.menu.labels.index(row.completion)]
        assert not named(said.completion, action, said.prompt.text)


MENU = "0. go north\n1. go south\n2. pick up\nGo where you like. Answer with a label."


def test_each_way_gives_a_label_and_faults_are_named(server: LlamaServer) -> None:
    def ask(text: str, ways: Sequence[str] = WAYS) -> str:
        client = ChatClient(Endpoint(base_url=server.url, max_tokens=24, max_attempts=2, backoff_s=0.01))
        client.ways = LabelWays(client.endpoint, ways)
        menu = ("0", "1", "2"), ("go north", "go south", "pick up")
        return client.ask_many([LabelChat([{"role": "user", "content": text}], *menu)], [str])[0].value

    for way in WAYS[:3]:
        assert ask(MENU, [way]) in ("0", "1", "2")
    with pytest.raises(RejectedReply, match="context size"):
        ask("word " * CONTEXT)
    server.stop()
    with pytest.raises(WorkFailed, match=f"{server.url}.*cannot be reached"):
        ask(MENU)
