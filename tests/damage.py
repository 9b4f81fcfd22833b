"""Random damage to files of JSON, JSON lines and tensors, as from crashes, other programs or attackers."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 7, 10**6, 10**12, 10**400, 2.5, -1e308, 1e308, float("nan"), float("inf")),
    *("", "x", "../x", "gpt2", "\ud800", "\x00", "\u202e<script>", "a" * 9000, [], {}, [1], {"a": 1}, [[[]]]),
)
"""Values that replace a value."""
TEXTS = (
    *("", "null", "[]", "3", "{}", "NaN", '"', "\x00", "\ufeff{}", "{} {}", "'a'", "9" * 5000, '"\\ud800"'),
    *("[" * 100_000, '{"a":' * 5000, '{"a":' * 60 + "1" + "}" * 60),
)
"""Texts that replace a JSON text."""


def damaged_json(rng: random.Random, text: str) -> str:
    """Return a JSON text with one mistake or oddity."""
    deed = rng.choice(("cut", "text", "delete", "replace", "replace", "replace", "add"))
    if deed == "cut":
        return text[: rng.randrange(len(text))]
    if deed == "text":
        return rng.choice(TEXTS)
    value = json.loads(text)
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        for key, inside in list(part.items() if isinstance(part, dict) else enumerate(part)):
            places.append((part, key))
            if isinstance(inside, dict | list):
                waiting.append(inside)
    part, key = rng.choice(places)
    odd = copy.deepcopy(rng.choice(VALUES))
    if deed == "delete":
        del part[key]
    elif deed == "replace":
        part[key] = odd
    elif isinstance(part, dict):
        part[rng.choice(("", "x", "\ud800", f"{key}s"))] = odd
    else:
        part.append(odd)
    deep = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return deep.replace("[[[]]]", "[" * 60 + "]" * 60)


def damaged_lines(rng: random.Random, content: bytes) -> bytes:
    """Return JSON lines of which one, or the whole text, is damaged."""
    lines = content.decode().split("\n")[:-1]
    at = rng.randrange(len(lines))
    whole: dict[str, Callable[[], bytes]] = {
        "line": lambda: _lines([*lines[:at], damaged_json(rng, lines[at]), *lines[at + 1 :]]),
        "cut": lambda: content[: rng.randrange(len(content))],
        "gone": lambda: _lines([*lines[:at], *lines[at + 1 :]]),
        "twice": lambda: _lines([*lines[: at + 1], *lines[at:]]),
        "blank": lambda: _lines([*lines[:at], rng.choice(("", " ", "\r")), *lines[at:]]),
        "windows": lambda: content.replace(b"\n", b"\r\n"),
        "mark": lambda: b"\xef\xbb\xbf" + content,
        "bytes": lambda: content[:at] + bytes(rng.randrange(256) for _ in range(8)) + content[at:],
        "utf-16": lambda: content.decode().encode("utf-16"),
        "empty": lambda: b"",
    }
    return whole[rng.choice(("line", "line", "line", *whole))]()


def damaged_tensors(rng: random.Random, content: bytes) -> bytes:
    """Return a safetensors file that is truncated, or has a wrong header."""
    size = struct.unpack("<Q", content[:8])[0]
    deed = rng.choice(("cut", "size", "header", "header"))
    if deed == "cut":
        return content[: rng.randrange(len(content))]
    if deed == "size":
        return struct.pack("<Q", rng.choice((0, 1, size - 1, size + 1, 2**32, 2**63, 2**64 - 1))) + content[8:]
    header = damaged_json(rng, content[8 : 8 + size].decode()).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
