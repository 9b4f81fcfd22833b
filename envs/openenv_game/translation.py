"""``TextMap``: the map between the JSON of an OpenEnv environment and texts; a subclass can be named in its place."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reflectrl.core import Observation
from reflectrl.core.text import one_line, shown, visible

LEGAL = ("legal_actions", "legal_moves", "valid_actions", "available_actions")
"""Fields of an observation that list the legal actions."""
NOTHING = "Nothing is shown."
_HIDDEN = {"metadata", "reward", "done", "success", *LEGAL}
_NUMBERS: dict[str, type[int] | type[float]] = {"integer": int, "number": float}
_PLAIN = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

Json = Mapping[str, Any]


class TextMap:
    """Texts for the messages of one environment, by its schemas.

    An action with one field, such as ``message``, is written as that value, one with several as an object in JSON, and
    the call of a tool as its name and arguments: ``add {"a": 1}``. The menu has the names that were given, else the
    values of the action's field if it is an enumeration, else what an observation lists in a field of ``LEGAL``, else
    any text is an action. A state shows those of its ``messages`` that are new, or its fields, one a line.

    Args:
        schema: JSON schemas of the environment's ``action`` and ``observation``.
        tools: name, description and ``input_schema`` of each tool.
        actions: names for a menu that is the same in every state.
        menu: length of the longest menu, where the schema does not say it.
    """

    def __init__(self, schema: Json, tools: Sequence[Json] = (), actions: Sequence[str] = (), menu: int = 40) -> None:
        action, observed = schema["action"], schema["observation"].get("properties", {})
        kinds = action.get("$defs", {})
        self.fields: dict[str, Json] = {
            name: {**kinds.get(str(field.get("$ref")).rpartition("/")[2], {}), **field}
            for name, field in action.get("properties", {}).items()
            if name != "metadata"
        }
        needed = [name for name in action.get("required", ()) if name in self.fields]
        self.only = next((fields[0] for fields in (needed, list(self.fields)) if len(fields) == 1), None)
        """Field that an action's text is the value of; ``None`` if an action needs several."""
        self.tools = {tool["name"]: tool for tool in tools}
        only = self.fields.get(self.only or "", {})
        self.actions = tuple(actions) or tuple(map(str, only.get("enum", ())))
        listed = next((observed[name] for name in LEGAL if name in observed), None)
        self.max_actions = len(self.actions) or (0 if listed is None else listed.get("maxItems", menu))
        if self.tools:
            told = ["An action is a tool's name and its arguments in JSON."]
            told += [
                f"{name} {json.dumps(_arguments(tool))}: {tool.get('description')}" for name, tool in self.tools.items()
            ]
        else:
            told = [f"{name}: {field['description']}" for name, field in self.fields.items() if "description" in field]
        self.instructions = visible("\n".join(told))

    def observation(self, seen: Json, before: Json) -> Observation:
        """Return the state that an observation shows; ``before`` is the one before it, empty at the start."""
        listed = next((seen[name] for name in LEGAL if isinstance(seen.get(name), list)), ())
        menu = self.actions or tuple(one_line(str(action)) for action in listed if self.max_actions)
        return Observation(visible(self.text(seen, before)).strip("\n") or NOTHING, menu)

    def action(self, text: str) -> Json:
        """Return the action that a text stands for.

        Raises:
            ValueError: it stands for none.
        """
        if self.tools:
            name, _, rest = text.partition(" ")
            if name not in self.tools:
                raise ValueError(f"{shown(name)} is no tool; expected {', '.join(self.tools)} and arguments in JSON")
            return {"type": "call_tool", "tool_name": name, "arguments": _object(rest or "{}")}
        if self.only is None or text.startswith("{"):
            with contextlib.suppress(ValueError):
                if (given := _object(text)).keys() <= self.fields.keys():
                    return given
        if self.only is None:
            raise ValueError(f"{shown(text)} was written; expected JSON with the fields {', '.join(self.fields)}")
        kind = str(self.fields[self.only].get("type"))
        return {self.only: _number(text, kind) if kind in _NUMBERS else text}

    def text(self, seen: Json, before: Json) -> str:
        """Return the text of an observation; arguments as for ``observation``."""
        if isinstance(seen.get("messages"), list):
            return _transcript(seen).removeprefix(f"{_transcript(before)}\n")  # if the server sends the old ones too
        parts = {name: part for name, part in seen.items() if name not in _HIDDEN and part not in (None, "", [], {})}
        if "tool_name" in parts:
            result = parts.get("error", parts.get("result"))
            return str(result.get("message", result.get("data", result)) if isinstance(result, dict) else result)
        parts = parts or seen.get("metadata") or {}
        if len(parts) == 1:
            return _line(*parts.values())
        return "\n".join(f"{name}: {_line(part)}" for name, part in parts.items())


def _number(text: str, kind: str) -> float:
    with contextlib.suppress(ValueError):  # no integer
        if _PLAIN.fullmatch(text) and math.isfinite(float(text)):
            return _NUMBERS[kind](text)
    raise ValueError(f"{shown(text)} was written; expected {'an integer' if kind == 'integer' else 'a number'}")


def _arguments(tool: Json) -> Json:
    return tool.get("input_schema", {}).get("properties", {})


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
        json.dumps(given, allow_nan=False)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"{shown(text)} was written; expected an object in JSON")
    return given


def _transcript(seen: Json) -> str:
    messages = [part.get("content") if isinstance(part, dict) else part for part in seen.get("messages") or ()]
    return "\n".join(str(message) for message in messages)


def _line(part: Any) -> str:
    if isinstance(part, list) and all(isinstance(row, list) for row in part):
        return "\n" + "\n".join(" ".join(map(str, row)) for row in part)
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
