"""Requests and replies of ``reflectrl serve``: the JSON of ``/act``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from reflectrl.core import nearest

MAX_NAME_CHARS = 60
"""Characters of a client's name that an error message repeats."""


def _text(given: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is not text") from None
    return given


def _line(given: str) -> str:
    if "\n" in given:
        raise ValueError("should be one line")
    return given


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[Text, AfterValidator(_line)]


class ActRequest(BaseModel):
    """A state for which the agent chooses an action. Unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

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


class ErrorReply(BaseModel):
    """Reply to a request that failed."""

    detail: str
    """What was wrong, as a sentence."""


def describe_mistakes(errors: Sequence[Mapping[str, Any]]) -> str:
    """Turn pydantic's errors about an ``ActRequest`` into a sentence that does not repeat the values of the request."""
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return f"the request cannot be used: {'; '.join(map(_mistake, errors[:3]))}{more}."


def _mistake(error: Mapping[str, Any]) -> str:
    kind, field = error["type"], ".".join(str(key)[:MAX_NAME_CHARS] for key in error["loc"][1:])
    if kind == "json_invalid":
        return "its body is not JSON"
    if not field:
        return "its body is not a JSON object, or content-type is not application/json"
    if kind == "extra_forbidden":
        return f"the field {field!r} is unknown; {nearest(field, ActRequest.model_fields)}".removesuffix(".")
    if kind == "missing":
        return f"the field {field!r} is missing"
    wrong = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"the field {field!r} {wrong}"
