"""The engine's tables in ``benchmarks/README.md``: what reuse of prefixes saves over playing and learning step by step.

    python benchmarks/engine.py                 # all of it, about an hour on two cores; rewrites the tables
    python benchmarks/engine.py act update      # some sections only
    python benchmarks/engine.py --quick         # small models and few repeats, on stdout

Both sides run in one process and in turns, on real prompts (``engine_prompts.py``) and random weights; the other side
is the plain implementation of ``plain.py``. ALFWorld needs its extra: pip install 'reflectrl[alfworld]'.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import linear_regression
from typing import Any

import torch
from arms import HERE, made_by, publish, table
from engine_prompts import (
    ENVS,
    Reader,
    Scene,
    Step,
    ends,
    gpt2_small,
    made_up_actions,
    nano,
    new_tokens,
    set_up,
    with_menu,
)
from plain import (
    REINFORCE,
    PlainPolicy,
    PlainReflector,
    ScoringPolicy,
    Update,
    bucketed_update,
    padded_update,
    plain_update,
    update,
)
from timing import Call, Times, flops, matmul, peak_memory, race, share_of_peak, times_as_fast

from reflectrl.config.schema import ModelSection
from reflectrl.models.encode import action_distribution
from reflectrl.models.head import add_choice_head
from reflectrl.models.kernels import adopt_kernels
from reflectrl.models.policy import LMPolicy
from reflectrl.models.reflector import LMReflector
from reflectrl.models.sequences import padded, read, split, square_of
from reflectrl.models.slots import Slots
from reflectrl.players import Policy, Reflector
from reflectrl.training.batch import StepSample

BUDGET = 4096
"""Tokens of a forward pass of an update."""
LIMIT = 64
"""Tokens of a reflection at most; random weights end one after about 33."""
QUICK = False
SHAPES = ("nano", "GPT-2 small")
CASE = ("environment", "model")
STEPS = {"dangerous_taxi": 5, "auto_explore": 5, "alfworld": 8}
"""Of the episodes that the large model reads."""


@dataclass(frozen=True)
class Case:
    """Recorded episodes of an environment, and random models of one shape that read them."""

    env: str
    shape: str
    scene: Scene
    episodes: list[list[Step]]
    reader: Reader

    @property
    def heavy(self) -> bool:
        """Seconds a call: nothing to warm up, and few repeats."""
        return self.shape == SHAPES[1] and not QUICK

    @property
    def samples(self) -> list[StepSample]:
        """Of all episodes."""
        return [step.sample for episode in self.episodes for step in episode]

    def race(self, contenders: dict[str, Call], heavy_rounds: int = 3) -> dict[str, Times]:
        """In turns, seven times after a warm-up, or ``heavy_rounds`` times."""
        return race(contenders, heavy_rounds if self.heavy else 2 if QUICK else 7, warm_up=not self.heavy)

    def line(self, times: dict[str, Times], *words: str) -> list[str]:
        """A line of a table: who, the medians of both sides in seconds, how many times as fast."""
        seconds = (f"{times[name].seconds:.3g}" for name in ("plain", "ours"))
        return [self.env, self.shape, *words, *seconds, f"**{times_as_fast(times, 'ours', 'plain'):.1f}**"]


def cases(many: int, few: int, shapes: Sequence[str] = SHAPES, envs: Sequence[str] = ENVS) -> Iterator[Case]:
    """``many`` episodes for the small model, ``few`` for the large one, of each environment."""
    for shape, env in itertools.product(shapes, envs):
        with set_up(recipe(shape, env)) as scene:
            if shape == SHAPES[0]:
                episodes = scene.steps(scene.play(many))
            else:
                episodes = scene.steps(scene.play(few, steps=STEPS[env]))
            yield Case(env, shape, scene, episodes, reader(shape, scene, episodes))


def recipe(shape: str, env: str) -> str:
    """Whose prompts a model of ``shape`` reads."""
    return f"{env}/{'nano' if shape == SHAPES[0] else 'paper'}"


def reader(shape: str, scene: Scene, episodes: Sequence[Sequence[Step]], max_length: int | None = None) -> Reader:
    """A model with a choice head."""
    small = {"n_layer": 2, "n_embd": 64, "n_head": 2} if QUICK else {}
    if shape == SHAPES[0]:
        made = nano(scene, episodes, max_length=max_length)
    else:
        made = gpt2_small(scene, episodes, n_positions=max_length or 1024, **small)
    add_choice_head(made.model)
    return made


def policy(who: Reader) -> LMPolicy:
    """The engine's."""
    return LMPolicy(who.model, who.encoder, slots=Slots(who.model.device, who.model.dtype))


def reflector(who: Reader, temperature: float, cache_size: int = 0) -> LMReflector:
    """The engine's; without a cache it writes everything."""
    return LMReflector(
        who.model,
        who.tokenizer,
        max_length=who.encoder.max_length,
        max_new_tokens=LIMIT,
        temperature=temperature,
        cache_size=cache_size,
        slots=Slots(who.model.device, who.model.dtype),
        ends=ends(who.model.config.vocab_size, who.tokenizer.eos_token_id),
    )


def plain_reflector(who: Reader, temperature: float, batch_size: int = 1) -> PlainReflector:
    """The plain side's, with the same words."""
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
    """The first steps of all episodes, then the second ones, and so on: how a rollout asks."""
    longest = max(map(len, episodes))
    return [[episode[at] for episode in episodes if at < len(episode)] for at in range(longest)]


def acts(player: Policy, calls: Sequence[Sequence[Step]]) -> None:
    """Act at each step anew."""
    if isinstance(player, LMPolicy):
        player.forget()
    for steps in calls:
        player.act([step.policy for step in steps], [0.5] * len(steps))


def reflects(player: Reflector, calls: Sequence[Sequence[Step]]) -> None:
    """Reflect at each step anew."""
    if isinstance(player, LMReflector):
        player.clear()
    asks(player, calls)


def asks(player: Reflector, calls: Sequence[Sequence[Step]]) -> None:
    """Reflect at each step."""
    rng = random.Random(0)
    for steps in calls:
        player.reflect([step.reflector for step in steps], [rng.random() for _ in steps])


def tree_update(who: Reader, optimizer: torch.optim.Optimizer, samples: Sequence[StepSample]) -> float:
    """As ``ReflectRLTrainer`` makes it: forward passes over prefix trees."""
    rows = [who.encoder.tokens(sample.prompt) for sample in samples]
    batches = list(split(rows, tokens=BUDGET, square=square_of(who.model)))
    parts = [[samples[index] for tree in batch for index in tree] for batch in batches]
    inputs = (read(rows, batch, who.model.device, who.model.dtype) for batch in batches)

    def forward(part: Sequence[StepSample]) -> Any:
        prompts = [sample.prompt for sample in part]
        return action_distribution(who.model, who.encoder.with_menus(prompts, next(inputs)))[0]

    return update(who.model, optimizer, parts, forward, REINFORCE)


def sgd(who: Reader) -> torch.optim.Optimizer:
    """Without states of its own, and so small a step that repeats do the same work."""
    return torch.optim.SGD(who.model.parameters(), lr=1e-6)


def iteration(player: Policy, speaker: Reflector, learn: Update, episodes: Sequence[Sequence[Step]]) -> None:
    """An iteration on recorded prompts, all episodes side by side: reflect, act, learn."""
    if isinstance(player, LMPolicy):
        player.forget()
    for steps in together(episodes):
        speaker.reflect([step.reflector for step in steps], [0.5] * len(steps))
        player.act([step.policy for step in steps], [0.5] * len(steps))
    learn([step.sample for episode in episodes for step in episode])


class InTurn:
    """Calls a function with the next of some arguments, so that no repeat sees what an earlier one has seen."""

    def __init__(self, function: Callable[[Any], object], arguments: Sequence[Any]) -> None:
        self._function = function
        self._arguments = iter(arguments)

    def __call__(self) -> None:
        """With the next."""
        self._function(next(self._arguments))


# ---- sections --------------------------------------------------------------------------------------------------------


def act() -> str:
    """The policy over an episode and over 16 side by side; plain: ``generate`` of one token a step."""
    lines = []
    for case in cases(16, 1):
        who = case.reader
        one = [[step] for step in case.episodes[0]]
        asked = {1: one} if case.heavy else {1: one, 16: together(case.episodes)}
        for side_by_side, calls in asked.items():
            plain = PlainPolicy(who.model, who.encoder, who.label_ids, batch_size=side_by_side)
            times = case.race({"plain": partial(acts, plain, calls), "ours": partial(acts, policy(who), calls)})
            lines.append(case.line(times, str(side_by_side), str(sum(map(len, calls)))))
    return table([*CASE, "side by side", "steps", "`generate`, s", "ours, s", "times as fast (goal 4)"], lines)


def score() -> str:
    """The policy in one state; plain: the probability of each action's words, without a menu."""
    lines = []
    for shape, env, count in itertools.product(SHAPES, ENVS, (20, 100)):
        with set_up(recipe(shape, env), menu=count) as scene:
            episodes = scene.steps(scene.play(2))
            case = Case(env, shape, scene, episodes, reader(shape, scene, episodes, max_length=2048))
            who, step = case.reader, episodes[0][-1]
            prompt = with_menu(step.policy, scene.layout, made_up_actions(episodes, count))
            one = [[replace(step, sample=replace(step.sample, prompt=prompt))]]
            scored = ScoringPolicy(who.model, who.tokenizer, who.encoder)
            sides: dict[str, Call] = {"plain": partial(acts, scored, one), "ours": partial(acts, policy(who), one)}
            times = case.race(sides, 2 if count == 20 else 1)
            lines.append(case.line(times, str(count), str(len(who.encoder.tokens(prompt)))))
    heads = ["actions", "tokens with menu", "scoring, s", "ours, s", "times as fast (goal 10 and 40)"]
    return table([*CASE, *heads], lines)


def reflect() -> str:
    """The reflector of 16 episodes side by side, sampled; plain: ``generate`` of the batch at each step."""
    lines = []
    for case in cases(16, 16):
        calls = together(case.episodes)[: 3 if case.heavy else None]
        plain, ours = plain_reflector(case.reader, 1.0, batch_size=16), reflector(case.reader, 1.0)
        times = case.race({"plain": partial(reflects, plain, calls), "ours": partial(reflects, ours, calls)}, 1)
        lines.append(case.line(times, str(sum(map(len, calls)))))
    heads = ["reflections", "`generate`, s", "ours, s", "times as fast (goal 1.5)"]
    return table([*CASE, *heads], lines)


def cache() -> str:
    """The greedy reflector of taxi after iterations of 64 episodes, 16 new ones; plain: ``generate`` at each step."""
    lines, rounds = [], 3
    with set_up(recipe("nano", "dangerous_taxi")) as scene:
        episodes = scene.steps(scene.play(64 * (8 if QUICK else 48)))
        batches = [together(episodes[at : at + 64]) for at in range(0, len(episodes), 64)]
        who = reader("nano", scene, episodes)
        ours = reflector(who, 0.0, cache_size=100_000)
        for seen in (0, 4) if QUICK else (0, 20, 40):
            ours.clear()
            for calls in batches[:seen]:
                asks(ours, calls)
            asked, written = ours.asked, ours.written
            sides: dict[str, Reflector] = {
                "1 at a time": plain_reflector(who, 0.0),
                "16 at a time": plain_reflector(who, 0.0, batch_size=16),
                "ours": ours,
            }
            fresh = [[steps[:16] for steps in calls] for calls in batches[seen : seen + rounds]]
            times = race(
                {name: InTurn(partial(asks, side), fresh) for name, side in sides.items()}, rounds, warm_up=False
            )
            seconds = [f"{times[name].seconds:.3g}" for name in sides]
            faster = [f"**{times_as_fast(times, 'ours', name):.1f}**" for name in ("1 at a time", "16 at a time")]
            hits = 1 - (ours.written - written) / (ours.asked - asked)
            lines.append([str(seen), f"{hits:.0%}", *seconds, *faster])
    heads = ["iterations seen", "hits", "`generate`, 1 at a time, s", "16 at a time, s", "ours, s"]
    return table([*heads, "times as fast as 1 (goal 20)", "as 16 at a time"], lines)


def learn() -> str:
    """An update; against full logits step by step, a padded batch an episode, and batches of similar length."""
    lines = []
    for case in cases(64, 2):
        who, samples = case.reader, case.samples
        optimizer = sgd(who)
        sides: dict[str, Call] = {
            "step": partial(plain_update, who.model, optimizer, who.encoder, who.label_ids, samples),
            "padded": partial(
                padded_update, who.model, optimizer, who.encoder, [[s.sample for s in steps] for steps in case.episodes]
            ),
            "bucketed": partial(bucketed_update, who.model, optimizer, who.encoder, samples, budget=BUDGET),
            "ours": partial(tree_update, who, optimizer, samples),
        }
        times = case.race(sides, 1)
        rows = [who.encoder.tokens(sample.prompt) for sample in samples]
        faster = [f"**{times_as_fast(times, 'ours', name):.1f}**" for name in ("step", "padded", "bucketed")]
        tokens = f"{sum(map(len, rows)):,} / {new_tokens(rows):,}"
        seconds = [f"{times[name].seconds:.3g}" for name in sides]
        lines.append([case.env, case.shape, str(len(samples)), tokens, *seconds, *faster])
    heads = ["steps", "tokens / new", "full logits, s", "padded, s", "bucketed, s", "tree, s"]
    return table([*CASE, *heads, "as fast as full", "as padded (goal 4)", "as bucketed (goal 2)"], lines)


def update_of(side: str) -> Call:
    """An update of ALFWorld's steps by the large model, for a process of its own."""
    (case,) = cases(1, 2, SHAPES[1:], ["alfworld"])
    who, optimizer, samples = case.reader, sgd(case.reader), case.samples
    if side == "trees":
        return partial(tree_update, who, optimizer, samples)
    if side == "label rows":
        return partial(bucketed_update, who.model, optimizer, who.encoder, samples, budget=BUDGET)
    longest = max(len(who.encoder.tokens(sample.prompt)) for sample in samples)
    return partial(
        plain_update, who.model, optimizer, who.encoder, who.label_ids, samples, rows=max(1, BUDGET // longest)
    )


def memory() -> str:
    """Peak memory of an update by the large model on ALFWorld's steps, beyond the model's own."""
    peaks = {side: peak_memory(partial(update_of, side)) for side in ("full logits", "label rows", "trees")}
    lines = [[side, f"{peak / 1e9:.2f}", f"{peak / peaks['full logits']:.0%}"] for side, peak in peaks.items()]
    return table([f"forward passes of {BUDGET:,} tokens", "peak, GB", "of full logits (goal 60 %)"], lines)


def whole() -> str:
    """An iteration: 16 episodes of the small model, greedy, after 20 iterations; two of the large one, sampled."""
    lines, rounds = [], 3
    for case in cases(16 * (20 + rounds), 2):
        who, optimizer, temperature = case.reader, sgd(case.reader), float(case.heavy)
        ours = reflector(who, temperature, cache_size=0 if case.heavy else 100_000)
        batches = [case.episodes] * rounds
        if not case.heavy:
            batches = [case.episodes[at : at + 16] for at in range(0, len(case.episodes), 16)]
            for seen in batches[:-rounds]:
                asks(ours, together(seen))
        plain = partial(
            iteration,
            PlainPolicy(who.model, who.encoder, who.label_ids),
            plain_reflector(who, temperature),
            partial(plain_update, who.model, optimizer, who.encoder, who.label_ids),
        )
        engine = partial(iteration, policy(who), ours, partial(tree_update, who, optimizer))
        fresh = batches[-rounds:]
        sides: dict[str, Call] = {"plain": InTurn(plain, fresh), "ours": InTurn(engine, fresh)}
        times = race(sides, 1 if case.heavy else rounds, warm_up=False)
        lines.append(case.line(times, str(sum(map(len, fresh[0])))))
    return table([*CASE, "steps", "plain, s", "ours, s", "times as fast (goal 3, taxi 10)"], lines)


def horizon() -> str:
    """An iteration against the length of an episode: ALFWorld, two episodes of H steps, 2 layers of width 256."""
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    lengths = (5, 10) if QUICK else (5, 10, 20, 40)
    for steps in lengths:
        with set_up("alfworld/paper", [f"env.options.horizon={steps}"]) as scene:
            episodes = scene.steps(scene.play(2, steps=steps, expertise=0.0))
            who = gpt2_small(scene, episodes, n_layer=2, n_embd=256, n_head=4, n_positions=4096)
            add_choice_head(who.model)
            optimizer = sgd(who)
            plain = partial(
                iteration,
                PlainPolicy(who.model, who.encoder, who.label_ids),
                plain_reflector(who, 1.0),
                partial(plain_update, who.model, optimizer, who.encoder, who.label_ids),
                episodes,
            )
            ours = partial(iteration, policy(who), reflector(who, 1.0), partial(tree_update, who, optimizer), episodes)
            times = race({"plain": plain, "ours": ours}, 3, warm_up=steps == lengths[0])
            for name, each in seconds.items():
                each.append(times[name].seconds)
    lines = [
        [name, *(f"{value:.3g}" for value in each), f"**{exponent(lengths, each):.2f}**"]
        for name, each in seconds.items()
    ]
    return table(["seconds", *(f"H = {steps}" for steps in lengths), "exponent (goal 1.3 for ours)"], lines)


def exponent(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the logarithms, by least squares."""
    slope, _ = linear_regression([math.log(length) for length in lengths], [math.log(value) for value in seconds])
    return slope


def work() -> str:
    """Operations a second of the large model, as a part of those of a product of two large matrices."""
    product, operations = matmul()
    lines = []
    for case in cases(1, 1, SHAPES[1:]):
        who = case.reader
        rows = [who.encoder.tokens(step.policy) for step in case.episodes[0]]
        reads = partial(prefill, who, rows)
        learns = partial(tree_update, who, sgd(who), case.samples)
        times = race({"matmul": product, "prefill": reads, "update": learns}, 3)
        for name, call in (("prefill", reads), ("update", learns)):
            count = flops(call)
            share = share_of_peak(count, times[name].seconds, operations, times["matmul"].seconds)
            speed = count / times[name].seconds / 1e9
            lines.append([case.env, name, f"{speed:.0f}", f"**{share:.0%}**"])
    peak = operations / times["matmul"].seconds / 1e9
    return table(["environment", "GPT-2 small", "GFLOP/s", f"of matmul's {peak:.0f} (goal 50 %)"], lines)


@torch.no_grad()
def prefill(who: Reader, rows: Sequence[Any]) -> None:
    """Read whole prompts at once."""
    who.model.base_model(input_ids=padded(rows, who.model.device).input_ids, use_cache=False)


def kernels() -> str:
    """Updates by padded batches under autocast to bfloat16, and compiled; what compiling took is left out."""
    lines = []
    for case in cases(16, 1, SHAPES[:1], ["alfworld"]):
        who, samples = case.reader, case.samples
        sides: dict[str, Call] = {}
        for name, section in (
            ("plain", ModelSection()),
            ("autocast", ModelSection(autocast=True)),
            ("compile", ModelSection(compile=True)),
        ):
            own = copy.deepcopy(who.model)
            adopt_kernels(own, section)
            sides[name] = partial(
                bucketed_update, own, sgd(replace(who, model=own)), who.encoder, samples, budget=BUDGET
            )
        times = race(sides, 3)
        seconds = [f"{times[name].seconds:.3g}" for name in sides]
        faster = [f"**{times_as_fast(times, name, 'plain'):.2f}**" for name in ("autocast", "compile")]
        lines.append([case.env, case.shape, *seconds, *faster])
    heads = ["plain, s", "autocast, s", "compiled, s", "autocast, times as fast", "compiled, times as fast"]
    return table([*CASE, *heads], lines)


SECTIONS: dict[str, Callable[[], str]] = {
    section.__name__: section for section in (act, reflect, cache, learn, whole, horizon, memory, work, score, kernels)
}


def main() -> None:
    """Measure section by section; each is published as soon as it is there."""
    global QUICK  # noqa: PLW0603 - what every section asks
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small models and few repeats, on stdout")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"unknown section {unknown[0]!r}; known: {', '.join(SECTIONS)}")
    QUICK = arguments.quick
    for name in arguments.sections or SECTIONS:
        began = time.monotonic()
        text = SECTIONS[name]()
        print(f"{name}\n\n{text}\n", flush=True)
        if not QUICK:
            took = f"in {(time.monotonic() - began) / 60:.0f} min" if time.monotonic() - began > 60 else "in a minute"
            made = f"{made_by(f'python benchmarks/engine.py {name}')} {took}, {torch.get_num_threads()} threads."
            publish(HERE / "README.md", f"engine_{name}", f"{made}\n\n{text}\n")


if __name__ == "__main__":
    main()
