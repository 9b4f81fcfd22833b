"""A chat model that corrects thoughts: its prompts, and how its answers are read."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from pictured import PICTURES
from scripted_endpoint import ScriptedEndpoint
from thinkers import Thinks

from reflectrl.core import Hints, InvalidInput, NatLangEnv, Observation, Outcome, Reading, WorkFailed, make_env
from reflectrl.core.messages import BadReply
from reflectrl.endpoint.account import Account, Price
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import State
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.thoughts import known, thought_means
from reflectrl.seats.corrector import Informed, RemoteCorrector, RuleCorrector, read_correction
from reflectrl.seats.table import Seat, menu_view

LAYOUT = PromptFormat(history=2, action_mode="thought_choice")
ROOM = Observation("Number 3, target 5.", ("add one", "subtract one"))


def remote(endpoint: Endpoint, account: Account | None = None, **settings: Any) -> RemoteCorrector:
    """Return a corrector that goes on without a reply."""
    return RemoteCorrector(ChatClient(endpoint, account=account, skip_failures=True), **settings)


def thinking(thought: str | None, action: str = "add one", right: bool | None = None, *, hints: bool = False):
    said = {} if thought is None else {"policy": thought}
    known = Hints(reflection="It is higher.", spoiler="The target is 2 above.")
    state = State(ROOM, ("add one",), said=said, hints=known, reading=Reading(right))
    return menu_view("corrector", LAYOUT, state, LAYOUT.menu_of(ROOM), action=action, hints=hints)


@pytest.mark.parametrize(
    ("reply", "correction"),
    [
        ('{"evaluation": "YES"}', ""),
        ('{"evaluation": "yes", "correction": "ignored"}', ""),
        ('Sure: {"evaluation": "NO", "correction": " The target\\n is higher. "} Good luck.', "The target is higher."),
        ('{"evaluation": "NO", "correction": {"thoughts": "It is higher.", "action": "+"}}', "It is higher."),
        ('{"evaluation": "NO", "correction": "{\\"thoughts\\": \\"It is higher.\\"}"}', "It is higher."),
        ('{"evaluation": "NO", "correction": "It is in {4, 5}."}', "It is in {4, 5}."),
    ],
)
def test_an_answer_of_a_corrector_is_read(reply: str, correction: str) -> None:
    assert read_correction(reply) == correction


DEEP = f'{{"evaluation": "NO", "correction": {"[" * 9000}}}'


@pytest.mark.parametrize(
    "reply",
    [
        *("", "NO", "[1]", DEEP, '{"correction": "x"}', '{"evaluation": "NO"}'),
        '{"evaluation": "NO", "correction": {}}',
        '{"evaluation": "NO", "correction": {"thoughts": 1, "action": "+"}}',
    ],
)
def test_any_other_answer_is_asked_for_again(reply: str) -> None:
    with pytest.raises(BadReply, match="evaluation"):
        read_correction(reply)


def test_a_corrector_sees_the_step_and_may_leave_it_alone(endpoint: ScriptedEndpoint) -> None:
    answers = {"higher": '{"evaluation": "YES"}', "lower": '{"evaluation": "NO", "correction": "It is higher."}'}
    answers["(empty)"] = '{"evaluation": "NO", "correction": "It is not empty."}'

    def reply(chat):
        return next((answer for word, answer in answers.items() if word in chat[1]["content"]), "no idea")

    endpoint.reply = reply
    corrector = remote(endpoint.at())
    views = [thinking(text) for text in ("It is higher.", "It is lower.", "Who knows?", "", None)]
    words = [words.text for words in corrector.say(views, [0.0] * 5)]
    assert words == ["", "It is higher.", "", "It is not empty.", ""]
    asked = {request.chat[1]["content"] for request in endpoint.requests}
    assert len(asked) == 4  # no call is made about a policy that writes nothing
    shown = "Past: add one\nNumber 3, target 5.\nPossible moves: add one, subtract one\n"
    assert f"{shown}Thought: It is lower.\nMove: add one" in asked


def test_a_corrector_answers_the_questions_of_its_task_before_it_evaluates(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda _: '{"answer1": "3", "answer2": "no", "evaluation": "NO", "correction": "It is higher."}'
    questions = ("Which number is it?", "Is the target lower?")
    views = [thinking("It is lower.")]
    for asks in (questions, ()):
        [words] = remote(endpoint.at(), questions=asks).say(views, [0.0])
        assert words.text == "It is higher."
    (role, asked), (general, plain) = ([turn["content"] for turn in request.chat] for request in endpoint.requests)
    assert asked == f"{plain}\nQuestions:\n1. Which number is it?\n2. Is the target lower?"
    assert '"answer1", "answer2", one for each question; then "evaluation"' in role
    assert "Does the move serve it?" in general
    assert "Does the move serve it?" not in role


def test_a_corrector_without_an_answer_does_what_it_is_told(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda _: "no idea"
    [words] = remote(endpoint.at(), instead="I do not know.").say([thinking("It is lower.")], [0.0])
    assert words.text == "I do not know."
    with pytest.raises(WorkFailed):
        RemoteCorrector(ChatClient(endpoint.at()), instead=None).say([thinking("It is lower.")], [0.0])


def test_a_corrector_is_asked_and_waited_for_within_limits(endpoint: ScriptedEndpoint) -> None:
    there, account = endpoint.at(max_attempts=2, timeout_s=0.5, price=Price(prompt=0.0, completion=1e6)), Account()
    garbage = remote(there, account)
    assert garbage.say([thinking("It is lower.")], [0.0])[0].text == ""  # "fine" is not an answer
    assert (len(endpoint.requests), garbage.client.usage.rejected, account.spent) == (2, 1, 2 * 5.0)
    for asked, fault in ((4, "500"), (6, "slow:9")):
        endpoint.faults.extend([fault] * 2)
        corrector, began = remote(there), time.monotonic()
        assert corrector.say([thinking("It is lower.")], [0.0])[0].text == ""
        assert (len(endpoint.requests), corrector.misses) == (asked, (1, 1))
        assert time.monotonic() - began < 9  # it would take 18 s to wait for both slow replies


@pytest.mark.parametrize("legal", [False, True])
def test_no_call_is_paid_for_a_text_without_a_legal_action(legal: bool, endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda _: '{"evaluation": "NO", "correction": "It is higher."}'
    env, account = NumberLine(size=6), Account()
    seats = [Seat("corrector", remote(endpoint.at(), account))]
    episodes = [Episode(env.tasks("train")[0], seed) for seed in range(2)]
    played = rollout([env], episodes, policy=Thinks("It is lower.", legal), seats=seats, layout=LAYOUT)
    turns = [turn for each in played for turn in each.turns]
    assert turns
    assert len(endpoint.requests) == sum(turn.decision.choice.legal for turn in turns) == len(turns) * legal
    assert known(thought_means(played))["thought_corrected"] == (1.0 if legal else None)


class Paying(NumberLine):
    """Environment with a reward that no player may read."""

    def act(self, action: str) -> Outcome:
        return replace(super().act(action), reward=0.123456789)


@pytest.mark.parametrize("tool", [False, True])
def test_a_corrector_is_told_no_secret(tool: bool, endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda _: '{"evaluation": "YES"}'
    corrector = remote(endpoint.at())
    seats = [Seat("corrector", Informed(corrector) if tool else corrector)]

    def played(env: NatLangEnv, count: int) -> None:
        episodes = [Episode(env.tasks("train")[0], seed) for seed in range(count)]
        rollout([env], episodes, policy=Thinks("You hold 16."), seats=seats, layout=LAYOUT)

    played(Paying(size=6), 4)
    assert len(endpoint.requests) > 4
    asked = json.dumps([request.body for request in endpoint.requests])
    assert not any(secret in asked for secret in ("123456", "reward", "success"))
    endpoint.requests.clear()
    played(make_env("gym_cards:blackjack"), 20)
    first = {request.chat[1]["content"] for request in endpoint.requests if "Past: none" in request.chat[1]["content"]}
    assert len(first) == 2  # one for each move, whichever card is face down
    assert all(("A solver found" in text) == tool for text in first)


def test_only_a_corrector_with_a_tool_is_shown_what_the_solver_found(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda _: '{"evaluation": "YES"}'
    for hints, shown in ((False, False), (True, True)):
        remote(endpoint.at()).say([thinking("It is lower.", hints=hints)], [0.0])
        assert ("A solver found: The target is 2 above.\n" in endpoint.requests[-1].chat[1]["content"]) == shown
    assert not isinstance(remote(endpoint.at()), ReadsHints)
    assert isinstance(Informed(remote(endpoint.at())), ReadsHints)


def test_a_corrector_may_read_pictures(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda _: '{"evaluation": "YES"}'
    seen, layout = replace(ROOM, text="", images=(PICTURES[0],)), replace(LAYOUT, images=("corrector",))
    state = State(seen, said={"policy": "It is lower."})
    view = menu_view("corrector", layout, state, layout.menu_of(seen), action="add one")
    remote(endpoint.at(), images=True).say([view], [0.0])
    shown, text = endpoint.requests[-1].chat[1]["content"]
    data = base64.b64encode(PICTURES[0].data).decode()
    assert shown == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert text["text"].startswith("Past: none\nPossible moves: add one, subtract one\nThought: It is lower.")
    with pytest.raises(InvalidInput, match="reads text"):
        remote(endpoint.at()).say([view], [0.0])


def test_a_rule_rewrites_what_the_environment_finds_wrong_and_nothing_else() -> None:
    views = [thinking("It is up there.", right=right, hints=True) for right in (True, False)]
    assert [words.text for words in RuleCorrector().say(views, [0.0, 0.0])] == ["", "It is higher."]
    unread = replace(views[0], reading=None)  # its environment failed
    assert RuleCorrector().say([unread], [0.0])[0].text == ""
    with pytest.raises(InvalidInput, match="read_thought"):
        RuleCorrector().say([thinking("It is lower.", hints=True)], [0.0])


def test_the_rule_rewrites_wrong_thoughts_in_play() -> None:
    env = make_env("gym_cards", game="ez_points")
    layout = PromptFormat(history=1, action_mode="thought_choice")
    episodes = [Episode(task, seed=0) for task in env.tasks("train")]
    seats = [Seat("corrector", RuleCorrector())]
    played = rollout([env], episodes, policy=Thinks("10 + 2 equals 12.", True), seats=seats, layout=layout)
    turns = [turn for each in played for turn in each.turns]
    assert {turn.rewards["agreement"] for turn in turns} == {0.0, 1.0}
    assert [bool(turn.said["corrector"].text) for turn in turns] == [not turn.rewards["agreement"] for turn in turns]
