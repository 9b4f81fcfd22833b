from __future__ import annotations

import pytest
from records import shown
from scripted_endpoint import ScriptedEndpoint

from reflectrl.core import WorkFailed
from reflectrl.players.remote import RemotePolicy, RemoteReflector
from reflectrl.prompts import Menu, Prompt


def policy_prompt(*actions: str) -> Prompt:
    menu = Menu(tuple(str(number) for number in range(len(actions))), actions)
    return Prompt("", (), f"A room.\n{menu.text}Action:\n", menu)


def test_a_greedy_reflector_asks_equal_prompts_once(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: f"thoughts on\n {chat[-1]['content']}"
    reflector = RemoteReflector(endpoint.at())
    prompts = [Prompt("", (), text) for text in ("here", "there", "here")]
    said = reflector.say(shown(prompts), [0.0] * 3)
    assert [utterance.text for utterance in said] == ["thoughts on here", "thoughts on there", "thoughts on here"]
    assert reflector.say(shown(prompts), [0.0] * 3) == said
    assert [utterance.tokens for utterance in said] == [5, 5, 5]
    assert reflector.hit_rate == pytest.approx(4 / 6)
    assert len(endpoint.requests) == 2


def test_a_small_cache_forgets_the_oldest(endpoint: ScriptedEndpoint) -> None:
    reflector = RemoteReflector(endpoint.at(), cache_size=1)
    for text in ("here", "there", "there", "here"):
        reflector.say(shown([Prompt("", (), text)]), [0.0])
    assert [request.chat[-1]["content"] for request in endpoint.requests] == ["here", "there", "here"]


def test_a_sampling_reflector_is_not_cached(endpoint: ScriptedEndpoint) -> None:
    reflector = RemoteReflector(endpoint.at(temperature=0.7))
    reflector.say(shown([Prompt("", (), "here")] * 2), [0.1, 0.2])
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("reply", ["1", " 1.\n", "`1`", "**1**", "1. go west", "'1. go west'"])
def test_a_policy_reads_one_label(endpoint: ScriptedEndpoint, reply: str) -> None:
    endpoint.reply = lambda chat: reply  # noqa: ARG005
    [decision] = RemotePolicy(endpoint.at()).act(shown([policy_prompt("go east", "go west")]), [0.0])
    assert (decision.choice.index, decision.action, decision.choice.probabilities) == (1, "go west", ())


@pytest.mark.parametrize("reply", ["7", "I choose 1", "go west", "1 or 0", "0\n1", "-1"])
def test_a_reply_that_is_no_label_is_asked_again_with_the_reason(endpoint: ScriptedEndpoint, reply: str) -> None:
    endpoint.reply = lambda chat: reply if len(chat) == 2 else "0"
    [decision] = RemotePolicy(endpoint.at()).act(shown([policy_prompt("go east", "go west")]), [0.0])
    assert decision.action == "go east"
    assert [message["role"] for message in endpoint.requests[1].chat] == ["system", "user", "assistant", "user"]
    assert "exactly one of: 0, 1" in endpoint.requests[1].chat[-1]["content"]


def test_a_policy_that_never_names_a_label_fails(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: "bananas"  # noqa: ARG005
    with pytest.raises(WorkFailed, match="last reply was 'bananas'"):
        RemotePolicy(endpoint.at()).act(shown([policy_prompt("go east", "go west")]), [0.0])
    assert len(endpoint.requests) == 4
