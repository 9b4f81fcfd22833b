"""``Rater``: the player of the seat ``rater``, whose model summarises an episode's segments, then rates it (V-TIFA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reflectrl.core import Utterance
from reflectrl.core.chat import LabelChat, Messages
from reflectrl.prompts.views import View
from reflectrl.raters.questions import Questions

NO_SUMMARY = "(no summary)"


class RaterModel(Protocol):
    """Protocol of a language model that summarises and rates."""

    def summaries(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one summary a chat, on one line; empty where the model gave none."""
        ...

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level a chat; ``None`` where the model gave none in any attempt."""
        ...


class Rater:
    """Rates episodes as a whole; the rating is the reward of the last step.

    An episode whose summaries are all empty, or whose rating is unusable, gets no score; it never counts as the lowest
    level.

    Args:
        model: asked once a segment and once an episode, about all episodes that end together.
        questions: prompts for the model.
        votes: number of ratings of each episode, above temperature 0. The median counts; for an even number, the lower
            middle one, which keeps the highest level precise. If half of the votes or more are unusable, there is no
            rating.

    """

    def __init__(self, model: RaterModel, questions: Questions, votes: int = 1) -> None:
        self._model = model
        self._questions = questions
        self._votes = votes

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
        asked_votes = [self._questions.rating(views[n], summaries[n]) for n in rateable for _ in range(self._votes)]
        ballots = [(draws[n] + vote / self._votes) % 1.0 for n in rateable for vote in range(self._votes)]
        cast = iter(self._model.ratings(asked_votes, ballots))
        levels = {number: median_level([next(cast) for _ in range(self._votes)]) for number in rateable}
        return [
            self._questions.scale.rated(levels.get(number), len(view.past), " ".join(summaries[number]))
            for number, view in enumerate(views)
        ]


def median_level(votes: Sequence[int | None]) -> int | None:
    """Return the median of the usable votes, of two the lower; ``None`` if at least half of all votes are unusable."""
    usable = sorted(vote for vote in votes if vote is not None)
    return usable[(len(usable) - 1) // 2] if 2 * len(usable) > len(votes) else None
