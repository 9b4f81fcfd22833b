"""``LearnedRater``: a small model that was fine-tuned on ratings, and rates an episode in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Observation, Utterance
from reflectrl.engine.head import add_choice_head
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import LanguageModel
from reflectrl.models.policy import LMPolicy
from reflectrl.models.tokenizer import label_ids
from reflectrl.prompts import Menu, Prompt
from reflectrl.prompts.chat import plain_prompt
from reflectrl.prompts.views import MenuView, View
from reflectrl.raters.local import RATING_CUE
from reflectrl.raters.questions import Questions

_BATCH = 32


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
        levels = label_ids(lm.tokenizer, questions.scale.levels)
        add_choice_head(lm.base)
        self._questions = questions
        encoder = PromptEncoder(lm.tokenizer, levels, max_length, cache_size=0)
        self._chooser = LMPolicy(lm.model, encoder, greedy=True, batch_size=_BATCH)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating a view of a finished episode."""
        prompts = [episode_prompt(self._questions, view) for view in views]
        shown = [MenuView(each, Observation("", ()), (), {}, menu=_menu(self._questions)) for each in prompts]
        scale = self._questions.scale
        return [
            scale.rated(decision.choice.index, len(view.past), "")
            for decision, view in zip(self._chooser.act(shown, draws), views, strict=True)
        ]


def episode_prompt(questions: Questions, view: View) -> Prompt:
    """Return the question for the level of a whole episode as plain text, before a learned rater's answer."""
    return plain_prompt(questions.whole(view), RATING_CUE, _menu(questions))


def _menu(questions: Questions) -> Menu:
    return Menu(questions.scale.levels, questions.scale.labels)
