"""``LocalCorrector``: a local model in the seat ``corrector``, which judges a thought, then rewrites a wrong one."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Utterance
from reflectrl.core.cache import BatchCache
from reflectrl.core.chat import LabelChat, Messages
from reflectrl.models.load import LanguageModel
from reflectrl.prompts.chat import thought_shown
from reflectrl.prompts.views import View
from reflectrl.raters.local import LocalModel
from reflectrl.raters.scale import Scale

ROLE = "You check the thought of a player before a move."
JUDGED = Scale(("wrong", "right"))
_QUESTION = "Does the thought say rightly what the state shows, and does the move serve it? 0. wrong 1. right"
_REQUEST = "The thought is wrong. The right thought, in one sentence of the same style, without the move:"
_CUE = "Thought:"
KEPT = 100_000
"""Number of thoughts whose corrections are kept."""


class LocalCorrector:
    """A frozen language model in this process, constrained to valid answers, so that none is missing or malformed.

    An answer depends on the input alone, so equal thoughts about equal states are judged once.
    """

    def __init__(self, lm: LanguageModel, *, max_length: int) -> None:
        """Ask ``lm``, whose prompts and thoughts have at most ``max_length`` tokens; raises as ``LocalModel`` does."""
        self._model = LocalModel(lm, JUDGED, max_length=max_length, cue=_CUE)
        self._known: BatchCache[str, Utterance] = BatchCache(KEPT)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - it is greedy
        """Return one utterance a view, empty for a thought that is right or absent."""
        shown = [thought_shown(view) if "policy" in view.said else "" for view in views]
        corrections = iter(self._known.get([text for text in shown if text], self._corrections))
        return [next(corrections) if text else Utterance("") for text in shown]

    def _corrections(self, shown: Sequence[str]) -> list[Utterance]:
        asked = [LabelChat(_chat(text, _QUESTION), JUDGED.levels, JUDGED.labels) for text in shown]
        wrong = [level == 0 for level in self._model.ratings(asked, [0.0] * len(asked))]
        chats = [_chat(text, _REQUEST) for text, is_wrong in zip(shown, wrong, strict=True) if is_wrong]
        words = iter(self._model.summaries(chats, [0.0] * len(chats)) if chats else [])
        return [Utterance(next(words) if is_wrong else "") for is_wrong in wrong]


def _chat(shown: str, asked: str) -> Messages:
    return [{"role": "system", "content": ROLE}, {"role": "user", "content": f"{shown}\n\n{asked}"}]
