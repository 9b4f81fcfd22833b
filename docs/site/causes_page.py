"""The causes of a low success that a verdict names, read from the code that finds them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from reflectrl.report import causes

UNKNOWN = "…"
"""Stands for what only a run can say."""
FUNCTIONS = {node.name: node for node in ast.parse(inspect.getsource(causes)).body if isinstance(node, ast.FunctionDef)}


def causes_list() -> str:
    """The Markdown: a heading for each cause, the verdict's sentence, and what to try."""
    return "\n".join(line for find in causes.KNOWN for line in _entry(FUNCTIONS[find.__name__]))


def _entry(function: ast.FunctionDef) -> Iterator[str]:
    [name, why, remedy] = _calls(function, "Cause")[0].args
    said = _Words(function)
    yield f"### {(ast.get_docstring(function) or '').removesuffix('.')} {{ #cause-{said.of(name)} }}\n"
    yield f"> Why: {said.of(why)}.\n"
    yield f"Try: {said.of(remedy)}.\n"


class _Words:
    """What the expressions in a function say in every run; of two ways to say it, the first."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        self._named = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def of(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return re.sub(rf"(?<=\w){UNKNOWN}", "", "".join(map(self.of, parts)))
            case ast.FormattedValue(value=ast.Call(func=ast.Name(id="_percent"))):
                return f"{UNKNOWN} %"
            case ast.FormattedValue(value=inner) | ast.IfExp(body=inner):
                return self.of(inner)
            case ast.Name(id=name) if name in self._named:
                return self.of(self._named[name])
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                return _Words(FUNCTIONS[name]).returned()
        return UNKNOWN

    def returned(self) -> str:
        """Say what the function returns: an expression, or the texts that it appends to a list."""
        if appended := _calls(self._function, "append"):
            return ", ".join(self.of(call.args[0]) for call in appended)
        [result] = [node.value for node in ast.walk(self._function) if isinstance(node, ast.Return) and node.value]
        return self.of(result)


def _calls(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    """The calls of a function or method of that name."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    found = [call for call in calls if name in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))]
    return sorted(found, key=lambda call: call.lineno)
