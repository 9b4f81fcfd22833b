"""Policies that write before they act (RL4VLM, section 4): a thought and then a label, or the action itself.

The text is sampled token by token, and scored by one forward pass over prompt and text, at the same temperature. Values
are estimated before anything is written, so a baseline does not depend on the text or the action.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, Protocol

import torch
from torch import Tensor

from reflectrl.core import NO_MENU, Choice, Decision, Written
from reflectrl.lm.decode import Sampler
from reflectrl.lm.encode import PromptBatch, PromptEncoder, over_menus
from reflectrl.lm.head import in_eval_mode
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.policy import LMPolicy, Part, Scores
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.sequences import Inputs, Tokens, padded, read_tree, split
from reflectrl.lm.writer import Writer
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.chats import answer_text, index_of, read_answer
from reflectrl.prompts.format import AFTER_THOUGHT, THOUGHTS, ActionMode
from reflectrl.prompts.views import MenuView

SCORED_TOKENS = 4096
"""Maximum number of tokens of a forward pass over texts that a server has written."""


class TextServer(Protocol):
    """Protocol of a server that writes in place of a policy's model, with the same weights."""

    def write(
        self, rows: Sequence[Tokens], draws: Sequence[float], temperature: float
    ) -> list[tuple[list[int], list[float]]]:
        """Return after each row the ids of a text, at most as many as the policy's, without the token that ends it.

        With them come the log-probabilities, in nats and without the temperature, of these tokens and the one that
        ended the text. A text depends on the row and its draw alone.
        """
        ...


class WritingPolicy(LMPolicy):
    """Base class of the policies that write a text before the action, or the action itself as text."""

    thinks = True
    """Whether there is a thought in what it writes."""

    def __init__(
        self,
        model: Any,
        encoder: PromptEncoder,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        temperature: float,
        greedy: bool = False,
        prefix_cache: PrefixCache | None = None,
        server: TextServer | None = None,
    ) -> None:
        """Act with ``model``, whose texts have at most ``max_new_tokens`` tokens, sampled at ``temperature``.

        ``server`` writes them in its place, with the same weights. They keep the log-probabilities that ``model`` gives
        them in a pass over the finished texts, so the updates need no weights for how differently a server rounds.
        """
        super().__init__(model, encoder, greedy=greedy, prefix_cache=prefix_cache)
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._writer = Writer(model, tokenizer, max_new_tokens=max_new_tokens, prefix_cache=prefix_cache)
        self._after = self._cue()
        self._server = server
        self.gaps: list[float] = []
        """Absolute differences of a server's log-probabilities and the model's, one for each token since ``forget``."""

    def forget(self) -> None:
        """Drop all cached states: the weights have changed."""
        super().forget()
        self._writer.forget()
        self.gaps.clear()

    @torch.no_grad()
    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Write a text, with tokens sampled by ``draws`` (or the most probable ones), and act accordingly."""
        prompts = self._prompts(views)
        with in_eval_mode(self._model):
            values = self._values(prompts)
            written = self._texts(prompts, draws)
            rows = [self._row(prompt, text) for prompt, text in zip(prompts, written, strict=True)]
            decisions = self._decide_after(views, rows, written, [_second(draw) for draw in draws])
        return [replace(decision, value=value) for decision, value in zip(decisions, values, strict=True)]

    def rows(self, views: Sequence[MenuView], decisions: Sequence[Decision]) -> list[Tokens]:
        """Return the token ids of each prompt and of the text after it."""
        prompts = self._prompts(views)
        return [self._row(prompt, text_of(each)) for prompt, each in zip(prompts, decisions, strict=True)]

    def score(self, part: Part, model: Any = None) -> Scores:
        """Score decisions with gradient; ``model``, if given, is the policy's own model wrapped for several processes.

        Raises:
            ValueError: a decision of a policy that writes nothing.
        """
        texts = [text_of(decision) for decision in part.decisions]
        inputs = read_tree(part.rows, self._base) if part.tree else padded(part.rows, self._base.device)
        batch = self._encoder.with_menus([view.prompt for view in part.views], inputs)
        logits, values, words = self._read_texts(
            self._model if model is None else model, inputs, batch.choice_ids, texts
        )
        vocabulary = (words.float() / self._temperature).log_softmax(-1)
        return self._scores(part, batch, logits, values, _Tokens(texts, _chosen(vocabulary, texts), vocabulary))

    def to_imitate(self, prompt: Prompt, thought: str, action: str) -> tuple[Tokens, Tokens, int] | None:
        """Return the tokens of a prompt, those of a text with a given thought, and how many of these are the thought.

        ``None`` for a text that is longer than any at play: texts to imitate are never truncated.
        """
        text, tokens = self._text_with(thought, action)
        if len(text) > self._writer.max_new_tokens:
            return None
        return self._encoder.tokens(prompt, self._writer.max_new_tokens + len(self._after)), text, tokens

    def was_truncated(self, decision: Decision) -> bool:
        """Return whether a text was cut off at the maximum length, before the token that ends it."""
        return text_of(decision).ids[-1] != self._writer.end

    def _prompts(self, views: Sequence[MenuView]) -> list[Tokens]:
        return self._encoder.rows([view.prompt for view in views], self._writer.max_new_tokens + len(self._after))

    def _row(self, prompt: Tokens, text: Written) -> Tokens:
        """Return prompt, text and cue; the token that ended the text is predicted, but never read."""
        return (*prompt, *self._read(text), *self._after)

    def _read(self, text: Written) -> Tokens:
        return text.ids[:-1] if text.ids[-1] == self._writer.end else text.ids

    def _places(self, texts: Sequence[Written], inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return (M,) positions whose logits predict the tokens of texts, and (N,) indices of each text's first."""
        places: list[int] = []
        for text, path in zip(texts, inputs.paths(), strict=True):
            first = len(path) - 1 - len(self._after) - len(self._read(text))  # the last token of the prompt
            places += path[first : first + len(text.ids)]
        firsts = [0, *accumulate(len(text.ids) for text in texts[:-1])]
        device = inputs.last.device
        return torch.tensor(places, device=device), torch.tensor(firsts, device=device)

    def _texts(self, prompts: Sequence[Tokens], draws: Sequence[float]) -> list[Written]:
        """Write a text after each prompt, here or on the server."""
        temperature = 0.0 if self._greedy else self._temperature
        if self._server is not None:
            said = self._server.write(prompts, draws, temperature)
            return self._scored(prompts, [self._whole(ids) for ids, _ in said], [theirs for _, theirs in said])
        sampler = Sampler(draws, temperature)
        texts = [self._whole(ids) for ids in self._writer.write(prompts, sampler)]
        return [replace(text, logprobs=sampler.logprobs(n, len(text.ids))) for n, text in enumerate(texts)]

    def _whole(self, ids: Sequence[int]) -> Written:
        """Return a text with the token that ended it, unless it was truncated, and without log-probabilities."""
        whole = (*ids, self._writer.end) if len(ids) < self._writer.max_new_tokens else (*ids,)
        return Written(self._tokenizer.decode(ids, skip_special_tokens=True), whole, (), len(whole))

    def _scored(
        self, prompts: Sequence[Tokens], texts: Sequence[Written], theirs: Sequence[Sequence[float]]
    ) -> list[Written]:
        """Return a server's texts with the model's log-probabilities, and note how far ``theirs`` are from these."""
        rows = [self._row(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        scored = [*texts]
        for indices in split(rows, tokens=SCORED_TOKENS, trees=False):
            inputs, part = padded([rows[n] for n in indices], self._base.device), [texts[n] for n in indices]
            *_, words = self._read_texts(self._model, inputs, inputs.input_ids.new_zeros(1), part)
            at = (1.0, self._temperature)
            plain, ours = (iter(_chosen((words.float() / each).log_softmax(-1), part).tolist()) for each in at)
            for index, text in zip(indices, part, strict=True):
                told = zip(theirs[index], list(islice(plain, len(text.ids))), strict=True)
                self.gaps += [abs(one - other) for one, other in told]
                logprobs = tuple(islice(ours, len(text.ids)))
                scored[index] = replace(text, logprobs=() if self._greedy else logprobs)
        return scored

    def _read_texts(self, model: Any, inputs: Inputs, choice_ids: Tensor, texts: Sequence[Written]) -> Any:
        """Return (N, A) logits of labels, (N,) values, and (M, V) logits of the tokens of texts in ``inputs``."""
        places, firsts = self._places(texts, inputs)
        return model(
            input_ids=inputs.input_ids,
            choice_ids=choice_ids,
            last=inputs.last,
            written=places,
            firsts=firsts,
            **inputs.extra,
        )

    def _values(self, prompts: Sequence[Tokens]) -> list[float]:
        """Return the (N,) values of the states that ``prompts`` show; the prefixes of these are then cached."""
        values = [0.0] * len(prompts)
        if hasattr(self._base, "value_head"):
            for indices, inputs in self._passes(prompts):
                label = inputs.input_ids.new_zeros(1)  # any id but the prompt's own, maybe a picture's
                _, found = self._model(input_ids=inputs.input_ids, choice_ids=label, last=inputs.last, **inputs.extra)
                for index, value in zip(indices, found.tolist(), strict=False):
                    values[index] = value
        return values

    @abstractmethod
    def _cue(self) -> Tokens:
        """Return the tokens between a text and the label of the action; none if the text names the action."""

    @abstractmethod
    def _text_with(self, thought: str, action: str) -> tuple[Tokens, int]:
        """Return the tokens of a text with a given thought, and how many of them are the thought."""

    @abstractmethod
    def _decide_after(
        self, views: Sequence[MenuView], rows: Sequence[Tokens], texts: Sequence[Written], draws: Sequence[float]
    ) -> list[Decision]:
        """Return the decisions after ``texts``; ``rows`` end with the texts and the cue."""

    @abstractmethod
    def _scores(self, part: Part, batch: PromptBatch, logits: Tensor, values: Tensor, tokens: _Tokens) -> Scores:
        """Return the scores of a part from (N, A) logits of labels, (N,) values and the tokens of the texts."""


class _Tokens:
    """Tokens of N texts one after the other, with their probabilities under the present policy."""

    def __init__(self, texts: Sequence[Written], logprobs: Tensor, vocabulary: Tensor) -> None:
        device = logprobs.device
        self.count = len(texts)
        self.logprobs = logprobs
        """(M,) natural log of the probability of each token."""
        self.vocabulary = vocabulary
        """(M, V) natural log of the probability of each token of the vocabulary at each position."""
        self.number = torch.tensor([n for n, text in enumerate(texts) for _ in text.ids], device=device)
        self.in_thought = torch.tensor(
            [at < text.action_start for text in texts for at in range(len(text.ids))], device=device
        )
        """(M,) true for tokens before the action."""

    def total(self, values: Tensor) -> Tensor:
        """Return the (N,) sums of (M,) values over the tokens of each text."""
        return values.new_zeros(self.count).index_add(0, self.number, values)


class ThinkingPolicy(WritingPolicy):
    """Writes a thought, then answers with one label of the menu: legal by construction."""

    def _cue(self) -> Tokens:
        return self._encoder.continuation(AFTER_THOUGHT)

    def _text_with(self, thought: str, action: str) -> tuple[Tokens, int]:  # noqa: ARG002 - the label is not a part of it
        ids = (*self._encoder.answer(PromptFormat.completion(thought)), self._writer.end)
        return ids, len(ids)

    def _decide_after(
        self, views: Sequence[MenuView], rows: Sequence[Tokens], texts: Sequence[Written], draws: Sequence[float]
    ) -> list[Decision]:
        decisions = self._choose(views, rows, draws)
        return [having_written(text, decision) for decision, text in zip(decisions, texts, strict=True)]

    def _scores(self, part: Part, batch: PromptBatch, logits: Tensor, values: Tensor, tokens: _Tokens) -> Scores:
        distribution = over_menus(logits, batch)
        chosen = torch.tensor([decision.choice.index for decision in part.decisions], device=logits.device)
        return Scores(
            distribution.log_prob(chosen),
            distribution.entropy(),
            values,
            distribution.logits,
            tokens.total(tokens.logprobs),
        )


class TextPolicy(WritingPolicy):
    """Writes its action, with a thought in JSON or before it; where it names none of the menu, a random one is played.

    In an environment without menus, whatever it writes is played. The entropy is that of the action: in JSON of all its
    tokens together, in plain text of one on average, so that a bonus for it does not reward length.
    """

    def __init__(self, mode: ActionMode, *given: Any, **settings: Any) -> None:
        """Write texts of this ``mode``; the rest as in the base class."""
        super().__init__(*given, **settings)
        self._mode = mode
        self.thinks = mode in THOUGHTS

    def _cue(self) -> Tokens:
        return ()

    def _text_with(self, thought: str, action: str) -> tuple[Tokens, int]:
        ids = (
            *self._encoder.answer(PromptFormat.completion(answer_text(self._mode, thought, action))),
            self._writer.end,
        )
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return ids, token_at(self._tokenizer, ids, read_answer(text, self._mode).action_start)

    def _decide_after(
        self,
        views: Sequence[MenuView],
        rows: Sequence[Tokens],  # noqa: ARG002 - nothing is read after the text
        texts: Sequence[Written],
        draws: Sequence[float],
    ) -> list[Decision]:
        return [self._decided(view, text, draw) for view, text, draw in zip(views, texts, draws, strict=True)]

    def _decided(self, view: MenuView, text: Written, draw: float) -> Decision:
        """Return the action that a text names, or a random one; its logprob is that of the text from the action on."""
        answer, actions = read_answer(text.text, self._mode), view.menu.actions
        start = token_at(self._tokenizer, text.ids, answer.action_start)
        named = index_of(answer.action, view.menu, self._mode) if actions else NO_MENU
        index = int(draw * len(actions)) if named is None else named
        written = replace(text, action_start=start, legal=named is not None)
        logprob = sum(text.logprobs[start:])
        action = answer.action if index == NO_MENU else actions[index]
        tokens = 1 if self._mode == "json" else max(len(text.ids) - start, 1)
        return Decision(action, logprob, -logprob / tokens, Choice(index, (), written))

    def _scores(self, part: Part, batch: PromptBatch, logits: Tensor, values: Tensor, tokens: _Tokens) -> Scores:  # noqa: ARG002
        entropies = tokens.total(-(tokens.vocabulary.exp() * tokens.vocabulary).sum(-1) * ~tokens.in_thought)
        if self._mode != "json":
            entropies = entropies / tokens.total((~tokens.in_thought).float()).clamp(min=1)
        return Scores(
            tokens.total(tokens.logprobs * ~tokens.in_thought),
            entropies,
            values,
            values.new_zeros(len(values), 0),
            tokens.total(tokens.logprobs * tokens.in_thought),
        )


def writing_policy(mode: ActionMode, lm: LanguageModel, encoder: PromptEncoder, **settings: Any) -> WritingPolicy:
    """Return the policy of an action mode that writes text; ``settings`` are those of ``WritingPolicy``."""
    kind = ThinkingPolicy if mode == "thought_choice" else partial(TextPolicy, mode)
    return kind(lm.model, encoder, lm.tokenizer, **settings)


def token_at(tokenizer: Any, ids: Tokens, character: int) -> int:
    """Return the index in ``ids`` of the token that holds a character of their text; ``len(ids)`` if none does."""
    decoded = (tokenizer.decode(ids[: at + 1], skip_special_tokens=True) for at in range(len(ids)))
    lengths = accumulate(map(len, decoded), max)  # a part of a character may be decoded to more than the whole one
    return next((at for at, length in enumerate(lengths) if length > character), len(ids))


def text_of(decision: Decision) -> Written:
    """Return what was written before an action."""
    if decision.choice.written is None:
        raise ValueError("a decision of a policy that writes nothing was given to one that does")
    return decision.choice.written


def _chosen(vocabulary: Tensor, texts: Sequence[Written]) -> Tensor:
    """Return the (M,) log-probabilities of the tokens of texts from those of the whole vocabulary, (M, V)."""
    ids = torch.tensor([token for text in texts for token in text.ids], device=vocabulary.device)
    return vocabulary.gather(1, ids[:, None])[:, 0]


def having_written(text: Written, decision: Decision) -> Decision:
    """Return a decision with the text that was written before it."""
    return replace(decision, choice=replace(decision.choice, written=text))


def _second(draw: float) -> float:
    """Return a draw for the action that does not depend on the draws of the tokens before it."""
    return random.Random(repr(draw)).random()
