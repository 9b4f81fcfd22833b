"""``Rater``: the player of the seat ``rater``: a model summarises an episode's segments, then rates it (V-TIFA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reflectrl.core import Utterance
from reflectrl.core.chat import LabelChat, Messages
from reflectrl.prompts.views import View
from reflectrl.raters.questions import Questions

NO_SUMMARY = "(no summary)"


class RaterModel(Protocol):
    """Language model that summarises and rates."""

    def summaries(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one summary a chat, on one line; empty where the model gave none."""
        ...

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level a chat; ``None`` where the model gave none, however often it was asked."""
        ...


class Rater:
    """Rates episodes as a whole; the rating is the reward of the last step.

    An episode of which every summary is empty, or the rating unusable, is left without a score: it is absent and never
    counts as the lowest level.

    Args:
        model: asked once a segment and once an episode, about all episodes that end together.
        questions: what it is asked.

    """

    def __init__(self, model: RaterModel, questions: Questions) -> None:
        self._model = model
        self._questions = questions

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating a view of a finished episode."""
        segments = [self._questions.segments(view) for view in views]
        summaries: list[list[str]] = [[] for _ in views]
        for place in range(max(map(len, segments), default=0)):
            asked = [number for number, each in enumerate(segments) if place < len(each)]
            chats = [self._questions.summary(views[n], segments[n][place], summaries[n]) for n in asked]
            for number, words in zip(asked, self._model.summaries(chats, [draws[n] for n in asked]), strict=True):
                summaries[number].append(words or NO_SUMMARY)
        rateable = [number for number, said in enumerate(summaries) if set(said) != {NO_SUMMARY}]
        chosen = self._model.ratings(
            [self._questions.rating(views[n], summaries[n]) for n in rateable], [draws[n] for n in rateable]
        )
        levels = dict(zip(rateable, chosen, strict=True))
        return [
            self._questions.scale.rated(levels.get(number), len(view.past), " ".join(summaries[number]))
            for number, view in enumerate(views)
        ]
