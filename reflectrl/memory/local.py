"""``LocalText``: a planner's language model in this process."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core.chat import Messages
from reflectrl.models.load import LanguageModel
from reflectrl.models.reflector import LMReflector
from reflectrl.prompts.chat import plain_prompt

ANSWER_CUE = "Answer:"
_BATCH = 32


class LocalText:
    """A frozen causal language model that answers greedily. It reads plain text, as the local players do."""

    def __init__(self, lm: LanguageModel, *, max_length: int, max_new_tokens: int) -> None:
        """Ask ``lm``; prompts and answers have at most ``max_length`` tokens, answers ``max_new_tokens``."""
        self._writer = LMReflector(
            lm.model, lm.tokenizer, max_length=max_length, max_new_tokens=max_new_tokens, batch_size=_BATCH
        )

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer a chat."""
        return [said.text for said in self._writer.answer([plain_prompt(chat, ANSWER_CUE) for chat in chats], draws)]
