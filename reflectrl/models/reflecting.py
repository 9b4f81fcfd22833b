"""A policy and its reflector, trained together: two LoRA adapters on one base, one for the words and one for the label.

The reflection is to the policy gradient what a thought is (``models.thinking``): a text that was sampled token by token
and is scored with the same advantage as the label after it. Unlike a thought it is written by weights of its own, after
the reflector's prompt, and read in the policy's prompt, where a frozen reflector's words stand too; so both players can
be taken apart when training has ended.
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
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.sequences import Tokens
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import LanguageModel, no_progress_bars
from reflectrl.models.policy import LMPolicy, Part, Scores, parts
from reflectrl.models.thinking import ThinkingPolicy, text_of
from reflectrl.prompts.format import before_reflection, with_reflection
from reflectrl.prompts.views import MenuView

ACTING = "default"
"""Name of the adapter that answers with a label: peft's own for a single one."""
REFLECTING = "reflector"
"""Name of the adapter that reflects."""


def add_reflector(lm: LanguageModel, folder: Path) -> None:
    """Add a reflector's adapter, saved in ``folder``, to a policy's, on the base that both were trained on."""
    lm.model.load_adapter(str(folder), adapter_name=REFLECTING, is_trainable=True)
    _activate(lm.model, ACTING)


def reflects(model: Any) -> bool:
    """Return whether a model has adapters for both players."""
    return REFLECTING in getattr(model, "peft_config", {})


def take_reflector(lm: LanguageModel, folder: Path) -> None:
    """Write the reflector to ``folder``, all or nothing, as an adapter like any other, and leave the policy alone."""
    with in_one_move(folder) as fresh, no_progress_bars():
        lm.model.save_pretrained(str(fresh), selected_adapters=[REFLECTING], save_embedding_layers=False)
        for path in (fresh / REFLECTING).iterdir():
            path.replace(fresh / path.name)
        (fresh / REFLECTING).rmdir()
        lm.tokenizer.save_pretrained(fresh)
    lm.model.delete_adapter(REFLECTING)


def _activate(model: Any, adapter: str) -> None:
    """Compute with one of the adapters; both stay trainable."""
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
    """Writes a reflection with one adapter, then answers with one label of the menu with the other.

    Its views show no reflection: there is no reflector besides. Values are those that the reflecting adapter gives the
    state before it writes, so that the baseline depends on neither text nor action.
    """

    def __init__(
        self,
        lm: LanguageModel,
        encoder: PromptEncoder,
        *,
        max_new_tokens: int,
        temperature: float,
        caches: tuple[PrefixCache | None, PrefixCache | None] = (None, None),
    ) -> None:
        """Act with ``lm``, see ``WritingPolicy``; ``caches`` are those of the reflecting and of the acting adapter."""
        words, label = caches
        super().__init__(
            lm.model,
            encoder,
            lm.tokenizer,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            prefix_cache=words,
        )
        self._caches = [cache for cache in caches if cache is not None]
        self._actor = LMPolicy(lm.model, encoder, prefix_cache=label)

    @property
    def reused(self) -> float:
        """Fraction of the tokens of both players' prompts so far whose key-value states were cached."""
        given = sum(cache.given for cache in self._caches)
        return 1 - sum(cache.computed for cache in self._caches) / given if given else 0.0

    def greedy(self) -> ReflectingPolicy:
        """Return the same policy, with the same weights and caches, that says and does what is most probable."""
        other = copy(self)
        other._greedy, other._actor = True, self._actor.greedy()  # noqa: SLF001 - of its own class
        return other

    def forget(self) -> None:
        """Drop all cached states and drafts of both players: the weights have changed."""
        super().forget()
        self._actor.forget()

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Reflect, with tokens sampled by ``draws`` (or the most probable ones), and act accordingly.

        Raises:
            InvalidInput: there are words of another reflector.

        """
        if any("reflector" in view.said for view in views):
            raise InvalidInput(
                "a model with an adapter named 'reflector' writes the reflections itself, but another reflector speaks "
                "besides; give one of the two."
            )
        with _computing(self._model, REFLECTING):
            return super().act(views, draws)

    def divide(self, views: Sequence[MenuView], decisions: Sequence[Decision], *, max_tokens: int) -> list[Part]:
        """Divide a minibatch into passes of at most ``max_tokens`` tokens, padding included; each is done twice."""
        longer = [max(rows, key=len) for rows in zip(*self._rows(views, decisions), strict=True)]
        return parts(longer, views, decisions, max_tokens=max_tokens, trees=False)

    def score(self, part: Part, model: Any = None) -> Scores:
        """Score reflections and labels with gradient, each with its adapter, through ``model`` if given."""
        reflecting, acting = (tuple(rows) for rows in self._rows(part.views, part.decisions))
        with _computing(self._model, REFLECTING):
            said = super().score(replace(part, rows=reflecting), model)
        views = tuple(_reading(view, text_of(each)) for view, each in zip(part.views, part.decisions, strict=True))
        with _computing(self._model, ACTING):
            done = self._actor.score(replace(part, rows=acting, views=views), model)
        return replace(done, values=said.values, thought_logprobs=said.thought_logprobs)

    def _rows(self, views: Sequence[MenuView], decisions: Sequence[Decision]) -> tuple[list[Tokens], list[Tokens]]:
        """Return the tokens of each reflector's prompt with the reflection, and of each policy's prompt."""
        texts = [text_of(decision) for decision in decisions]
        reflecting = [self._row(prompt, text) for prompt, text in zip(self._prompts(views), texts, strict=True)]
        shown = [_reading(view, text).prompt for view, text in zip(views, texts, strict=True)]
        return reflecting, self._encoder.rows(shown)

    def _prompts(self, views: Sequence[MenuView]) -> list[Tokens]:
        prompts = [before_reflection(view.prompt) for view in views]
        return self._encoder.all_tokens(prompts, self._writer.max_new_tokens)

    def _cue(self) -> Tokens:
        return ()

    @torch.no_grad()
    def _decide_after(
        self,
        views: Sequence[MenuView],
        rows: Sequence[Tokens],  # noqa: ARG002 - the label follows another prompt
        texts: Sequence[Written],
        draws: Sequence[float],
    ) -> list[Decision]:
        shown = [_reading(view, text) for view, text in zip(views, texts, strict=True)]
        with _computing(self._model, ACTING):
            decisions = self._actor.act(shown, draws)
        return [
            replace(decision, choice=replace(decision.choice, written=text))
            for decision, text in zip(decisions, texts, strict=True)
        ]


def _reading(view: MenuView, text: Written) -> MenuView:
    """Return a view whose prompt shows a reflection."""
    return replace(view, prompt=with_reflection(view.prompt, text.text))
