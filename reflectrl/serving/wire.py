"""What clients of ``reflectrl serve`` send and are sent: the JSON of ``/act``, and of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from reflectrl.core import nearest

REFLECTOR = "reflector"
"""The one model of the chat."""
LONGEST_NAME = 60
"""Characters that are repeated of a name that a client made up."""
_OBJECTS = ("model_type", "model_attributes_type", "dict_type")
"""Errors of pydantic that name a class of ours where an object of JSON is expected."""
_NO_OBJECT = "its body is no JSON object, or content-type is not application/json"


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


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[Text, AfterValidator(_line)]


class Sent(BaseModel):
    """Base of what clients send: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class ActRequest(Sent):
    """A state in which the agent is to act."""

    observation: Text
    """The state in words, as the environment of the run shows it."""
    actions: list[Line]
    """The legal actions in words."""
    task: Text = ""
    """What the episode is about, for environments that say so."""
    history: list[Line] = []
    """The actions that were played before, oldest first."""
    reflection: Text | None = None
    """Said instead of what the reflector would say."""
    seed: int | None = None
    """Of all that is drawn here; the same seed in every state of an episode draws anew in each, by its history."""


class ActReply(BaseModel):
    """What the agent says and does."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    reflection: str | None
    """Null for an agent without a reflector."""
    action: str
    index: int
    """Position of the action among those that were given."""
    probabilities: list[float]
    """Of the actions, in the order in which they were given."""
    logprob: float
    """Natural logarithm of the probability of the action."""
    entropy: float
    """Of the probabilities, in nats."""


class TextPart(Sent):
    """A part of a message's content."""

    type: str
    text: Text


class ChatMessage(BaseModel):
    """One message; of all but its role and its text, nothing is read."""

    model_config = ConfigDict(strict=True)

    role: str
    content: Text | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(Sent):
    """A chat with the reflector: the text of the last message of the user is its prompt, as it is."""

    model: Text
    """Always ``reflector``."""
    messages: list[ChatMessage]
    """Others than the last one of the user are not shown to the reflector, which was not trained on chats."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of the reflection, at most; the run has a limit of its own."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """The newer name of ``max_tokens``."""
    temperature: float | None = None
    """That of the run; no other can be asked for."""
    seed: int | None = None
    """Of what is drawn, at a temperature above 0."""
    stream: bool | None = None
    """Always false."""
    n: int | None = None
    """Always 1."""
    user: str | None = None
    """Not read."""


class ChatChoice(BaseModel):
    """The one reply."""

    index: int = 0
    message: dict[str, str]
    finish_reason: str
    """``length`` when the reflection was cut short."""


class ChatUsage(BaseModel):
    """Tokens, as the reflector's tokenizer counts them."""

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
    """Null where the reflector is a chat endpoint itself."""


class Fault(BaseModel):
    """Why there is no reply."""

    message: str
    type: str
    code: str | None


class Failure(BaseModel):
    """What is sent instead of a reply."""

    error: Fault


def mistakes(errors: Sequence[Mapping[str, Any]], known: Sequence[str]) -> str:
    """What pydantic found wrong with a request, as a sentence in terms of its JSON that repeats no value of it.

    Args:
        errors: as pydantic lists them.
        known: fields of the request.

    """
    wrong: dict[str, dict[str, None]] = {}  # sets that keep their order
    for error in errors:
        wrong.setdefault(_field(error), {})[_mistake(error, known)] = None
    # of a value that may be of two kinds, what is wrong inside says more than that it is not of the other kind
    inner = {field: found for field, found in wrong.items() if not any(f.startswith(f"{field}.") for f in wrong)}
    said = [f"the field {field!r} {' or '.join(found)}" if field else _NO_OBJECT for field, found in inner.items()]
    if errors[0]["type"] == "json_invalid":
        said = ["its body is no JSON"]
    more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
    return f"the request cannot be used: {'; '.join(said[:3])}{more}."


def _field(error: Mapping[str, Any]) -> str:
    """The field that is wrong, as dotted keys of the JSON; empty for the whole body."""
    keys = [str(key)[:LONGEST_NAME] for key in error["loc"][1:]]
    made_up = keys[-1:] if error["type"] == "extra_forbidden" else []
    # pydantic marks members of a union (`list[...]`, `function-after[...]`), which no JSON holds
    return ".".join([key for key in keys[: len(keys) - len(made_up)] if "[" not in key] + made_up)


def _mistake(error: Mapping[str, Any], known: Sequence[str]) -> str:
    """What is wrong with a field, to be put behind its name."""
    kind, field = error["type"], _field(error)
    if kind == "extra_forbidden":
        hint = f"; {nearest(field, known)}" if len(error["loc"]) == 2 else ""
        return f"is unknown{hint}".removesuffix(".")
    if kind == "missing":
        return "is missing"
    if kind in _OBJECTS:
        return "should be an object"
    return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").removesuffix(".")
