"""Measures of the diversity of a policy's thoughts, which are low after thought collapse (GTR, section 3)."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from reflectrl.core import Trajectory, Turn
from reflectrl.prompts.chats import thought_in

BLEU_SAMPLES = 100
"""Maximum number of thoughts that are compared for BLEU, drawn with a fixed seed."""


_MASKED = re.compile(r"\d+(?:\.\d+)?|(?<=[^.!?:\s] )[A-Z]\w*")
"""Pattern of numbers, and of capitalised words inside a sentence."""


def thought_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the fields ``thought_*`` of ``Iteration``, by name; empty where the policy wrote no text.

    Unknown values are NaN, so that every process of a launch has the same fields.
    """
    written = [[turn.decision.choice.written for turn in each.turns] for each in trajectories]
    everything = [text for episode in written for text in episode if text is not None]
    if not everything:
        return {}
    said = [[thought_in(text.text) for text in episode if text is not None] for episode in written]
    thoughts = [thought for episode in said for thought in episode]
    turns = [turn for each in trajectories for turn in each.turns]
    right, meant = (
        [turn.rewards[source] for turn in turns if source in turn.rewards] for source in ("agreement", "consistency")
    )
    corrected = [_is_rewritten(turn) for turn in turns if "corrector" in turn.said]
    repeated = [one == other for episode in said for one, other in pairwise(episode)]
    return {
        "thought_tokens": fmean(len(text.ids) for text in everything),
        "thought_distinct": len(set(thoughts)) / len(thoughts),
        "thought_repeated": fmean(repeated) if repeated else 0.0,
        "thought_bleu": self_bleu(thoughts),
        "thought_templates": len({template(thought) for thought in thoughts}) / len(thoughts),
        "thought_misread": 1 - fmean(right) if right else math.nan,
        "thought_consistent": fmean(meant) if meant else math.nan,
        "thought_corrected": fmean(corrected) if corrected else math.nan,
    }


def _is_rewritten(turn: Turn) -> bool:
    """Return whether the corrector's words differ from the thought, which they repeat where it is right."""
    written, words = turn.decision.choice.written, turn.said["corrector"].text.split()
    return bool(words) and (written is None or words != thought_in(written.text).split())


def known(means: Mapping[str, float]) -> dict[str, Any]:
    """Return the same means with ``None`` in place of NaN."""
    return {name: None if math.isnan(value) else value for name, value in means.items()}


def template(text: str) -> str:
    """Return the thought in a policy's text on one line, with numbers and names masked."""
    return _MASKED.sub("#", " ".join(thought_in(text).split()))


def self_bleu(texts: Sequence[str]) -> float:
    """Return the mean BLEU-2 of each text against all others; 1 for a single text."""
    if len(texts) == 1:
        return 1.0
    chosen = random.Random(0).sample(list(texts), min(len(texts), BLEU_SAMPLES))
    words = [text.split() for text in chosen]
    precisions = zip(*(_precisions(words, size) for size in (1, 2)), strict=True)
    lengths = [len(each) for each in words]
    return fmean(
        _bleu([each for each in known if each is not None], lengths[at], lengths[:at] + lengths[at + 1 :])
        for at, known in enumerate(precisions)
    )


def _bleu(precisions: Sequence[float], length: int, others: Sequence[int]) -> float:
    """Return BLEU: the geometric mean of ``precisions`` with the brevity penalty, for a text of ``length`` words.

    ``others`` are the numbers of words of the texts that it was compared with.
    """
    nearest = min(others, key=lambda other: (abs(other - length), other))
    brevity = min(1.0, math.exp(1 - nearest / length)) if length else 1.0
    if not precisions or not all(precisions):
        return float(not precisions and not any(others))
    return brevity * math.prod(precisions) ** (1 / len(precisions))


def _precisions(texts: Sequence[Sequence[str]], size: int) -> list[float | None]:
    """Return the precision of the word groups of ``size`` of each text against all others; ``None`` without any."""
    grams = [Counter(zip(*(words[start:] for start in range(size)), strict=False)) for words in texts]
    largest: dict[tuple[str, ...], tuple[int, int]] = {}  # the two largest counts of a group in any text
    for each in grams:
        for gram, count in each.items():
            first, second = largest.get(gram, (0, 0))
            largest[gram] = (count, first) if count > first else (first, max(second, count))

    def elsewhere(gram: tuple[str, ...], count: int) -> int:
        first, second = largest[gram]
        return second if count == first else first

    return [
        sum(min(count, elsewhere(gram, count)) for gram, count in each.items()) / each.total() if each else None
        for each in grams
    ]
