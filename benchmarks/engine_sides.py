"""Both sides of the engine's benchmark: recorded episodes, models that read them, players and updates."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from engine_prompts import ENVS, Reader, Scene, Step, ends, gpt2_small, nano, set_up, smollm2
from plain import REINFORCE, PlainReflector, Update, generate, update
from timing import Call, Times, race, times_as_fast
from torch import Tensor

from reflectrl.lm.decode import Sampler, write
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import adopt_kernels, round_frozen
from reflectrl.lm.policy import LMPolicy, Scores
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.section import ModelSection
from reflectrl.lm.writer import LMReflector, SamplerProcessor
from reflectrl.pipeline.compute import Precision
from reflectrl.prompts.players import Player, Policy
from reflectrl.training.batch import StepSample
from reflectrl.training.objective import Objective


@dataclass
class Effort:
    """How much is measured."""

    quick: bool = False
    """True for small models instead of large ones, and few repeats."""
    envs: tuple[str, ...] = ENVS
    """Environments whose prompts are read."""
    server: str | None = None
    """Address of a vLLM server that is measured too."""


effort = Effort()
BUDGET = 2048
"""Maximum number of tokens in a forward pass of an update."""
LIMIT = 64
"""Maximum number of tokens in a reflection; with random weights, one ends after about 33."""
SHAPES = ("nano", "GPT-2 small", "SmolLM2")
CASE = ("environment", "model")
STEPS = {"dangerous_taxi": 5, "auto_explore": 5, "alfworld": 5}
"""Number of steps of the episodes that the large models read, by environment."""


@dataclass(frozen=True)
class Work:
    """A call, and the number of steps that it computes."""

    call: Call
    steps: int


@dataclass(frozen=True)
class Case:
    """Recorded episodes of an environment, and a model with random weights that reads them."""

    env: str
    shape: str
    scene: Scene
    episodes: list[list[Step]]
    reader: Reader

    @property
    def heavy(self) -> bool:
        """True if a call takes seconds, so that there is no warm-up and there are few repeats."""
        return self.shape != SHAPES[0] and not effort.quick

    @property
    def rounds(self) -> int:
        """Number of repeats of a call."""
        return 1 if self.heavy else 2 if effort.quick else 5

    @property
    def samples(self) -> list[StepSample]:
        """Samples of all episodes."""
        return [step.sample for episode in self.episodes for step in episode]

    def race(self, contenders: dict[str, Call], heavy_rounds: int = 3) -> Times:
        """Time the contenders in turn: seven rounds after a warm-up, or ``heavy_rounds`` if a call is heavy."""
        return race(contenders, heavy_rounds if self.heavy else 2 if effort.quick else 7, warm_up=not self.heavy)

    def line(self, times: Times, *words: str) -> list[str]:
        """Return a row of a table: the case, the median seconds of both sides, and their ratio."""
        seconds = (f"{median(times[name]):.3g}" for name in ("plain", "ours"))
        return [self.env, self.shape, *words, *seconds, f"**{times_as_fast(times, 'ours', 'plain'):.1f}**"]


@contextmanager
def case(shape: str, env: str, menu: str, number: int) -> Iterator[Case]:
    """Set up ``number`` episodes of an environment with the given place of the menu, and a model that reads them."""
    with set_up(recipe(shape, env), [f"prompt.menu={menu}"]) as scene:
        steps = None if shape == SHAPES[0] else STEPS[env]
        episodes = scene.steps(scene.play(number, steps=steps))
        yield Case(env, shape, scene, episodes, reader(shape, scene, episodes))


def computing(who: Reader, compute: Precision, *, frozen: bool = False) -> Reader:
    """Return a copy of the reader as the engine loads it: fused activations, a precision, and optionally frozen."""
    own = copy.deepcopy(who.model).requires_grad_(not frozen)
    section = ModelSection(compute=compute)
    adopt_kernels(own, section)
    round_frozen(own, section)
    return replace(who, model=own)


def recipe(shape: str, env: str) -> str:
    """Return the name of the recipe whose prompts a model of ``shape`` reads."""
    return f"{env}/{'nano' if shape == SHAPES[0] else 'paper'}"


def reader(shape: str, scene: Scene, episodes: Sequence[Sequence[Step]], max_length: int | None = None) -> Reader:
    """Return a model of ``shape`` with a choice head."""
    length = max_length or 1024
    if shape == SHAPES[0]:
        made = nano(scene, episodes, max_length=max_length)
    elif shape == SHAPES[1]:
        small = {"n_layer": 2, "n_embd": 64, "n_head": 2} if effort.quick else {}
        made = gpt2_small(scene, episodes, n_positions=length, **small)
    else:
        small = {"num_hidden_layers": 2, "hidden_size": 72, "intermediate_size": 192} if effort.quick else {}
        made = smollm2(scene, episodes, max_position_embeddings=length, **small)
    add_choice_head(made.model)
    return made


def policy(who: Reader) -> LMPolicy:
    """Return the engine's policy."""
    kept = PrefixCache(who.model.device, who.model.dtype)
    return LMPolicy(who.model, who.encoder, prefix_cache=kept)


def reflector(who: Reader, temperature: float, cache_size: int = 0) -> LMReflector:
    """Return the engine's reflector; without a cache of replies it writes every reflection."""
    return LMReflector(
        who.model,
        who.tokenizer,
        max_length=who.encoder.max_length,
        max_new_tokens=LIMIT,
        temperature=temperature,
        cache_size=cache_size,
        prefix_cache=PrefixCache(who.model.device, who.model.dtype),
        ends=ends(who.model.config.vocab_size, who.tokenizer.eos_token_id),
    )


def plain_reflector(who: Reader, temperature: float, batch_size: int = 1) -> PlainReflector:
    """Return the plain side's reflector, which writes the same words."""
    stops = ends(who.model.config.vocab_size, who.tokenizer.eos_token_id)
    return PlainReflector(
        who.model,
        who.tokenizer,
        who.encoder,
        ends=stops,
        max_new_tokens=LIMIT,
        temperature=temperature,
        batch_size=batch_size,
    )


def together(episodes: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """Return the first steps of all episodes, then the second ones, and so on: the batches of a rollout."""
    longest = max(map(len, episodes))
    return [[episode[at] for episode in episodes if at < len(episode)] for at in range(longest)]


def acts(player: Policy, calls: Sequence[Sequence[Step]]) -> None:
    """Act at each step, and clear the policy's cached prefixes afterwards."""
    for steps in calls:
        player.act([step.policy for step in steps], [0.5] * len(steps))
    if isinstance(player, LMPolicy):
        player.forget()


class Repeater(Sampler):
    """Sampler that chooses a token, and then takes the one of the given text."""

    def __init__(self, words: Sequence[Sequence[int]], end: int) -> None:
        super().__init__([0.5] * len(words), 1.0)
        self._words = [[*each, end] for each in words]

    def choose(self, logits: Tensor, places: Sequence[tuple[int, int]]) -> list[int]:
        """Return the given token of each position."""
        super().choose(logits, places)
        return [self._words[sequence][min(at, len(self._words[sequence]) - 1)] for sequence, at in places]


def scripted(who: Reader, steps: Sequence[Step]) -> Repeater:
    """Return a sampler that chooses the expert's words, since those of random weights would never recur."""
    words = [who.tokenizer(step.policy.said["reflector"])["input_ids"][: LIMIT - 1] for step in steps]
    return Repeater(words, who.tokenizer.eos_token_id)


def writes(who: Reader, calls: Sequence[Sequence[Step]]) -> None:
    """Write the expert's reflections with the engine, starting with an empty cache."""
    kept = PrefixCache(who.model.device, who.model.dtype)
    for steps in calls:
        rows = [who.encoder.tokens(step.reflector.prompt, reserve=LIMIT) for step in steps]
        write(who.model, kept, rows, scripted(who, steps), ends={who.tokenizer.eos_token_id}, limit=LIMIT)


@torch.no_grad()
def generates(who: Reader, calls: Sequence[Sequence[Step]], batch_size: int) -> None:
    """Write the expert's reflections with ``generate``, ``batch_size`` prompts at a time."""
    for steps in calls:
        for start in range(0, len(steps), batch_size):
            part = steps[start : start + batch_size]
            rows = [who.encoder.tokens(step.reflector.prompt, reserve=LIMIT) for step in part]
            generate(who.model, rows, LIMIT, [SamplerProcessor(scripted(who, part))], [who.tokenizer.eos_token_id])


def asks(player: Player, calls: Sequence[Sequence[Step]]) -> None:
    """Reflect at each step."""
    rng = random.Random(0)
    for steps in calls:
        player.say([step.reflector for step in steps], [rng.random() for _ in steps])


def tree_update(
    who: Reader,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[StepSample],
    objective: Objective = REINFORCE,
) -> float:
    """Make the update of ``ReflectRLTrainer``: forward passes over prefix trees."""
    player = policy(who)
    passes = player.divide(
        [sample.view for sample in samples], [sample.decision for sample in samples], max_tokens=BUDGET
    )
    parts = [[samples[index] for index in each.indices] for each in passes]
    upcoming = iter(passes)

    def forward(part: Sequence[StepSample]) -> Scores:  # noqa: ARG001 - the passes are in the same order
        return player.score(next(upcoming))

    return update(who.model, optimizer, parts, forward, objective)


def sgd(who: Reader) -> torch.optim.Optimizer:
    """Return a stateless optimizer that clears gradients, with steps so small that repeats do the same work."""
    optimizer = torch.optim.SGD(who.model.parameters(), lr=1e-6)
    optimizer.register_step_post_hook(lambda stepped, *_: stepped.zero_grad())
    return optimizer


def iteration(
    player: Policy,
    speaker: Player,
    learn: Update,
    episodes: Sequence[Sequence[Step]],
    part: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Reflect, act and update on recorded prompts, with all episodes side by side; ``part`` wraps each part."""
    if isinstance(player, LMPolicy):
        player.forget()
    for steps in together(episodes):
        with part("reflect"):
            speaker.say([step.reflector for step in steps], [0.5] * len(steps))
        with part("act"):
            player.act([step.policy for step in steps], [0.5] * len(steps))
    with part("update"):
        learn([step.sample for episode in episodes for step in episode])


class InTurn:
    """A callable that gives a function another argument at each call, so that no repeat sees an earlier one's data."""

    def __init__(self, function: Callable[[Any], object], arguments: Sequence[Any]) -> None:
        self._function = function
        self._arguments = iter(arguments)

    def __call__(self) -> None:
        """Call the function with the next argument."""
        self._function(next(self._arguments))
