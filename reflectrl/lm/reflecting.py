"""A policy and its reflector, trained together: two LoRA adapters on one base, one that reflects and one that acts.

The policy gradient treats the reflection like a thought (``lm.thinking``): a text that is sampled token by token
and scored with the same advantage as the label after it. Unlike a thought, the reflection is written with weights of
its own, after the reflector's prompt, and is read in the policy's prompt in the place of a frozen reflector's words; so
the two players can be separated after training. If the policy thinks as well, the decision holds both texts as one, the
reflection first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reflectrl.core import Decision, InvalidInput, Written
from reflectrl.core.files import in_one_move
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel, no_progress_bars
from reflectrl.lm.policy import LMPolicy, Part, Scores, parts
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.safe_files import check_adapter
from reflectrl.lm.sequences import Tokens
from reflectrl.lm.thinking import ThinkingPolicy, having_written, text_of
from reflectrl.prompts.format import before_reflection, with_reflection
from reflectrl.prompts.views import MenuView

ACTING = "default"
"""Name of the adapter that acts: peft's default name."""
REFLECTING = "reflector"
"""Name of the adapter that reflects."""


def add_reflector(lm: LanguageModel, folder: Path) -> None:
    """Add a reflector's adapter, saved in ``folder``, to a policy's, on the base that both were trained on.

    Raises:
        InvalidInput: as ``check_adapter`` does.
    """
    check_adapter(folder)
    lm.model.load_adapter(str(folder), adapter_name=REFLECTING, is_trainable=True)
    _activate(lm.model, ACTING)


def reflects(model: Any) -> bool:
    """Return whether a model has adapters for both players."""
    return REFLECTING in getattr(model, "peft_config", {})


def take_reflector(lm: LanguageModel, folder: Path) -> None:
    """Write the reflector to ``folder``, all or nothing, as an ordinary adapter; the policy stays unchanged."""
    with in_one_move(folder) as fresh, no_progress_bars():
        lm.model.save_pretrained(str(fresh), selected_adapters=[REFLECTING], save_embedding_layers=False)
        for path in (fresh / REFLECTING).iterdir():
            path.replace(fresh / path.name)
        (fresh / REFLECTING).rmdir()
        lm.tokenizer.save_pretrained(fresh)
    lm.model.delete_adapter(REFLECTING)


def _activate(model: Any, adapter: str) -> None:
    """Make the model compute with one of the adapters; both stay trainable."""
    model.set_adapter(adapter)
    model.base_model.set_requires_grad([ACTING, REFLECTING])


@contextmanager
def _computing(model: Any, adapter: str) -> Iterator[None]:
    before = model.active_adapter
    _activate(model, adapter)
    try:
        yield
    finally:
        _activate(model, before)


class ReflectingPolicy(ThinkingPolicy):
    """Writes a reflection with one adapter, then acts with the other, by a label alone or by a thought and a label.

    Its views show no reflection, since there is no other reflector. Values are estimated with the reflecting adapter
    before anything is written, so the baseline depends on no text and no action.
    """

    def __init__(
        self,
        lm: LanguageModel,
        encoder: PromptEncoder,
        actor: LMPolicy,
        *,
        max_new_tokens: int,
        temperature: float,
        caches: tuple[PrefixCache | None, PrefixCache | None] = (None, None),
    ) -> None:
        """Reflect with ``lm`` (see ``WritingPolicy``) and act like ``actor``, with the same model.

        ``caches`` are the prefix caches of the reflecting and of the acting adapter.
        """
        super().__init__(
            lm.model,
            encoder,
            lm.tokenizer,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            prefix_cache=caches[0],
        )
        self._caches = [cache for cache in caches if cache is not None]
        self._actor = actor

    def greedy(self) -> ReflectingPolicy:
        """Return a policy with the same weights and caches that writes and does what is most probable."""
        other = copy(self)
        other._greedy, other._actor = True, self._actor.greedy()  # noqa: SLF001 - same class
        return other

    def forget(self) -> None:
        """Drop all cached states of both players: the weights have changed."""
        super().forget()
        self._actor.forget()

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Reflect, with tokens sampled by ``draws`` (or the most probable ones), and act accordingly.

        Raises:
            InvalidInput: a view shows the words of another reflector.
        """
        if any("reflector" in view.said for view in views):
            raise InvalidInput(
                "a model with an adapter named 'reflector' writes the reflections itself, but another reflector "
                "was given too; give one of the two."
            )
        with _computing(self._model, REFLECTING):
            return super().act(views, draws)

    def divide(self, views: Sequence[MenuView], decisions: Sequence[Decision], *, max_tokens: int) -> list[Part]:
        """Divide a minibatch into passes of at most ``max_tokens`` tokens, padding included, for each player."""
        said, shown, done = self._apart(views, decisions)
        pairs = zip(self.rows(views, said), self._actor.rows(shown, done), strict=True)
        longer = [max(rows, key=len) for rows in pairs]
        return parts(longer, views, decisions, max_tokens=max_tokens, trees=False)

    def score(self, part: Part, model: Any = None) -> Scores:
        """Score the texts and actions of both players with gradient, each with its adapter; see ``LMPolicy``."""
        said, shown, done = self._apart(part.views, part.decisions)
        reflecting, acting = tuple(self.rows(part.views, said)), tuple(self._actor.rows(shown, done))
        with _computing(self._model, REFLECTING):
            words = super().score(replace(part, rows=reflecting, decisions=said), model)
        with _computing(self._model, ACTING):
            acts = self._actor.score(replace(part, rows=acting, views=shown, decisions=done), model)
        return replace(acts, values=words.values, thought_logprobs=words.thought_logprobs + acts.thought_logprobs)

    def _apart(
        self, views: Sequence[MenuView], decisions: Sequence[Decision]
    ) -> tuple[tuple[Decision, ...], tuple[MenuView, ...], tuple[Decision, ...]]:
        """Split decisions: those of the reflector, and the actor's views and decisions after the reflection."""
        texts = [self._divided(text_of(decision)) for decision in decisions]
        said = (having_written(first, each) for (first, _), each in zip(texts, decisions, strict=True))
        shown = (_reading(view, first) for (first, _), view in zip(texts, views, strict=True))
        done = (having_written(second, each) for (_, second), each in zip(texts, decisions, strict=True))
        return tuple(said), tuple(shown), tuple(done)

    def _divided(self, text: Written) -> tuple[Written, Written]:
        """Split a text into the reflection, up to its end token or maximum length, and the actor's thought."""
        ids, limit = text.ids, self._writer.max_new_tokens
        length = ids.index(self._writer.end) + 1 if self._writer.end in ids[:limit] else min(limit, len(ids))
        first, second = (
            Written("", ids[part], text.logprobs[part], len(ids[part])) for part in (slice(length), slice(length, None))
        )
        return replace(first, text=self._tokenizer.decode(self._read(first), skip_special_tokens=True)), second

    def _prompts(self, views: Sequence[MenuView]) -> list[Tokens]:
        prompts = [before_reflection(view.prompt) for view in views]
        return self._encoder.all_tokens(prompts, self._writer.max_new_tokens)

    def _cue(self) -> Tokens:
        return ()

    @torch.no_grad()
    def _decide_after(
        self,
        views: Sequence[MenuView],
        rows: Sequence[Tokens],  # noqa: ARG002 - the actor has another prompt
        texts: Sequence[Written],
        draws: Sequence[float],
    ) -> list[Decision]:
        shown = [_reading(view, text) for view, text in zip(views, texts, strict=True)]
        with _computing(self._model, ACTING):
            decisions = self._actor.act(shown, draws)
        return [
            having_written(_joined(text, decision.choice.written), decision)
            for decision, text in zip(decisions, texts, strict=True)
        ]


def _joined(reflection: Written, thought: Written | None) -> Written:
    if thought is None:
        return reflection
    ids, logprobs = (*reflection.ids, *thought.ids), (*reflection.logprobs, *thought.logprobs)
    return Written(f"{reflection.text}\n{thought.text}", ids, logprobs, len(ids))


def _reading(view: MenuView, text: Written) -> MenuView:
    return replace(view, prompt=with_reflection(view.prompt, text.text))
