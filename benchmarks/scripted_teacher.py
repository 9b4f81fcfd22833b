"""A tiny run of AutoExplore, taught by a scripted chat endpoint with faults: what ``kills.py`` kills.

The endpoint is that of the tests: a real HTTP server on 127.0.0.1, in this process.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the scripted endpoint is
from scripted_endpoint import Chat, ScriptedEndpoint

NAME = "kills"
CONCURRENCY = 3
RECIPE = """\
extends: auto_explore/nano
name: {name}
dataset:
  {{repositories: ["{repository}"], writer: openai, per_file: 2, endpoint: &teacher {endpoint}}}
data: {{teacher: openai, samples: 60, concurrency: 3, endpoint: *teacher}}
model: {{builtin: {{layers: 1, width: 32, vocabulary: 600}}, max_length: 512}}
players: {{reflector: {{max_new_tokens: 8}}}}
sft:
  reflector: {{steps: 130, batch_size: 4, micro_batch_size: 4}}
  policy: {{steps: 130, batch_size: 4, micro_batch_size: 4}}
rlft: {{stages: [{{name: main, iterations: 16}}], episodes: 6, num_iterations: 2, save_every: 2, record_episodes: 2}}
eval: {{episodes: 24, batch_size: 8, controls: [blank]}}
"""
CITIES = ("athens", "berlin", "cairo", "dublin", "essen", "faro", "genoa", "hanover")
WORDS = ("north", "south", "east", "west", "file", "folder", "answer", "office")
FAULTS = ("500", "reset", "429:0.05", "truncated", "refusal", "empty")


class Teacher(ScriptedEndpoint):
    """Says what only the chat decides; some calls fail at first, and a few have no usable reply ever."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = words
        self.latency_s = 0.03
        self.answered: list[str] = []
        """The words of each reply that could be used, since ``forget``."""
        self._asked: Counter[bytes] = Counter()

    def forget(self) -> None:
        """Forget all earlier chats."""
        with self.lock:
            self.answered = []
            self._asked.clear()

    def next_fault(self) -> str:
        """Called with the lock held, for the newest of the requests."""
        chat = self.requests[-1].chat
        known = _digest(chat)
        self._asked[known] += 1
        if known[-1] < 4:
            return "refusal"
        if known[-1] < 76 and self._asked[known] == 1:
            return FAULTS[known[-2] % len(FAULTS)]
        self.answered.append(words(chat))
        return "none"


def words(chat: Chat) -> str:
    """Different for different chats; now and then a reflection that must be asked for again."""
    known, asked = _digest(chat), chat[1]["content"]
    said = " ".join(WORDS[byte % len(WORDS)] for byte in known[:12])
    if found := re.search(r"# Sick notes in (\w+)", asked):
        return f"ANALYSIS: {said}.\nQUESTION 1: Where are sick notes in {found[1]} sent?\nANSWER 1: To {found[1]}."
    return f"The private note says {said}." if known[-3] < 16 and len(chat) == 2 else f"Look {said}."


def _digest(chat: Chat) -> bytes:
    return hashlib.sha256(json.dumps(chat).encode()).digest()


def write_recipe(folder: Path, url: str) -> Path:
    """The recipe, and the repository that it asks about, in ``folder``."""
    (folder / "docs" / "notes").mkdir(parents=True)
    for city in CITIES:
        text = f"# Sick notes in {city.title()}\n\nSick notes of {city.title()} are sent to {city.title()}.\n"
        (folder / "docs" / "notes" / f"{city}.md").write_text(text, encoding="utf-8")
    endpoint = f"{{model: scripted, base_url: {url}, max_attempts: 3, concurrency: {CONCURRENCY}}}"
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(name=NAME, repository=folder / "docs", endpoint=endpoint), encoding="utf-8")
    return path
