"""A reflector behind HTTP in a rollout of 64 episodes: how many calls are in flight, and over which connections."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.core import Trajectory, WorkFailed
from reflectrl.endpoint.chat import ChatClient, Endpoint
from reflectrl.envs.number_line import NumberLine
from reflectrl.players import RandomPolicy, reflecting
from reflectrl.players.remote import RemoteReflector
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout

EPISODES = 64
IN_FLIGHT = 32
LAYOUT = PromptFormat(history=2, labels="letters")


def at(endpoint: ScriptedEndpoint, **changes: object) -> Endpoint:
    fields: dict[str, object] = {"base_url": endpoint.url, "concurrency": IN_FLIGHT, "max_attempts": 1, **changes}
    return Endpoint(**fields)  # type: ignore[arg-type]


def play(reflector: RemoteReflector) -> list[Trajectory]:
    envs = [NumberLine(size=8) for _ in range(EPISODES)]
    tasks = envs[0].tasks("train")
    episodes = [Episode(tasks[number % len(tasks)], number) for number in range(EPISODES)]
    return rollout(envs, episodes, policy=RandomPolicy(), seats=reflecting(reflector), layout=LAYOUT)


def steps(played: Sequence[Trajectory]) -> int:
    return sum(len(trajectory.turns) for trajectory in played)


def users(endpoint: ScriptedEndpoint) -> list[str]:
    return [request.chat[-1]["content"] for request in endpoint.requests]


def test_a_rollout_fills_its_calls_in_flight_and_opens_no_connection_twice(endpoint: ScriptedEndpoint) -> None:
    endpoint.latency_s = 0.05
    played = play(RemoteReflector(at(endpoint, temperature=0.7)))
    assert len(endpoint.requests) == steps(played) > 3 * EPISODES
    assert endpoint.peak == IN_FLIGHT
    assert endpoint.connections == IN_FLIGHT


def test_a_call_goes_out_as_soon_as_one_comes_back(endpoint: ScriptedEndpoint) -> None:
    late: list[int] = []
    answered = 0
    turn = threading.Lock()

    def reply(chat: Chat) -> str:
        nonlocal answered
        with turn:  # one at a time, and only when all calls that may be in flight are
            due = min(EPISODES, answered + IN_FLIGHT)
            deadline = time.monotonic() + 120
            while len(endpoint.requests) < due and not late:
                if time.monotonic() > deadline:
                    late.append(answered)
                time.sleep(0.001)
            answered += 1
        return chat[-1]["content"]

    endpoint.reply = reply
    texts = [f"state {number}" for number in range(EPISODES)]
    chats = [[{"role": "user", "content": text}] for text in texts]
    replies = ChatClient(at(endpoint)).ask_many(chats, [str] * EPISODES)
    assert [each.value for each in replies] == texts
    assert (late, endpoint.peak) == ([], IN_FLIGHT)


def test_a_rollout_of_a_greedy_reflector_asks_equal_prompts_once(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: f"thoughts on {chat[-1]['content']}"
    reflector = RemoteReflector(at(endpoint))
    played = play(reflector)
    asked = users(endpoint)
    assert max(Counter(asked).values()) == 1
    assert (reflector.asked, reflector.written) == (steps(played), len(asked))
    assert len(asked) < steps(played)
    known = {" ".join(f"thoughts on {text}".split()) for text in asked}
    assert {turn.reflection for trajectory in played for turn in trajectory.turns} <= known


def test_connections_are_closed_once_the_reflector_is_gone(endpoint: ScriptedEndpoint) -> None:
    reflector = RemoteReflector(at(endpoint, temperature=0.7))
    play(reflector)
    assert endpoint.open == endpoint.connections
    del reflector
    gc.collect()
    deadline = time.monotonic() + 120
    while endpoint.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert endpoint.open == 0


def test_after_a_call_that_fails_the_others_are_left(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.append("401")
    client = ChatClient(at(endpoint, concurrency=2))
    chats = [[{"role": "user", "content": str(number)}] for number in range(40)]
    with pytest.raises(WorkFailed, match="key was refused"):
        client.ask_many(chats, [str] * 40)
    client.ask_many([[{"role": "user", "content": "again"}]], [str])
    assert len(endpoint.requests) < 10
    assert users(endpoint)[-1] == "again"
