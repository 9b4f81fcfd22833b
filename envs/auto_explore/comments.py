"""Comments of code that is not Python: those at the top of a file and directly above a definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from reflectrl.envs.auto_explore.ambiguity import Pair


@dataclass(frozen=True)
class Marks:
    """Comment marks of a language."""

    line: str
    """Mark that begins a comment up to the end of the line."""
    block: tuple[str, str] | None = None
    """Marks that begin and end a comment of several lines."""


_SLASHES = Marks("//", ("/*", "*/"))
_HASH = Marks("#")
COMMENTS = {
    **dict.fromkeys(
        (".c", ".cc", ".cpp", ".cs", ".dart", ".go", ".h", ".hpp", ".java", ".js", ".jsx", ".kt", ".mjs"), _SLASHES
    ),
    **dict.fromkeys((".php", ".proto", ".rs", ".scala", ".swift", ".ts", ".tsx"), _SLASHES),
    **dict.fromkeys((".bash", ".ex", ".jl", ".pl", ".r", ".rb", ".sh", ".tf", ".toml", ".yaml", ".yml"), _HASH),
    **dict.fromkeys((".hs", ".lua"), Marks("--")),
    ".sql": Marks("--", ("/*", "*/")),
}
"""Comment marks by file suffix."""

_DEFINITION = re.compile(
    r"\b(?:class|const|def|defmodule|enum|fn|func|fun|function|impl|interface|let|local|message|module|namespace|"
    r"object|package|record|resource|rpc|service|struct|sub|trait|type|union|var|"
    r"create(?:\s+or\s+replace)?\s+(?:table|view|index|function|procedure|trigger)(?:\s+if\s+not\s+exists)?)"
    r"\s+(?:\([^)]*\)\s*)?[\"`]?([\w.:$]+)",
    re.IGNORECASE,
)
_CALLABLE = re.compile(
    r"(?!(?:catch|else|for|foreach|if|return|switch|while|with)\b)(?:[\w:<>\[\],*&.]+\s+)*\*?([\w:~$-]+)\s*\([^;]*$"
)
_ANNOTATION = re.compile(r"\s*(@\w|#\[)")
_DIRECTIVE = re.compile(
    r"!/|-\*-|\+build|go:|@ts-|region|endregion|vim:|noqa|(eslint|jshint|tslint|prettier|istanbul|pylint|nolint|"
    r"shellcheck|todo|fixme|xxx|global|type:)\b",
    re.IGNORECASE,
)


def commented(path: PurePath, text: str) -> Iterator[Pair]:
    """Yield name and comment of the file, from its first comment, and of its definitions."""
    lines = text.splitlines()
    marks = COMMENTS[path.suffix.lower()]
    number = 0
    top = True
    while number < len(lines):
        comment, end = _comment(lines, number, marks)
        if end == number:
            top = top and (not lines[number].strip() or lines[number].startswith("<?"))
            number += 1
            continue
        while end < len(lines) and _ANNOTATION.match(lines[end]):
            end += 1
        name = _defined(lines[end]) if end < len(lines) else None
        if comment and (name or top):
            yield name or path.stem, comment
            top = False
        number = end


def _comment(lines: list[str], start: int, marks: Marks) -> tuple[str, int]:
    """Return the comment that begins at line ``start``, and the line after it; ``start`` itself if there is none."""
    first = lines[start].strip()
    end = start
    if marks.block and first.startswith(marks.block[0]):
        while end < len(lines) and marks.block[1] not in lines[end]:
            end += 1
        end += 1
        whole = "\n".join(lines[start:end]).strip().removeprefix(marks.block[0])
        said = [line.strip().lstrip("*") for line in whole.partition(marks.block[1])[0].split("\n")]
    else:
        while end < len(lines) and lines[end].strip().startswith(marks.line):
            end += 1
        said = [line.strip().removeprefix(marks.line).lstrip("/") for line in lines[start:end]]
    return "\n".join(line.lstrip("!").strip() for line in said if not _DIRECTIVE.match(line.strip())).strip(), end


def _defined(line: str) -> str | None:
    """Return the name that a line of code defines."""
    line = line.strip()[:500]
    found = _DEFINITION.search(line) or _CALLABLE.match(line)
    return found[1] if found else None
