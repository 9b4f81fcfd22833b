"""Short constructors of past episodes, and an embedder whose cosines can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from records import chose

from reflectrl.core import Observation, Task, Trajectory, Turn, Utterance
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import State, View
from reflectrl.rollout.record import EpisodeStore, Header
from reflectrl.seats.embedders import HashingEmbedder, words
from reflectrl.seats.experience import Experience, PastStep
from reflectrl.seats.table import view

HEADER = Header("kitchen", {}, PromptFormat(history=0))


def store(path: Path, **options: str) -> EpisodeStore:
    return EpisodeStore(path / "memory.jsonl", HEADER, **options)


def played(
    task_id: str, *steps: tuple[str, str], reward: float = 1.0, success: bool = True, plan: str = "", illegal: int = -1
) -> Trajectory:
    """Return an episode of a text game from (action, reply) pairs; the last one's is lost, as in old files."""
    shown, turns = ["You see a table."], []
    for number, (action, reply) in enumerate(steps):
        said = {"planner": Utterance(plan)} if plan and not number else {}
        observation = Observation("\n".join(shown), (action,), f"Put a {task_id}.\nA room with a table.")
        last = {"env": reward if number == len(steps) - 1 else 0.0}
        turns.append(Turn(observation, (action,), said, chose(0, action), last, number == illegal))
        shown.append(f"> {action}\n{reply}")
    return Trajectory(Task(task_id, {"group": "put"}), 0, tuple(turns), True, False, success)


def past(task: str, *steps: tuple[str, str], task_type: str = "", plan: str = "", start: str = "") -> Experience:
    """Return a past episode as a memory stores it."""
    return Experience(task, task, task_type, plan, start, tuple(PastStep(*step) for step in steps), True, 1.0)


def seen(text: str, *actions: str, task: str = "", planner: str = "") -> View:
    """Return the view of the memory's seat."""
    said = {"planner": planner} if planner else {}
    return view("memory", HEADER.prompt, State(Observation(text, ("go",), task), actions, said=said))


class OneHot:
    """Embedder that gives each word its own direction."""

    width = 32

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._words: dict[str, int] = {}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        vectors = np.zeros((len(texts), self.width), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in words(text):
                vector[self._words.setdefault(word, len(self._words))] = 1
            vector /= np.linalg.norm(vector) or 1
        return vectors


class Rotated:
    """Embedder by hashing in a rotated basis, in which nearly no number is 0, as in the vectors of a model."""

    def __init__(self, width: int = 256) -> None:
        self._hashing = HashingEmbedder(width)
        self._basis = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))[0].astype(np.float32)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._hashing.embed(texts) @ self._basis, np.float32)
