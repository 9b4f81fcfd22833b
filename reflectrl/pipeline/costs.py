"""Cost of the models in an iteration: measured on a sample with models of few layers, then extrapolated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from reflectrl.config.model import ModelSection
from reflectrl.config.reflector import ReflectorPlayerSection
from reflectrl.config.rlft import RLFTSection
from reflectrl.core import Choice, Decision
from reflectrl.engine.decode import Sampler, write
from reflectrl.engine.drafts import Drafts, pass_tokens
from reflectrl.engine.frozen_layers import frozen_layers
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.reuse import prefix_cache_for
from reflectrl.engine.seeding import seeded
from reflectrl.engine.sequences import Inputs, Tokens, make_tree
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import LanguageModel
from reflectrl.models.policy import LMPolicy, Part
from reflectrl.models.precision import shape_of
from reflectrl.models.reflector import LMReflector
from reflectrl.models.shallow import shallow_model
from reflectrl.models.tokenizer import label_ids
from reflectrl.prompts.views import MenuView, View

DEPTHS = (1, 4)
"""Numbers of layers of the two models that are measured; a model with hardly more layers is measured whole."""
SAMPLE_FLOPS = 5e10
"""Floating-point operations of the sample's forward pass in the deeper model."""
TRIED_TOKENS = 64
"""Length of the sequences on which prefix reuse is tried."""
WRITTEN = 8
"""Number of tokens that are written to measure what one costs."""


@dataclass(frozen=True)
class PartCost:
    """Cost of one part of an iteration."""

    tokens: int
    """Number of tokens that are computed; prefixes that prompts share count once."""
    passes: int
    """Number of forward passes."""
    seconds: float


def clock() -> float:
    """Return seconds: processor time with one thread, which other programs hardly change, else wall-clock time."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time() if alone else time.perf_counter()


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of ``work``, the lesser of two measurements."""
    taken = []
    for _ in range(2):
        began = clock()
        work()
        taken.append(clock() - began)
    return min(taken)


class ShallowModels:
    """Models of one shape with random weights and few layers, to extrapolate measurements to all layers."""

    def __init__(self, section: ModelSection, corpus: Sequence[str], labels: Sequence[str], folder: Path) -> None:
        self.section = section
        shape, adapted = shape_of(section), section.lora and section.lora.layer_numbers
        self.frozen = adapted[0] if adapted else 0
        """Number of layers below the first one with an adapter."""
        self._layers = shape.layers
        self._depths = DEPTHS if shape.layers > DEPTHS[-1] + 1 else (shape.layers,)
        sections = [(depth, section) for depth in self._depths]
        if adapted and len(self._depths) > 1:
            sections = [(depth, _adapted(section, 0, depth)) for depth in self._depths]
            # one model more shows what a layer below the adapters costs
            sections += [(depth, _adapted(section, depth - 1, depth)) for depth in self._depths[1:] if self.frozen]
        self.models = [
            shallow_model(each, depth, folder / str(number), corpus=corpus, labels=labels)
            for number, (depth, each) in enumerate(sections)
        ]
        self.tokenizer = self.models[0].tokenizer
        self.encoder = PromptEncoder(self.tokenizer, label_ids(self.tokenizer, labels), section.max_length)
        for lm in self.models:
            add_choice_head(lm.base)
        # a layer has about 12 * width^2 weights, each of which takes two operations a token
        self.sample_tokens = SAMPLE_FLOPS / (24 * shape.width**2 * self._depths[-1])

    def seconds(self, measure: Callable[[LanguageModel], float]) -> float:
        """Return the seconds of a model with all layers, extrapolated from those of the models with few."""
        found = [measure(lm) for lm in self.models]
        if len(found) == 1:
            return found[0]
        trained, *frozen = (max(0.0, each - found[0]) / (self._depths[-1] - self._depths[0]) for each in found[1:])
        return found[0] + trained * (self._layers - self.frozen - self._depths[0]) + sum(frozen) * self.frozen

    def cache(self, lm: LanguageModel) -> PrefixCache | None:
        """Return the prefix cache of a model, if the section uses one."""
        return prefix_cache_for(lm.base, TRIED_TOKENS, "model") if self.section.prefix_reuse else None

    def policy(self, lm: LanguageModel, *, keeps: bool = False) -> LMPolicy:
        """Return a policy that acts and scores with a model; ``keeps`` caches what its frozen layers compute."""
        frozen = frozen_layers(lm.base) if keeps else None
        return LMPolicy(lm.model, self.encoder, prefix_cache=self.cache(lm), frozen_layers=frozen)

    def read(self, steps: Sequence[Sequence[Tokens]]) -> tuple[int, int]:
        """Return the numbers of tokens and passes for reading the prompts of one step after the other."""
        cache, tokens, passes = PrefixCache(torch.device("cpu"), torch.float32), 0, 0
        for step in steps:
            distinct = list(dict.fromkeys(step))
            tokens += sum(map(len, distinct))
            passes += sum(1 for _ in cache.read(distinct)) if self.section.prefix_reuse else bool(distinct)
        return cache.computed if self.section.prefix_reuse else tokens, passes

    def sample(self, steps: Sequence[Sequence[Tokens]]) -> int:
        """Return how many of the prompts of each step to measure."""
        most = max(map(len, steps), default=0)
        few = (
            number for number in range(1, most) if self.read([s[: number + 1] for s in steps])[0] > self.sample_tokens
        )
        return next(few, most)


def reflecting_cost(
    models: ShallowModels,
    settings: ReflectorPlayerSection,
    views: Sequence[Sequence[View]],
    said: Sequence[Sequence[str]],
) -> dict[str, PartCost]:
    """Return the cost of writing reflections, one a view, step by step."""
    limit = settings.max_new_tokens
    rows = [[models.encoder.tokens(each.prompt, limit) for each in step] for step in views]
    tokens, passes = models.read(rows)
    few = [step[: models.sample(rows)] for step in views]

    def read(lm: LanguageModel) -> float:
        speaker = _reflector(models, lm, settings, 1)

        def speak() -> None:
            speaker.clear()
            for step in few:
                if step:
                    speaker.write([each.prompt for each in step], [0.5] * len(step))

        return seconds(speak)

    share = tokens / max(1, models.read([[models.encoder.tokens(e.prompt, limit) for e in step] for step in few])[0])
    costs = {"reflect: read": PartCost(tokens, passes, share * models.seconds(read))}
    words = [[models.tokenizer(text)["input_ids"][: limit - 1] for text in step] for step in said]
    sizes = _written(models, rows, words)
    if not sizes:
        return costs
    distinct = list(dict.fromkeys(row for step in rows for row in step))[: max(sizes)]
    one, most = (models.seconds(partial(_token, models, some)) for some in (distinct[:1], distinct))
    slope = max(0.0, most - one) / max(1, len(distinct) - 1)
    return {
        **costs,
        "reflect: write": PartCost(sum(sizes), len(sizes), sum(one + slope * (size - 1) for size in sizes)),
    }


class Repeater(Sampler):
    """Sampler that chooses a token, and then takes the one of the given text."""

    def __init__(self, words: Sequence[Sequence[int]], end: int) -> None:
        super().__init__([0.5] * len(words), 1.0)
        self._words = [[*each, end] for each in words]

    def choose(self, logits: Tensor, places: Sequence[tuple[int, int]]) -> list[int]:
        """Return the given token of each position; any token where a draft is longer than the text."""
        super().choose(logits, places)
        return [self._words[sequence][min(at, len(self._words[sequence]) - 1)] for sequence, at in places]


def _written(
    models: ShallowModels, rows: Sequence[Sequence[Tokens]], words: Sequence[Sequence[Sequence[int]]]
) -> list[int]:
    """Return the number of tokens of each writing pass, drafts included, while a tiny model writes the given texts."""
    end = models.tokenizer.eos_token_id
    vocabulary = 1 + max([end, *(token for step in (*rows, *words) for row in step for token in row)])
    with seeded(0):
        least = {"n_embd": 2, "n_layer": 1, "n_head": 1, "bos_token_id": None, "eos_token_id": None}
        shape = GPT2Config(vocab_size=vocabulary, n_positions=models.section.max_length, **least)
        tiny = GPT2LMHeadModel(shape).eval()
    cache = _Noting(tiny.device, tiny.dtype)
    drafts = Drafts(pass_tokens(models.models[0].base))
    for step, said in zip(rows, words, strict=True):
        if step:
            write(tiny, cache, step, Repeater(said, end), drafts=drafts, ends=(end,), limit=models.section.max_length)
    return cache.sizes


class _Noting(PrefixCache):
    """Records the number of tokens of each writing pass."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.sizes: list[int] = []

    def extend(self, tokens: Sequence[Sequence[int]]) -> Inputs:
        inputs = super().extend(tokens)
        self.sizes.append(inputs.input_ids.numel())
        return inputs


def _reflector(models: ShallowModels, lm: LanguageModel, settings: ReflectorPlayerSection, tokens: int) -> LMReflector:
    return LMReflector(
        lm.model,
        lm.tokenizer,
        max_length=models.section.max_length,
        max_new_tokens=tokens,
        temperature=settings.temperature,
        cache_size=0,
        prefix_cache=models.cache(lm),
    )


def _token(models: ShallowModels, rows: Sequence[Tokens], lm: LanguageModel) -> float:
    """Return the seconds of a pass that writes one token after each row, with zeros for the rows' cached states."""
    cache = models.cache(lm) or PrefixCache(lm.base.device, lm.base.dtype)  # generate keeps states as well
    for _ in cache.read(rows):
        pass
    sampler = Sampler([0.5] * len(rows), 1.0)
    few = partial(write, lm.base, cache, rows, sampler, ends=(), limit=WRITTEN)
    return seconds(lambda: few(drafts=Drafts(0))) / WRITTEN  # without drafts


def acting_cost(models: ShallowModels, views: Sequence[Sequence[MenuView]]) -> PartCost:
    """Return the cost of acting on views, step by step."""
    rows = [models.encoder.rows([each.prompt for each in step]) for step in views]
    tokens, passes = models.read(rows)
    number = models.sample(rows)
    few = [step[:number] for step in views]

    def act(lm: LanguageModel) -> float:
        policy = models.policy(lm)

        def play() -> None:
            policy.forget()
            for step in few:
                policy.act(step, [0.5] * len(step))

        return seconds(play)

    return PartCost(tokens, passes, tokens / models.read([step[:number] for step in rows])[0] * models.seconds(act))


def updating_cost(models: ShallowModels, section: RLFTSection, views: Sequence[Sequence[MenuView]]) -> PartCost:
    """Return the cost of all updates from views, step by step, and from as many as are replayed."""
    number = models.sample([models.encoder.rows([each.prompt for each in step]) for step in views])
    updates = section.num_iterations * section.num_minibatches
    replayed = 1 + section.replay_episodes / section.episodes

    def divided(policy: LMPolicy, steps: Sequence[Sequence[MenuView]]) -> list[Part]:
        batch = [each for step in steps for each in step]
        batch = random.Random(0).sample(batch, -(-len(batch) // section.num_minibatches))
        decisions = [Decision(each.menu.actions[0], 0.0, 0.0, Choice(0)) for each in batch]
        return policy.divide(batch, decisions, max_tokens=section.micro_batch_tokens)

    def tokens(parts: Sequence[Part]) -> int:
        if not models.section.prefix_reuse:
            return sum(len(row) for part in parts for row in set(part.rows))
        return sum(len(make_tree(part.rows).tokens) for part in parts)

    policy, few = models.policy(models.models[0]), [step[:number] for step in views]
    parts, measured = divided(policy, views), tokens(divided(policy, few))

    def learn(lm: LanguageModel, *, again: bool) -> float:
        learner = models.policy(lm, keeps=again)

        def pass_over() -> None:
            for each in divided(learner, few):
                torch.autograd.backward(learner.score(each).logprobs.sum())

        if again:
            pass_over()
        return seconds(pass_over)

    def step(lm: LanguageModel) -> float:
        trained = [weight for weight in lm.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-6)
        for weight in trained:
            weight.grad = torch.zeros_like(weight)

        def move() -> None:
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()

        return seconds(move)

    whole = replayed * tokens(parts)
    first = later = models.seconds(partial(learn, again=False))
    if models.frozen and models.section.prefix_reuse and section.num_iterations > 1:
        later = models.seconds(partial(learn, again=True))
    passes = first + (section.num_iterations - 1) * later
    took = section.num_minibatches * whole / measured * passes + updates * models.seconds(step)
    return PartCost(round(updates * whole), round(updates * replayed * len(parts)), took)


def _adapted(section: ModelSection, first: int, layers: int) -> ModelSection:
    """Return a section with adapters in all layers from ``first`` on."""
    assert section.lora is not None
    return section.model_copy(update={"lora": section.lora.model_copy(update={"layers": f"{first}-{layers - 1}"})})
