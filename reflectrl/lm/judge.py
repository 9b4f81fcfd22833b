"""``LocalModel``: a language model in this process that summarises and rates."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Observation
from reflectrl.core.messages import LabelChat, Messages
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.tokenizer import label_ids
from reflectrl.lm.writer import LMReflector
from reflectrl.prompts import Menu
from reflectrl.prompts.chats import plain_prompt
from reflectrl.prompts.rating import Scale
from reflectrl.prompts.views import MenuView

SUMMARY_TOKENS = 80
"""Maximum number of tokens of a summary."""
SUMMARY_CUE = "Summary:"
RATING_CUE = "Rating:\n"
"""Cue before a rating; its newline makes the level a token of its own."""
_BATCH = 32


class LocalModel:
    """A frozen causal language model: it writes summaries greedily, and its rating is the most probable level.

    Like the local players, it reads a question as the user's turn if it has a chat template. A rating is never missing,
    but that of a small model may be meaningless: audit it. The middle of a question that is too long is cut out.
    """

    def __init__(self, lm: LanguageModel, scale: Scale, *, max_length: int, cue: str = SUMMARY_CUE) -> None:
        """Ask ``lm``, whose prompts and texts after a ``cue`` have at most ``max_length`` tokens.

        Raises:
            InvalidInput: a level of ``scale`` is not one token of its tokenizer.

        """
        self._cue = cue
        levels = label_ids(lm.tokenizer, scale.levels)
        add_choice_head(lm.base)
        self._writer = LMReflector(
            lm.model,
            lm.tokenizer,
            max_length=max_length,
            max_new_tokens=SUMMARY_TOKENS,
            cache_size=0,
            batch_size=_BATCH,
        )
        encoder = PromptEncoder(lm.tokenizer, levels, max_length, cache_size=0)
        self._chooser = LMPolicy(lm.model, encoder, greedy=True, batch_size=_BATCH)

    def summaries(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one summary per chat."""
        return [said.text for said in self._writer.write([plain_prompt(chat, self._cue) for chat in chats], draws)]

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level per chat."""
        here = Observation("", ())
        menus = [Menu(chat.labels, chat.actions) for chat in chats]
        views = [
            MenuView(plain_prompt(chat, RATING_CUE, menu), here, (), {}, menu=menu)
            for chat, menu in zip(chats, menus, strict=True)
        ]
        return [decision.choice.index for decision in self._chooser.act(views, draws)] if views else []
