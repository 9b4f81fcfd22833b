"""Requests and replies of ``reflectrl serve``: the JSON of ``/act``, and of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from reflectrl.core import nearest

REFLECTOR = "reflector"
"""Name of the only chat model."""
MAX_NAME_CHARS = 60
"""Characters of a client's name that an error message repeats."""
_OBJECTS = ("model_type", "model_attributes_type", "dict_type")
"""Error types for which pydantic's message names a Python class instead of a JSON object."""
_NO_OBJECT = "its body is not a JSON object, or content-type is not application/json"


def _text(given: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is no text") from None
    return given


def _line(given: str) -> str:
    if "\n" in given:
        raise ValueError("should be one line")
    return given


def _something(given: str) -> str:
    if not given:
        raise ValueError("should not be empty")
    return given


def _only(*neutral: object) -> AfterValidator:
    """Return the check of a field of OpenAI's API that may have no effect here: absent, null or a ``neutral`` value."""

    def check(given: object) -> object:
        if given is None or given in neutral:
            return given
        raise ValueError(f"would change the reply, which is not possible here; leave it out{_or_give(neutral)}")

    return AfterValidator(check)


def _or_give(neutral: Sequence[object]) -> str:
    return f" or give {' or '.join(map(json.dumps, neutral))}" if neutral else ""


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[Text, AfterValidator(_line)]
Stop = Annotated[Text, AfterValidator(_something)]


class Request(BaseModel):
    """Base of all requests: unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class ActRequest(Request):
    """A state for which the agent chooses an action."""

    observation: Text
    """Text of the state, as the run's environment shows it."""
    actions: list[Line]
    """Legal actions, one line each."""
    task: Text = ""
    """Text of the task, for environments that show one."""
    common: list[Line] = []
    """Actions legal in nearly all states of the episode, for agents whose prompts list them first (prompt.menu)."""
    history: list[Line] = []
    """Earlier actions of the episode, oldest first."""
    visited: list[Text] = []
    """Texts of the states in which these actions were chosen, in their short form if the environment has one; for
    agents whose prompts show them (prompt.history), as /health says."""
    rewards: list[float] = []
    """Rewards of these actions, likewise."""
    before: dict[Text, Text] = {}
    """Words of the step before by role, as its reply had them in ``said``; for agents whose reflector reads its own
    (players.reflector.carry), as /health says."""
    said: dict[Text, Text] = {}
    """Words by role, used instead of asking that player, e.g. the planner's in the first reply of the episode."""
    seed: int | None = None
    """Random seed. With one seed for all states of an episode, each state still samples independently."""


class ActReply(BaseModel):
    """The frozen players' words and the agent's action."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    said: dict[str, str]
    """Words by role that were given or are new, e.g. those of the ``reflector``; empty without such players."""
    action: str
    index: int
    """Index of the action in the request."""
    legal: bool
    """False if the policy's text named no legal action, so that the action was drawn at random."""
    thought: str | None
    """Text of a policy that writes before it acts, or its action as text."""
    probabilities: list[float]
    """Probabilities of the actions, in the order of the request; empty for a policy that writes its action."""
    logprob: float
    """Natural logarithm of the probability of the action; 0 for a policy that writes its action."""
    entropy: float
    """Entropy of the probabilities, in nats; 0 for a policy that writes its action."""


class TextPart(Request):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    """One message; all fields but role and content are ignored."""

    model_config = ConfigDict(strict=True)

    role: str
    content: Text | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """Text of the content, its parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(Request):
    """Contents of a streamed reply."""

    include_usage: bool | None = None
    """Send the token counts in a last event."""
    include_obfuscation: bool | None = None
    """Ignored."""


class ChatRequest(Request):
    """A chat with the reflector; the text of the last user message is its whole prompt.

    Fields of OpenAI's API with which nothing can be changed here may be absent, null or have their neutral value.
    """

    model: Text
    """Always ``reflector``."""
    messages: list[ChatMessage]
    """Messages; only the last user message is shown to the reflector, which was not trained on chats."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens; the run's own limit holds too."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """The newer name of ``max_tokens``."""
    temperature: float | None = None
    """Sampling temperature; only that of the run is accepted."""
    seed: int | None = None
    """Random seed for temperatures above 0."""
    stop: Stop | list[Stop] | None = None
    """Texts before the first of which the reflection ends."""
    stream: bool | None = None
    """Send the reply as server-sent events, once it is complete."""
    stream_options: StreamOptions | None = None
    """Contents of the events."""
    n: Annotated[Any, _only(1)] = None
    top_p: Annotated[Any, _only(1)] = None
    presence_penalty: Annotated[Any, _only(0)] = None
    frequency_penalty: Annotated[Any, _only(0)] = None
    logit_bias: Annotated[Any, _only({})] = None
    logprobs: Annotated[Any, _only(False)] = None
    top_logprobs: Annotated[Any, _only(0)] = None
    response_format: Annotated[Any, _only({"type": "text"})] = None
    modalities: Annotated[Any, _only(["text"])] = None
    audio: Annotated[Any, _only()] = None
    prediction: Annotated[Any, _only()] = None
    reasoning_effort: Annotated[Any, _only("none")] = None
    verbosity: Annotated[Any, _only()] = None
    web_search_options: Annotated[Any, _only()] = None
    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    functions: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only("none", "auto")] = None
    store: Annotated[Any, _only(False)] = None
    parallel_tool_calls: Any = None
    """Ignored, as there are no tools; so are the fields below, which say nothing about the reply."""
    user: Any = None
    metadata: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ChatChoice(BaseModel):
    """The only choice of a completion."""

    index: int = 0
    message: dict[str, str]
    finish_reason: str
    """``length`` if the reflection was truncated, otherwise ``stop``."""


class ChatUsage(BaseModel):
    """Token counts of the reflector's tokenizer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatReply(BaseModel):
    """A chat completion."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str = REFLECTOR
    choices: list[ChatChoice]
    usage: ChatUsage | None
    """Null if the reflector is a chat endpoint itself."""

    def events(self, *, with_usage: bool) -> str:
        """Return the completion as the server-sent events of a stream: its text, its end and, if asked, its usage."""
        [choice] = self.choices
        parts: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": choice.message, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": choice.finish_reason}]},
        ]
        if with_usage:
            parts = [
                *({**part, "usage": None} for part in parts),
                {"choices": [], **self.model_dump(include={"usage"})},
            ]
        known = {**self.model_dump(include={"id", "created", "model"}), "object": "chat.completion.chunk"}
        return "".join(f"data: {json.dumps({**known, **part})}\n\n" for part in parts) + "data: [DONE]\n\n"


class ErrorBody(BaseModel):
    """Message, type and code of an error."""

    message: str
    type: str
    code: str | None


class ErrorReply(BaseModel):
    """Reply to a request that failed."""

    error: ErrorBody


def describe_mistakes(errors: Sequence[Mapping[str, Any]], known: Sequence[str]) -> str:
    """Turn pydantic's errors about a request into a sentence in terms of its JSON, without repeating its values.

    Args:
        errors: the errors as pydantic lists them.
        known: names of the request's fields.

    """
    wrong: dict[str, dict[str, None]] = {}  # ordered sets
    for error in errors:
        wrong.setdefault(_field(error), {})[_mistake(error, known)] = None
    # for a value with two allowed types, an error inside it says more than one about its type
    inner = {field: found for field, found in wrong.items() if not any(f.startswith(f"{field}.") for f in wrong)}
    found_wrong = [
        f"the field {field!r} {' or '.join(found)}" if field else _NO_OBJECT for field, found in inner.items()
    ]
    if errors[0]["type"] == "json_invalid":
        found_wrong = ["its body is not JSON"]
    more = f"; and {len(found_wrong) - 3} more" if len(found_wrong) > 3 else ""
    return f"the request cannot be used: {'; '.join(found_wrong[:3])}{more}."


def _field(error: Mapping[str, Any]) -> str:
    """Return the invalid field as dotted keys of the JSON; empty for the whole body."""
    keys = [str(key)[:MAX_NAME_CHARS] for key in error["loc"][1:]]
    unknown = keys[-1:] if error["type"] == "extra_forbidden" else []
    # pydantic adds the members of a union (`list[...]`, `function-after[...]`), which are no keys
    return ".".join([key for key in keys[: len(keys) - len(unknown)] if "[" not in key] + unknown)


def _mistake(error: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the predicate of a sentence about an invalid field."""
    kind, field = error["type"], _field(error)
    if kind == "extra_forbidden":
        hint = f"; {nearest(field, known)}" if len(error["loc"]) == 2 else ""
        return f"is unknown{hint}".removesuffix(".")
    if kind == "missing":
        return "is missing"
    if kind in _OBJECTS:
        return "should be an object"
    return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").removesuffix(".")
