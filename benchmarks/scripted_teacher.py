"""A tiny run of AutoExplore with a scripted chat endpoint with faults as its teacher, for ``kills.py``.

The endpoint is the tests' HTTP server on 127.0.0.1, in this process.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the folder of scripted_endpoint
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
rlft:
  lessons: [{{name: main, iterations: 16}}]
  episodes: 6
  update: {{num_iterations: 2}}
  save_every: 2
  record_episodes: 2
eval: {{episodes: 24, batch_size: 8, controls: [blank]}}
"""
CITIES = ("athens", "berlin", "cairo", "dublin", "essen", "faro", "genoa", "hanover")
WORDS = ("north", "south", "east", "west", "file", "folder", "answer", "office")
FAULTS = ("500", "reset", "429:0.05", "truncated", "refusal", "empty")


class Teacher(ScriptedEndpoint):
    """An endpoint whose replies depend on the chat only; some calls fail at first, a few never get a usable reply."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = words
        self.latency_s = 0.03
        self.answered: list[str] = []
        """Texts of the usable replies since the last ``forget``."""
        self._asked: Counter[bytes] = Counter()

    def forget(self) -> None:
        """Forget all earlier chats."""
        with self.lock:
            self.answered = []
            self._asked.clear()

    def next_fault(self) -> str:
        """Return the fault of the newest request; the caller holds the lock."""
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
    """Return the reply to a chat; for some chats, a reflection that the teacher's checks reject at first."""
    known, asked = _digest(chat), chat[1]["content"]
    said = " ".join(WORDS[byte % len(WORDS)] for byte in known[:12])
    if found := re.search(r"# Sick notes in (\w+)", asked):
        return f"ANALYSIS: {said}.\nQUESTION 1: Where are sick notes in {found[1]} sent?\nANSWER 1: To {found[1]}."
    return f"The private note says {said}." if known[-3] < 16 and len(chat) == 2 else f"Look {said}."


def _digest(chat: Chat) -> bytes:
    return hashlib.sha256(json.dumps(chat).encode()).digest()


def write_recipe(folder: Path, url: str) -> Path:
    """Write the repository and the recipe that asks about it to ``folder``, and return the recipe's path."""
    (folder / "docs" / "notes").mkdir(parents=True)
    for city in CITIES:
        text = f"# Sick notes in {city.title()}\n\nSick notes of {city.title()} are sent to {city.title()}.\n"
        (folder / "docs" / "notes" / f"{city}.md").write_text(text, encoding="utf-8")
    endpoint = f"{{model: scripted, base_url: {url}, max_attempts: 3, concurrency: {CONCURRENCY}}}"
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(name=NAME, repository=folder / "docs", endpoint=endpoint), encoding="utf-8")
    return path
