"""Episodes in the viewer's format: texts stored once each, steps as short lists, all of it compressed.

Control characters of a text are made visible here, so that they have no effect in the browser.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from reflectrl.core import Trajectory, Turn
from reflectrl.core.types import OUTCOMES
from reflectrl.prompts.answers import thought_in
from reflectrl.report.markup import MAX_CHARACTERS, excerpt
from reflectrl.report.pictures import Album

MAX_ACTIONS = 24
"""Number of a menu's actions that are shown: the chosen one and the most probable others."""
_NAME = 300
"""Maximum number of characters shown of a task's name, or of an action."""


@dataclass(frozen=True)
class Recorded:
    """An episode, with its training records if it is from training."""

    trajectory: Trajectory
    iteration: int | None = None
    """Iteration of the training; ``None`` for an evaluated episode."""
    advantages: tuple[float, ...] | None = None
    """(T,) as the trainer used them; ``None`` where they were not recorded."""


class _Texts:
    """Visible texts, and menus of them, numbered in the order in which they were first seen."""

    def __init__(self, album: Album) -> None:
        self.album = album
        self._known: dict[tuple[str, int], int] = {}  # original texts, most of which recur
        self.texts: dict[str, int] = {}
        self.menus: dict[tuple[str, ...], int] = {}

    def text(self, text: str, limit: int = MAX_CHARACTERS) -> int:
        if (text, limit) not in self._known:
            self._known[text, limit] = self.texts.setdefault(excerpt(text, limit), len(self.texts))
        return self._known[text, limit]

    def menu(self, actions: tuple[str, ...]) -> int:
        return self.menus.setdefault(actions, len(self.menus))


def pack(episodes: Sequence[Recorded], album: Album) -> str:
    """Return base64 of the compressed JSON of ``columns``; new pictures are added to ``album``."""
    text = json.dumps(columns(episodes, album), ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def columns(episodes: Sequence[Recorded], album: Album) -> dict[str, Any]:
    """Return the object that viewer.js unpacks: ``texts``; ``menus`` as numbers of texts; ``episodes``.

    An episode is [task, goal, outcome, seed, iteration or null, steps]: the goal is what its observations share, or -1;
    the outcome is its number in ``OUTCOMES``. A step is [observation, menu, reflection or -1,
    chosen, reward, illegal, value, advantage or null, actions left out, their probability, probabilities, what the
    policy wrote or -1, correction, pictures]: texts are numbers, probabilities ten-thousandths. A correction is the
    differences between thought and correction, see ``differences``; empty without one. Pictures are their numbers in
    ``album``.
    """
    seen = _Texts(album)
    packed = [_episode(recorded, seen) for recorded in episodes]
    menus = [[seen.text(action, _NAME) for action in menu] for menu in seen.menus]
    return {"texts": list(seen.texts), "menus": menus, "episodes": packed}


def _episode(recorded: Recorded, texts: _Texts) -> list[Any]:
    played = recorded.trajectory
    goal = played.turns[0].observation.task if played.turns else ""
    advantages = recorded.advantages or [None] * len(played.turns)
    return [
        texts.text(played.task.id, _NAME),
        texts.text(goal) if goal else -1,
        OUTCOMES.index(played.outcome),
        played.seed,
        recorded.iteration,
        [_step(turn, goal, value, texts) for turn, value in zip(played.turns, advantages, strict=True)],
    ]


def _step(turn: Turn, goal: str, advantage: float | None, texts: _Texts) -> list[Any]:
    seen, chosen = turn.observation, turn.decision.choice.index
    odds, written = turn.decision.choice.probabilities, turn.decision.choice.written
    better = turn.said["corrector"].text if "corrector" in turn.said else ""
    corrected = differences(thought_in(written.text), better) if written and better else []
    if len(odds) != len(turn.menu):
        odds = ()  # the probabilities are unknown
    ranked = sorted(range(len(turn.menu)), key=lambda at: (at != chosen, -odds[at] if odds else at))
    kept, others = sorted(ranked[:MAX_ACTIONS]), ranked[MAX_ACTIONS:]
    return [
        texts.text(seen.text if seen.task == goal else seen.full_text),
        texts.menu(tuple(turn.menu[at] for at in kept)),
        -1 if turn.reflection is None else texts.text(turn.reflection),
        kept.index(chosen) if chosen in kept else -1,
        _rounded(turn.reward),
        int(turn.illegal),
        _rounded(turn.decision.value),
        None if advantage is None else _rounded(advantage),
        len(others),
        _ten_thousandths(sum(odds[at] for at in others) if odds else 0.0),
        [_ten_thousandths(odds[at]) for at in kept] if odds else [],
        -1 if written is None else texts.text(written.text),
        [(kind, texts.text(words)) for kind, words in corrected],
        [texts.album.number(image) for image in seen.images],
    ]


def differences(old: str, new: str) -> list[tuple[int, str]]:
    """Return the words of two texts in runs: 0 for words in both, -1 for old ones only, 1 for new ones only."""
    before, after = old.split(), new.split()
    runs = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        parts = [(0, before[a:b])] if kind == "equal" else [(-1, before[a:b]), (1, after[c:d])]
        runs += [(sign, " ".join(words)) for sign, words in parts if words]
    return runs


def _ten_thousandths(probability: float) -> int:
    return round(10_000 * min(1.0, max(0.0, probability)))


def _rounded(number: float) -> float:
    """Round a number, to one that the browser reads from JSON unchanged."""
    return round(number, 4) + 0.0  # without the sign of a zero
