"""``LearnedRater``: a small model that was fine-tuned on ratings, and rates an episode in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Utterance
from reflectrl.models.load import LanguageModel
from reflectrl.prompts import Menu, Prompt
from reflectrl.prompts.chat import plain_prompt
from reflectrl.prompts.views import View
from reflectrl.raters.local import RATING_CUE, LocalModel
from reflectrl.raters.questions import Questions


class LearnedRater:
    """Answers with the most probable level of each episode, the reward of its last step; it reads no summaries.

    Args:
        lm: model of ``reflectrl train-rater``.
        questions: prompts that it was trained on, with the levels.
        max_length: tokens of a prompt; the middle of an episode that is longer is cut out.

    Raises:
        InvalidInput: a level is not one token of the model's tokenizer.

    """

    def __init__(self, lm: LanguageModel, questions: Questions, *, max_length: int) -> None:
        self._questions = questions
        self._model = LocalModel(lm, questions.scale, max_length=max_length)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating a view of a finished episode."""
        levels = self._model.ratings([self._questions.whole(view) for view in views], draws)
        scale = self._questions.scale
        return [scale.rated(level, len(view.past), "") for level, view in zip(levels, views, strict=True)]


def episode_prompt(questions: Questions, view: View) -> Prompt:
    """Return the question for the level of a whole episode as plain text, before a learned rater's answer."""
    scale = questions.scale
    return plain_prompt(questions.whole(view), RATING_CUE, Menu(scale.levels, scale.labels))
