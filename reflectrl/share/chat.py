"""``/v1/chat/completions``: the agent as a chat model with OpenAI's API, whose menu are tools or choices.

A translation of ``/act``, for programs that know only that API. A message of the user or of a tool is a state, one of
the assistant the action that was chosen there, and a message of the system the task. What ``/act`` cannot be asked is
refused in a sentence. Of what has no influence on one action, these are accepted: ``n`` and ``top_p`` of 1, penalties
of 0, ``max_tokens``, ``max_completion_tokens``, ``parallel_tool_calls``, ``stream_options``, ``metadata``, ``store``
and ``user``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import from_json

from reflectrl.core import InvalidInput
from reflectrl.core.text import shown
from reflectrl.pipeline.agent import Agent
from reflectrl.prompts.format import WRITTEN_ACTIONS
from reflectrl.share.wire import ActReply, ActRequest, Text, describe_mistakes

LEAST = 1e-30
"""Probabilities below this one are reported as this one, as JSON has no infinite logarithm."""


class Function(BaseModel):
    """A function: an action, or one action per value of its only parameter, an enum; or a call of it."""

    model_config = ConfigDict(strict=True, use_attribute_docstrings=True)

    name: Text
    """With spaces for its underscores, the action, if there are no parameters."""
    parameters: dict[str, JsonValue] | None = None
    """JSON schema of an object without properties, or with one that is an ``enum`` of texts, which are the actions."""
    arguments: Text = ""
    """Arguments of a call, as JSON; empty in a menu."""


class Tool(BaseModel):
    """A tool that the agent may call, has to call, or has called."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: Function


class Message(BaseModel):
    """A message of the chat; what else it holds is not read."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[dict[str, JsonValue]] | None = None
    tool_calls: list[Tool] | None = None


class ChatRequest(BaseModel):
    """An episode so far, as a chat, with the menu of its last state. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    model: Text
    """The name that /v1/models says."""
    messages: list[Message]
    """States (user or tool) and the actions chosen there (assistant) by turns, the last one a state; before them the
    task (system), for environments that show one. An agent that reads past states reads them as they are here, also
    where it was trained on the environment's short form of them."""
    tools: list[Tool] | None = None
    """The menu: an action for each tool, or for each value of its only parameter."""
    tool_choice: Literal["auto", "required", "none"] | Tool | None = None
    """``auto`` and ``required``: the agent always calls a tool; a named tool: the menu has its actions only; ``none``:
    refused if there are tools."""
    response_format: dict[str, JsonValue] | None = None
    """The menu, in place of tools: ``json_schema`` of an object whose one property is an ``enum`` of texts."""
    structured_outputs: dict[str, JsonValue] | None = None
    """The menu, in place of tools: ``choice``, a list of actions, as vLLM takes it."""
    logprobs: bool | None = None
    """Whether to return the probabilities of the actions; each action counts as one token."""
    top_logprobs: int | None = Field(None, ge=0)
    """Number of most probable actions to return with ``logprobs``."""
    stream: bool | None = None
    """Whether to reply with server-sent events."""
    seed: int | None = None
    """Random seed. With one seed for all states of an episode, each state still samples independently."""
    temperature: float | None = None
    """0 for an agent that plays its most probable action, 1 for one that draws actions; others are refused."""
    n: Literal[1] | None = None
    """One answer."""
    top_p: float | None = Field(None, ge=1, le=1)
    """1, as no action is left out."""
    presence_penalty: float | None = Field(None, ge=0, le=0)
    """0, as probabilities are not changed."""
    frequency_penalty: float | None = Field(None, ge=0, le=0)
    """0, likewise."""
    max_tokens: int | None = None
    """Not read, as an action is never cut."""
    max_completion_tokens: int | None = None
    """Not read, likewise."""
    parallel_tool_calls: bool | None = None
    """Not read, as an answer is one call."""
    stream_options: dict[str, JsonValue] | None = None
    """Not read: tokens are not counted."""
    metadata: JsonValue = None
    """Not read."""
    store: bool | None = None
    """Not read: nothing is stored."""
    user: str | None = None
    """Not read."""


@dataclass(frozen=True)
class Answer:
    """The form in which a client is told an action."""

    content: str = ""
    """The action as the message's text; empty for a call."""
    tool: str = ""
    """Name of the tool to call; empty for a text."""
    arguments: str = "{}"
    """Its arguments, as JSON."""


@dataclass(frozen=True)
class Asked:
    """A request, as ``/act`` takes it, with the answer for each action of its menu."""

    request: ActRequest
    answers: Mapping[str, Answer]

    def answer(self, action: str) -> Answer:
        """Return the answer for the action; without a menu it is the text."""
        return self.answers.get(action) or Answer(content=action)


def as_act(chat: ChatRequest, agent: Agent, name: str) -> Asked:
    """Translate a request; ``name`` is the model's.

    Raises:
        InvalidInput: it asks for another model, cannot be translated, or the agent reads what a chat does not carry.

    """
    if chat.model != name:
        raise InvalidInput(f"the model {shown(chat.model)} was asked for; expected {name!r}, as /v1/models says.")
    if (reads := _beyond_a_chat(agent)) is not None:
        raise InvalidInput(f"this agent {reads}, which a chat does not carry; send its states to /act.")
    plays = 0 if agent.greedy else 1
    if chat.temperature not in (None, plays):
        how = "plays its most probable action" if agent.greedy else "draws its actions as it was trained to"
        raise InvalidInput(
            f"temperature {chat.temperature:g} was given, but this agent {how}; leave it out, or start the server with "
            f"{'--sample' if agent.greedy else '--greedy'}."
        )
    if chat.logprobs and agent.layout.action_mode in WRITTEN_ACTIONS:
        raise InvalidInput("logprobs were asked for, but this agent writes its action; leave them out.")
    answers = _answers(chat)
    if agent.max_actions and not answers:
        raise InvalidInput(
            "no menu was given; expected the legal actions as tools, as a response_format of the type json_schema, or "
            "as structured_outputs with a choice."
        )
    task, states, actions = _episode(chat.messages, in_json=_json_form(chat) is not None)
    transitions = agent.layout.recent.show == "transitions"
    try:
        request = ActRequest(
            observation=states[-1],
            actions=list(answers),
            task=task,
            history=actions,
            visited=states[:-1] if transitions else [],
            seed=chat.seed,
        )
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise InvalidInput(describe_mistakes(found, ActRequest)) from error
    return Asked(request, answers)


def _beyond_a_chat(agent: Agent) -> str | None:
    """Return what the agent reads beyond states, actions and the task."""
    layout = agent.layout
    if layout.recent.reward:
        return "reads rewards (prompt.history.reward)"
    if layout.carry:
        return "reads its reflection of the step before (players.reflector.carry)"
    if layout.menu == "first":
        return "reads the common actions of the episode first (prompt.menu)"
    plans = [seat.role for seat in agent.seats if seat.when == "episode_start"]
    return f"reads what the {plans[0]} said at the episode's beginning (players.{plans[0]})" if plans else None


# ---- the menu --------------------------------------------------------------------------------------------------------


def _json_form(chat: ChatRequest) -> Mapping[str, JsonValue] | None:
    """Return the ``response_format`` if answers are JSON; ``None`` if they are plain text."""
    form = chat.response_format or {}
    return None if form.get("type", "text") == "text" else form


def _answers(chat: ChatRequest) -> dict[str, Answer]:
    """Return the answer for each action of the menu, in the order of the request; empty without a menu."""
    tools, form = chat.tools or [], _json_form(chat)
    if sum((bool(tools), form is not None, chat.structured_outputs is not None)) > 1:
        raise InvalidInput("tools, response_format and structured_outputs were given together; expected one of them.")
    if tools and chat.tool_choice == "none":
        raise InvalidInput(
            "tool_choice is 'none', but tools are the menu, and this agent always answers with an action of it; leave "
            "tool_choice out, or give the menu as a response_format or as structured_outputs."
        )
    if isinstance(chat.tool_choice, Tool):
        wanted = chat.tool_choice.function.name
        tools = [tool for tool in tools if tool.function.name == wanted]
        if not tools:
            raise InvalidInput(f"tool_choice names {shown(wanted)}, which is none of the tools; name one of them.")
    pairs = [pair for tool in tools for pair in _of_tool(tool.function)]
    if form is not None:
        key, values = _choices(_schema(form), "response_format")
        pairs = [(value, Answer(json.dumps({key: value}))) for value in values]
    elif chat.structured_outputs is not None:
        choice = chat.structured_outputs.get("choice")
        pairs = [(value, Answer(value)) for value in _texts(choice, "structured_outputs.choice")]
    answers = dict(pairs)
    if len(answers) < len(pairs):
        names = [action for action, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the action {shown(twice)} is in the menu twice; expected each action once.")
    return answers


def _of_tool(function: Function) -> list[tuple[str, Answer]]:
    name, schema = function.name, function.parameters or {}
    if not schema.get("properties"):
        return [(name.replace("_", " "), Answer(tool=name))]
    key, values = _choices(schema, f"the tool {shown(name)}")
    return [(value, Answer(tool=name, arguments=json.dumps({key: value}))) for value in values]


def _schema(form: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    described = form.get("json_schema") if form.get("type") == "json_schema" else None
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise InvalidInput(
            "the response_format has no schema; expected the type json_schema with an object whose one property is an "
            "enum of the actions."
        )
    return schema


def _choices(schema: Mapping[str, JsonValue], where: str) -> tuple[str, list[str]]:
    """Return the name and the values of the one property of a schema."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        count = len(properties) if isinstance(properties, dict) else 0
        raise InvalidInput(f"{where} has {count} parameters; expected one, an enum of actions, or a tool without any.")
    [(key, described)] = properties.items()
    value = described if isinstance(described, dict) else {}
    named, definitions = value.get("$ref"), schema.get("$defs")
    if isinstance(named, str) and isinstance(definitions, dict):  # as pydantic writes a subclass of Enum
        found = definitions.get(named.removeprefix("#/$defs/"))
        value = found if isinstance(found, dict) else {}
    return key, _texts(value.get("enum", [value["const"]] if "const" in value else None), f"{key!r} of {where}")


def _texts(values: JsonValue, where: str) -> list[str]:
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"{where} has no list of values; expected an enum of the legal actions.")
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise InvalidInput(f"{where} has the value {shown(wrong[0])}; expected texts, the legal actions.")
    return [value for value in values if isinstance(value, str)]


# ---- the episode -----------------------------------------------------------------------------------------------------


def _episode(messages: Sequence[Message], *, in_json: bool) -> tuple[str, list[str], list[str]]:
    """Return the task, the states and the actions between them."""
    begin = next((at for at, each in enumerate(messages) if each.role not in ("system", "developer")), len(messages))
    played = messages[begin:]
    if len(played) % 2 == 0 or any((each.role == "assistant") != at % 2 for at, each in enumerate(played)):
        roles = ", ".join(each.role for each in messages[-6:])
        raise InvalidInput(
            f"the messages end with the roles {roles}; expected states (user or tool) and answers (assistant) by "
            "turns, the last one a state, and before them perhaps the task (system)."
            if messages
            else "no messages were given; expected at least a state, as a message of the user."
        )
    task = "\n".join(map(_text, messages[:begin]))
    return task, list(map(_text, played[::2])), [_action(each, in_json=in_json) for each in played[1::2]]


def _text(message: Message) -> str:
    """Return the text of a message."""
    parts = message.content
    if parts is None or isinstance(parts, str):
        return parts or ""
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    words = [text for text in texts if isinstance(text, str)]
    if len(words) < len(parts):
        raise InvalidInput(f"a message of the {message.role} holds more than text; this agent reads text only.")
    return "\n".join(words)


def _action(message: Message, *, in_json: bool) -> str:
    """Return the action that an answer of the agent stands for."""
    calls = message.tool_calls or []
    if len(calls) > 1:
        raise InvalidInput(f"a message of the assistant has {len(calls)} calls; expected one, as an action is one.")
    if not calls and not in_json:
        return _text(message).strip()
    given = calls[0].function.arguments if calls else _text(message)
    try:
        values = from_json(given or "{}")
    except ValueError:
        values = None
    chosen = list(values.values()) if isinstance(values, dict) else [None]
    if calls and not chosen:
        return calls[0].function.name.replace("_", " ")
    if len(chosen) != 1 or not isinstance(chosen[0], str):
        raise InvalidInput(
            f"a message of the assistant says {shown(given)}; expected a JSON object with one text, its action, as the "
            "answer had it."
        )
    return chosen[0]


# ---- the reply -------------------------------------------------------------------------------------------------------


def completion(chat: ChatRequest, asked: Asked, reply: ActReply) -> dict[str, Any]:
    """Return the reply of ``/act`` as a ``chat.completion``."""
    answer = asked.answer(reply.action)
    message: dict[str, Any] = {"role": "assistant", "content": None if answer.tool else answer.content}
    if words := [text for text in (*reply.said.values(), reply.thought) if text]:
        message["reasoning_content"] = "\n".join(words)
    if answer.tool:
        function = {"name": answer.tool, "arguments": answer.arguments}
        message["tool_calls"] = [{"id": f"call_{uuid4().hex}", "type": "function", "function": function}]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(asked.request.actions, reply, chat.top_logprobs or 0) if chat.logprobs else None,
        "finish_reason": "tool_calls" if answer.tool else "stop",
    }
    head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": chat.model}
    return {**head, "object": "chat.completion", "choices": [choice]}


def _logprobs(actions: Sequence[str], reply: ActReply, most: int) -> dict[str, Any]:
    def entry(action: str, logprob: float) -> dict[str, Any]:
        return {"token": action, "logprob": logprob, "bytes": list(action.encode())}

    ranked = sorted(zip(actions, reply.probabilities, strict=True), key=lambda pair: -pair[1])[:most]
    top = [entry(action, log(max(probability, LEAST))) for action, probability in ranked]
    return {"content": [{**entry(reply.action, reply.logprob), "top_logprobs": top}], "refusal": None}


def events(whole: Mapping[str, Any]) -> Iterator[str]:
    """Yield a ``chat.completion`` as the server-sent events of a stream."""
    [choice] = whole["choices"]
    message = dict(choice["message"])
    calls = [{"index": at, **call} for at, call in enumerate(message.pop("tool_calls", []))]
    last = {"tool_calls": calls} if calls else {"content": message.pop("content")}
    deltas = (({**message, "content": None}, None, None), (last, choice["logprobs"], None))
    for delta, logprobs, reason in (*deltas, ({}, None, choice["finish_reason"])):
        part = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        yield f"data: {json.dumps({**whole, 'object': 'chat.completion.chunk', 'choices': [part]})}\n\n"
    yield "data: [DONE]\n\n"
