"""Players behind HTTP: their prompts, the number of calls in flight, and their connections."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
from records import shown
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.core import WorkFailed
from reflectrl.endpoint.api import close_left
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.replies import LabelWays
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts import Menu, Prompt, PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import RandomPolicy, RemotePolicy
from reflectrl.seats.reflector import RemoteReflector
from reflectrl.seats.table import reflecting

CALLS = 64
IN_FLIGHT = 32
MENU = Menu(("0", "1"), ("go east", "go west"))
TO_ACT = shown([Prompt("", (), f"A room.\n{MENU.text}Action:\n", MENU)])


def users(endpoint: ScriptedEndpoint) -> list[str]:
    return [request.chat[-1]["content"] for request in endpoint.requests]


def wait_until(condition: Callable[[], bool]) -> bool:
    """Return True as soon as the condition holds, or False after two minutes."""
    deadline = time.monotonic() + 120
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return met


def test_a_greedy_reflector_asks_equal_prompts_once(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: f"thoughts on\n {chat[-1]['content']}"
    greedy = RemoteReflector(ChatClient(endpoint.at()))
    views = shown([Prompt("", (), text) for text in ("here", "there", "here")])
    said = greedy.say(views, [0.0] * 3)
    assert [(words.text, words.tokens) for words in said] == [
        (f"thoughts on {text}", 5) for text in ("here", "there", "here")
    ]
    assert greedy.say(views, [0.0] * 3) == said
    assert (greedy.hit_rate, sorted(users(endpoint))) == (pytest.approx(4 / 6), ["here", "there"])
    RemoteReflector(ChatClient(endpoint.at(temperature=0.7)), is_sampled=True).say([views[0]] * 2, [0.1, 0.2])
    assert users(endpoint)[2:] == ["here", "here"]


def test_a_policy_reads_a_label_or_asks_again_with_the_reason(endpoint: ScriptedEndpoint) -> None:
    client = ChatClient(endpoint.at())
    client.ways = LabelWays(client.endpoint, ["text"])
    policy = RemotePolicy(client)
    endpoint.reply = lambda chat: "Who knows" if len(chat) == 2 else " **1**.\n"
    [decision] = policy.act(TO_ACT, [0.0])
    assert (decision.choice.index, decision.action, decision.choice.probabilities) == (1, "go west", ())
    assert [message["role"] for message in endpoint.requests[1].chat] == ["system", "user", "assistant", "user"]
    assert "0, 1" in users(endpoint)[1]
    endpoint.reply = lambda chat: "bananas"  # noqa: ARG005
    with pytest.raises(WorkFailed, match="'bananas'"):
        policy.act(TO_ACT, [0.0])
    assert len(endpoint.requests) == 2 + 4


@pytest.mark.slow
def test_a_rollout_fills_its_calls_in_flight(endpoint: ScriptedEndpoint) -> None:
    endpoint.latency_s = 0.05
    reflector = RemoteReflector(ChatClient(endpoint.at(concurrency=IN_FLIGHT, temperature=0.7)), is_sampled=True)
    envs = [NumberLine(size=8) for _ in range(CALLS)]
    tasks = envs[0].tasks("train")
    episodes = [Episode(tasks[number % len(tasks)], number) for number in range(CALLS)]
    layout = PromptFormat(history=2, labels="letters")
    played = rollout(envs, episodes, policy=RandomPolicy(), seats=reflecting(reflector), layout=layout)
    assert len(endpoint.requests) == sum(len(trajectory.turns) for trajectory in played) > 2 * CALLS
    assert endpoint.peak == endpoint.connections == endpoint.open == IN_FLIGHT
    del reflector
    gc.collect()
    close_left()  # as the next client does
    assert wait_until(lambda: not endpoint.open)


def test_a_call_goes_out_as_soon_as_one_comes_back(endpoint: ScriptedEndpoint) -> None:
    late: list[int] = []
    answered = 0
    turn = threading.Lock()

    def reply(chat: Chat) -> str:
        nonlocal answered
        with turn:  # one at a time, and only when all calls that may be in flight are
            due = min(CALLS, answered + IN_FLIGHT)
            if not late and not wait_until(lambda: len(endpoint.requests) >= due):
                late.append(answered)
            answered += 1
        return chat[-1]["content"]

    endpoint.reply = reply
    texts = [f"state {number}" for number in range(CALLS)]
    chats = [[{"role": "user", "content": text}] for text in texts]
    replies = ChatClient(endpoint.at(concurrency=IN_FLIGHT)).ask_many(chats, [str] * CALLS)
    assert [each.value for each in replies] == texts
    assert (late, endpoint.peak) == ([], IN_FLIGHT)
