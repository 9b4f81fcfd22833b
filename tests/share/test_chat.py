"""The agent as a chat model, asked by OpenAI's own client: a real process and real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from math import exp
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
import pytest
from agent_server import KEY, STATE, in_process, refusal
from faulty import wait_until
from pydantic import BaseModel, create_model
from warm_processes import WarmProcess, command_line

from reflectrl.pipeline.agent import Agent
from reflectrl.prompts.format import History
from reflectrl.share.server import load_served_agent

pytestmark = pytest.mark.slow

MODEL = "number_line-nano"
SEEN, ACTIONS = STATE["observation"], STATE["actions"]
USER = {"role": "user", "content": SEEN}
BY_NAME = [{"type": "function", "function": {"name": name}} for name in ("add_one", "subtract_one")]


def by_value(*actions: str) -> list[dict[str, Any]]:
    """Return one tool whose parameter has these values."""
    schema = {"type": "object", "properties": {"action": {"type": "string", "enum": list(actions)}}}
    return [{"type": "function", "function": {"name": "act", "description": "Play.", "parameters": schema}}]


@pytest.fixture(scope="module")
def chat(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_the_one_model_is_listed(chat: openai.OpenAI) -> None:
    assert [model.id for model in chat.models.list()] == [MODEL]


# ---- menus and answers -----------------------------------------------------------------------------------------------


def test_tools_are_the_menu_and_the_answer_calls_one_as_act_chooses(chat: openai.OpenAI, client: httpx2.Client) -> None:
    acted = client.post("/act", json=STATE).json()
    told = []
    for tools in (BY_NAME, by_value(*ACTIONS)):
        answer = chat.chat.completions.create(model=MODEL, messages=[USER], tools=tools).choices[0]
        [call] = answer.message.tool_calls
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        assert answer.message.reasoning_content == acted["said"]["reflector"]
        told.append((call.function.name, call.function.arguments))
    assert told == [(acted["action"].replace(" ", "_"), "{}"), ("act", json.dumps({"action": acted["action"]}))]


def test_choices_are_the_menu_and_the_answer_is_one_of_them(chat: openai.OpenAI, client: httpx2.Client) -> None:
    class Step(BaseModel):
        action: Literal["add one", "subtract one"]

    acted = client.post("/act", json=STATE).json()["action"]
    parsed = chat.chat.completions.parse(model=MODEL, messages=[USER], response_format=Step)
    assert parsed.choices[0].message.parsed == Step(action=acted)
    plain = chat.chat.completions.create(
        model=MODEL, messages=[USER], extra_body={"structured_outputs": {"choice": ACTIONS}}
    )
    assert (plain.choices[0].message.content, plain.choices[0].finish_reason) == (acted, "stop")


def test_an_enum_class_is_the_menu(chat: openai.OpenAI, client: httpx2.Client) -> None:
    acted = client.post("/act", json=STATE).json()["action"]
    step = create_model("Step", action=Enum("Move", {"UP": "add one", "DOWN": "subtract one"}))
    parsed = chat.chat.completions.parse(model=MODEL, messages=[USER], response_format=step)
    assert parsed.choices[0].message.parsed.action.value == acted
    tool = openai.pydantic_function_tool(step)
    called = chat.chat.completions.create(model=MODEL, messages=[USER], tools=[tool]).choices[0].message
    assert called.tool_calls[0].function.arguments == json.dumps({"action": acted})


def test_what_has_no_influence_on_one_action_is_accepted(chat: openai.OpenAI) -> None:
    plain = {"top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "n": 1, "max_tokens": 1, "user": "me"}
    plain |= {"max_completion_tokens": 1, "parallel_tool_calls": True, "metadata": {"a": "b"}, "store": False}
    first, second = (
        chat.chat.completions.create(model=MODEL, messages=[USER], tools=BY_NAME, **more).choices[0].message.tool_calls
        for more in ({}, plain)
    )
    assert first[0].function == second[0].function


def test_a_menu_of_one_action_is_called_and_a_named_tool_is_the_menu(chat: openai.OpenAI) -> None:
    class Step(BaseModel):
        action: Literal["subtract one"]

    parsed = chat.chat.completions.parse(model=MODEL, messages=[USER], response_format=Step)
    assert parsed.choices[0].message.parsed == Step(action="subtract one")
    for name in ("add_one", "subtract_one"):
        wanted = {"type": "function", "function": {"name": name}}
        answer = chat.chat.completions.create(model=MODEL, messages=[USER], tools=BY_NAME, tool_choice=wanted)
        assert answer.choices[0].message.tool_calls[0].function.name == name


def test_logprobs_are_those_of_the_menu(chat: openai.OpenAI, client: httpx2.Client) -> None:
    acted = client.post("/act", json=STATE).json()
    answer = chat.chat.completions.create(model=MODEL, messages=[USER], tools=BY_NAME, logprobs=True, top_logprobs=5)
    [token] = answer.choices[0].logprobs.content
    assert (token.token, bytes(token.bytes)) == (acted["action"], acted["action"].encode())
    assert token.logprob == pytest.approx(acted["logprob"], abs=1e-4)
    found = {each.token: exp(each.logprob) for each in token.top_logprobs}
    assert found == pytest.approx(dict(zip(ACTIONS, acted["probabilities"], strict=True)), abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(
    "menu", [{"tools": BY_NAME}, {"extra_body": {"structured_outputs": {"choice": ACTIONS}}}], ids=["tools", "choice"]
)
def test_a_stream_tells_the_same_in_parts(menu: dict[str, Any], chat: openai.OpenAI) -> None:
    whole = chat.chat.completions.create(model=MODEL, messages=[USER], **menu).choices[0]
    with chat.chat.completions.stream(model=MODEL, messages=[USER], logprobs=True, **menu) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_completion().choices[0]
    assert len([kind for kind in kinds if kind == "chunk"]) == 3
    assert (last.finish_reason, last.message.content) == (whole.finish_reason, whole.message.content)
    assert last.message.reasoning_content == whole.message.reasoning_content
    calls = [[call.function.name for call in each.message.tool_calls or []] for each in (whole, last)]
    assert calls[0] == calls[1]
    assert len(last.logprobs.content) == 1


# ---- the episode -----------------------------------------------------------------------------------------------------


def played(*steps: tuple[str, str]) -> list[dict[str, Any]]:
    """Return a chat in which these actions were chosen in these states: calls, whose results are the next states."""
    chat: list[dict[str, Any]] = []
    for at, (state, action) in enumerate(steps):
        asker = {"role": "tool", "tool_call_id": f"call_{at - 1}"} if at else {"role": "user"}
        function = {"name": action.replace(" ", "_"), "arguments": "{}"}
        call = {"id": f"call_{at}", "type": "function", "function": function}
        chat += [{**asker, "content": state}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return [*chat, {"role": "tool", "tool_call_id": "call", "content": [{"type": "text", "text": SEEN}]}]


def test_a_conversation_is_an_episode_and_its_system_message_the_task(
    chat: openai.OpenAI, client: httpx2.Client
) -> None:
    history = ["add one", "subtract one"]
    acted = client.post("/act", json={**STATE, "history": history, "task": "Count."}).json()
    calls = played(("Number 1, target 6.", history[0]), ("Number 3, target 6.", history[1]))
    content = [{"role": "assistant", "content": json.dumps({"action": action})} for action in history]
    schema = {"type": "object", "properties": {"action": {"enum": ACTIONS}}}
    form = {"type": "json_schema", "json_schema": {"name": "step", "schema": schema}}
    plain = [{"role": "assistant", "content": action} for action in history]
    for messages, menu in (
        (calls, {"tools": BY_NAME}),
        ([USER, content[0], USER, content[1], USER], {"response_format": form}),
        ([USER, plain[0], USER, plain[1], USER], {"extra_body": {"structured_outputs": {"choice": ACTIONS}}}),
        ([USER, plain[0], USER, plain[1], USER], {"tools": BY_NAME, "response_format": {"type": "text"}}),
    ):
        answer = chat.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": "Count."}, *messages],
            logprobs=True,
            **menu,
        )
        assert answer.choices[0].logprobs.content[0].logprob == pytest.approx(acted["logprob"], abs=1e-4)
        assert getattr(answer.choices[0].message, "reasoning_content", "") == acted["said"]["reflector"]


def asked(chat: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(chat), "tools": BY_NAME, **more}


def test_past_states_are_shown_to_an_agent_that_reads_them(agent: Agent) -> None:
    reads = replace(agent, layout=replace(agent.layout, history=History(4, show="transitions")))
    episode = played(("Number 1, target 6.", "add one"))
    state = {**STATE, "history": ["add one"], "visited": ["Number 1, target 6."]}
    with in_process(reads) as client:
        acted = client.post("/act", json=state).json()
        answer = client.post("/v1/chat/completions", json=asked(episode, logprobs=True)).json()
        other = client.post("/act", json={**state, "visited": ["Number 5, target 6."]}).json()
    [token] = answer["choices"][0]["logprobs"]["content"]
    assert token["logprob"] == pytest.approx(acted["logprob"], abs=1e-5)
    assert acted["probabilities"] != other["probabilities"]


# ---- what cannot be asked --------------------------------------------------------------------------------------------


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def by_reference(to: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"action": {"$ref": to}}, "$defs": {"Move": {"enum": ACTIONS}}}
    return [{"type": "function", "function": {"name": "act", "parameters": schema}}]


ANSWERED = {"role": "assistant", "content": "add one"}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.example/1.png"}}]}
TWO_CALLS = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "add_one", "arguments": "{}"}}] * 2,
}
DEEP = {"type": "function", "function": {"name": "act", "arguments": "[" * 2000}}
NO_SCHEMA = {"type": "object", "properties": {"by": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"model": "gpt-4o"}, f"'gpt-4o' was asked for; expected '{MODEL}'"),
        ({"tools": None}, "no menu was given"),
        ({"tools": by_value("add one", "add one")}, "'add one' is in the menu twice"),
        ({"tools": by_value()}, "'action' of the tool 'act' has no list of values"),
        ({"tools": [{"type": "function", "function": {"name": "add", "parameters": NO_SCHEMA}}]}, "'by' of the tool"),
        ({"tools": [*BY_NAME, {"type": "custom", "custom": {}}]}, "'tools.2.type' should be 'function'"),
        ({"tool_choice": "none"}, "tool_choice is 'none', but tools are the menu, and this agent always answers"),
        ({"tools": by_reference("#/$defs/Other")}, "'action' of the tool 'act' has no list of values"),
        ({"top_p": 0.9}, "'top_p' should be greater than or equal to 1"),
        ({"presence_penalty": 0.5}, "'presence_penalty' should be less than or equal to 0"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "names 'fly', which is none of the tools"),
        ({"response_format": form({})}, "given together"),
        ({"tools": None, "response_format": form({})}, "has 0 parameters"),
        ({"tools": None, "response_format": {"type": "json_object"}}, "has no schema"),
        ({"tools": None, "structured_outputs": {"regex": "a|b"}}, "structured_outputs.choice has no list of values"),
        ({"tools": None, "structured_outputs": {"choice": ["add one", 2]}}, "has the value 2"),
        ({"tools": None, "structured_outputs": {"choice": ["wait\nwin"]}}, "'actions.0'"),
        ({"tools": by_value(*(f"go {number}" for number in range(9)))}, "9 actions"),
        ({"temperature": 0.7}, "temperature 0.7 was given, but this agent plays its most probable action"),
        ({"n": 2}, "'n' should be 1"),
        ({"stop": ["x"]}, "'stop' is unknown"),
        ({"messages": []}, "no messages"),
        ({"messages": [{"role": "system", "content": "Count."}]}, "end with the roles system"),
        ({"messages": [USER, USER]}, "end with the roles user, user"),
        ({"messages": [USER, ANSWERED]}, "end with the roles user, assistant"),
        ({"messages": [PICTURE]}, "a message of the user holds more than text"),
        ({"messages": [USER, TWO_CALLS, USER]}, "has 2 calls"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [DEEP]}, USER]}, "expected a JSON object"),
        ({"messages": [{"role": "system", "content": "1 2 " * 300}, USER]}, "tokens"),
    ],
)
def test_what_cannot_be_mapped_is_refused_in_a_sentence(
    change: dict[str, Any], fact: str, client: httpx2.Client
) -> None:
    status, sentence = refusal(client.post("/v1/chat/completions", json=asked([USER], **change)))
    assert (status, fact in sentence) == (422, True), sentence


def test_the_client_raises_the_sentence(chat: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="no menu was given; expected the legal actions as tools"):
        chat.chat.completions.create(model=MODEL, messages=[USER])
    with (
        openai.OpenAI(base_url=chat.base_url, api_key="sk-other", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"),
    ):
        other.models.list()


def test_agents_that_read_more_than_a_chat_are_refused(agent: Agent) -> None:
    layout = agent.layout
    planned = tuple(replace(seat, role="planner") for seat in agent.seats)
    for other, fact in (
        (replace(agent, layout=replace(layout, history=History(4, reward=True))), "prompt.history.reward"),
        (replace(agent, layout=replace(layout, carry=True)), "players.reflector.carry"),
        (replace(agent, layout=replace(layout, menu="first")), "prompt.menu"),
        (replace(agent, seats=planned), "players.planner"),
    ):
        with in_process(other) as client:
            status, sentence = refusal(client.post("/v1/chat/completions", json=asked([USER])))
        assert (status, fact in sentence, "/act" in sentence) == (422, True, True)


def test_a_policy_that_writes_its_action_has_no_logprobs(json_policy: Path) -> None:
    with in_process(load_served_agent(json_policy, greedy=False)) as client:
        answer = client.post("/v1/chat/completions", json=asked([USER], temperature=1)).json()["choices"][0]
        refused = refusal(client.post("/v1/chat/completions", json=asked([USER], logprobs=True)))
        cold = refusal(client.post("/v1/chat/completions", json=asked([USER], temperature=0)))
    assert answer["message"]["tool_calls"][0]["function"]["name"] in ("add_one", "subtract_one")
    assert answer["message"]["reasoning_content"]  # what it wrote
    assert (refused[0], "this agent writes its action" in refused[1]) == (422, True)
    assert (cold[0], "start the server with --greedy" in cold[1]) == (422, True)


# ---- load ------------------------------------------------------------------------------------------------------------


def test_load_beyond_the_queue_is_refused_at_once_and_the_client_s_retries_get_through(
    run: Path, tmp_path: Path
) -> None:
    process = WarmProcess(tmp_path / "log", command_line, "serve", str(run), "--port", "0", "--max-waiting", "3")
    try:
        wait_until(lambda: (process.log.exists() and "http" in process.said) or process.poll() is not None)
        url = f"{process.said.split()[-1]}/v1"

        def ask(client: openai.OpenAI) -> str:
            try:
                client.chat.completions.create(model=MODEL, messages=[USER], tools=BY_NAME)
            except openai.InternalServerError as error:
                return f"{error.status_code}: {error.body['message']}"
            return "answered"

        with ThreadPoolExecutor(40) as crowd:
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as once:
                statuses = list(crowd.map(ask, [once] * 200))
            with openai.OpenAI(base_url=url, api_key="none", max_retries=20) as patient:
                later = list(crowd.map(ask, [patient] * 40))
    finally:
        process.kill()
    assert set(statuses) == {"answered", "503: too many requests are pending; try again in a second."}
    assert set(later) == {"answered"}
