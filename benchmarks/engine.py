"""Measure what reuse of prefixes saves in rollouts and updates: ``benchmarks/results/engine.md``.

    python benchmarks/engine.py                 # all published sections, long on two cores; rewrites the tables
    python benchmarks/engine.py gpt2 memory     # some sections only
    python benchmarks/engine.py --quick         # small models and few repeats, on stdout

The engine and the plain implementation of ``plain.py`` alternate in one process, on real prompts
(``engine_prompts.py``) and random weights. ALFWorld needs its extra: pip install 'reflectrl[alfworld]'.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import linear_regression, median

import torch
from arms import ENGINE, made_by, publish, publish_rows, table
from engine_prompts import (
    ENVS,
    Reader,
    Step,
    gpt2_small,
    made_up_actions,
    set_up,
    with_menu,
)
from engine_sides import (
    BUDGET,
    CASE,
    SHAPES,
    Case,
    InTurn,
    Work,
    acts,
    asks,
    case,
    computing,
    effort,
    generates,
    iteration,
    plain_reflector,
    policy,
    reader,
    recipe,
    reflector,
    sgd,
    together,
    tree_update,
    writes,
)
from plain import PlainPolicy, ScoringPolicy, bucketed_update, plain_update
from timing import Call, peak_memory, race, times_as_fast

from reflectrl.lm.head import add_choice_head
from reflectrl.pipeline.compute import Precision
from reflectrl.prompts.players import Player

BASES = ("plain", "batched")
SIDES: Mapping[str, tuple[str, Precision]] = {
    "menu last": ("last", "float32"),
    "menu first": ("first", "float32"),
    "menu first, bfloat16": ("first", "bfloat16"),
}
"""Prompt layout (``prompt.menu``) and precision of matrix products of each variant of the engine."""
PARTS = ("reflect", "act", "update")
ITERATIONS = ("model", "environment", "side by side", "plain", "batched generate", *SIDES)
"""Columns of the table of iterations."""


def nano() -> list[list[str]]:
    """Measure an iteration of the nano models, with 16 episodes side by side."""
    return iterations("nano", (16,))


def gpt2() -> list[list[str]]:
    """Measure an iteration of GPT-2 small's shape, with 2 and 16 episodes side by side."""
    return iterations("GPT-2 small", (2, 16))


def smollm2() -> list[list[str]]:
    """Measure an iteration of SmolLM2-135M's shape, with 4 episodes side by side."""
    return iterations("SmolLM2", (4,))


def iterations(shape: str, sizes: Sequence[int]) -> list[list[str]]:
    """Return the rows of milliseconds per step of an iteration, and the speed relative to the plain side.

    "Plain" reads and writes one prompt at a time and learns from the logits of all tokens; "batched" pads 16 prompts
    and learns from the labels' rows of the head in batches of similar length. Both have the menu last, in float32.
    """
    return [line for env in effort.envs for line in environment(shape, env, sizes)]


def environment(shape: str, env: str, sizes: Sequence[int]) -> list[list[str]]:
    """Measure one environment and return its rows; its models are freed afterwards."""
    with ExitStack() as stack:
        many = max(*sizes, 16)
        cases = {menu: stack.enter_context(case(shape, env, menu, many)) for menu in ("last", "first")}
        calls = bases(cases["last"])
        for name, (menu, compute) in SIDES.items():
            players = [computing(cases[menu].reader, compute, frozen=frozen) for frozen in (True, False)]
            for size in sizes:
                calls |= ours(f"{name}/{size}", cases[menu].episodes[:size], *players)
        times = race({name: work.call for name, work in calls.items()}, cases["last"].rounds, warm_up=False)
    cost = {name: median(times[name]) / work.steps for name, work in calls.items()}

    def cell(side: str) -> str:
        seconds, plain = (sum(cost[f"{each} {part}"] for part in PARTS) for each in (side, "plain"))
        return f"{1e3 * seconds:,.3g} (**{plain / seconds:.1f}**)"

    return [[shape, env, str(size), *map(cell, BASES), *(cell(f"{name}/{size}") for name in SIDES)] for size in sizes]


def bases(case: Case) -> dict[str, Work]:
    """Return the work of the baselines: two episodes one prompt at a time, and two steps of 16 episodes in batches."""
    who, few = case.reader, case.episodes[:2]
    many = [episode[:2] for episode in case.episodes[:16]]
    plain, batched = ([step.sample for steps in episodes for step in steps] for episodes in (few, many))
    alone = partial(plain_update, who.model, sgd(who), who.encoder, who.label_ids, plain)
    buckets = partial(bucketed_update, who.model, sgd(who), who.encoder, batched, budget=BUDGET)
    calls: dict[str, Work] = {}
    for base, episodes, size, update in (("plain", few, 1, alone), ("batched", many, 16, buckets)):
        count, each = sum(map(len, episodes)), together(episodes)
        player = PlainPolicy(who.model, who.encoder, who.label_ids, batch_size=size)
        calls[f"{base} reflect"] = Work(partial(generates, who, each, size), count)
        calls[f"{base} act"] = Work(partial(acts, player, each), count)
        calls[f"{base} update"] = Work(update, count)
    return calls


def ours(name: str, episodes: Sequence[Sequence[Step]], speaker: Reader, who: Reader) -> dict[str, Work]:
    """Return the engine's work on episodes side by side: a frozen reflector, and a policy with all weights trained."""
    samples = [step.sample for episode in episodes for step in episode]
    each, count = together(episodes), len(samples)
    return {
        f"{name} reflect": Work(partial(writes, speaker, each), count),
        f"{name} act": Work(partial(acts, policy(who), each), count),
        f"{name} update": Work(partial(tree_update, who, sgd(who), samples), count),
    }


def cache() -> str:
    """Measure taxi's cached greedy reflector on 16 new episodes after iterations of 64, against ``generate``."""
    lines, rounds = [], 3
    with set_up(recipe("nano", "dangerous_taxi")) as scene:
        episodes = scene.steps(scene.play(64 * (8 if effort.quick else 48)))
        batches = [together(episodes[at : at + 64]) for at in range(0, len(episodes), 64)]
        who = reader("nano", scene, episodes)
        ours = reflector(who, 0.0, cache_size=100_000)
        for seen in (0, 4) if effort.quick else (0, 20, 40):
            ours.clear()
            for calls in batches[:seen]:
                asks(ours, calls)
            asked, written = ours.asked, ours.written
            sides: dict[str, Player] = {
                "1 at a time": plain_reflector(who, 0.0),
                "16 at a time": plain_reflector(who, 0.0, batch_size=16),
                "ours": ours,
            }
            fresh = [[steps[:16] for steps in calls] for calls in batches[seen : seen + rounds]]
            times = race(
                {name: InTurn(partial(asks, side), fresh) for name, side in sides.items()}, rounds, warm_up=False
            )
            seconds = [f"{median(times[name]):.3g}" for name in sides]
            faster = [f"**{times_as_fast(times, 'ours', name):.1f}**" for name in ("1 at a time", "16 at a time")]
            hits = 1 - (ours.written - written) / (ours.asked - asked)
            lines.append([str(seen), f"{hits:.0%}", *seconds, *faster])
    heads = ["iterations seen", "hits", "`generate`, 1 at a time, s", "16 at a time, s", "ours, s"]
    return table([*heads, "times as fast as 1", "as 16 at a time"], lines)


def whole() -> str:
    """Measure an iteration of the nano models, with 16 episodes and greedy reflections, after 20 other iterations."""
    lines, rounds = [], 2 if effort.quick else 5
    for env, menu in itertools.product(effort.envs, ("last", "first")):
        with case("nano", env, menu, 16 * (20 + rounds)) as scene:
            who, fast = scene.reader, computing(scene.reader, "float32")
            words = reflector(fast, 0.0, cache_size=100_000)
            batches = [scene.episodes[at : at + 16] for at in range(0, len(scene.episodes), 16)]
            for seen in batches[:-rounds]:
                asks(words, together(seen))
            player = PlainPolicy(who.model, who.encoder, who.label_ids)
            alone = partial(plain_update, who.model, sgd(who), who.encoder, who.label_ids)
            plain = partial(iteration, player, plain_reflector(who, 0.0), alone)
            engine = partial(iteration, policy(fast), words, partial(tree_update, fast, sgd(fast)))
            fresh = batches[-rounds:]
            sides: dict[str, Call] = {"plain": InTurn(plain, fresh), "ours": InTurn(engine, fresh)}
            lines.append([*scene.line(race(sides, rounds, warm_up=False), menu)])
    return table([*CASE, "menu", "plain, s", "ours, s", "times as fast"], lines)


def update_of(side: str) -> Call:
    """Return an update of GPT-2 small's shape on two episodes of ALFWorld, to be run in a separate process."""
    menu, compute = SIDES.get(side, ("last", "float32"))
    with case("GPT-2 small", "alfworld", menu, 2) as scene:
        who, samples = scene.reader, scene.samples
    if side in SIDES:
        who = computing(who, compute)
        return partial(tree_update, who, sgd(who), samples)
    if side == "label rows":
        return partial(bucketed_update, who.model, sgd(who), who.encoder, samples, budget=BUDGET)
    longest = max(len(who.encoder.tokens(sample.view.prompt)) for sample in samples)
    return partial(
        plain_update, who.model, sgd(who), who.encoder, who.label_ids, samples, rows=max(1, BUDGET // longest)
    )


def memory() -> str:
    """Measure the peak memory of ``update_of`` beyond the model's own, and its share of that of full logits."""
    peaks = {side: peak_memory(partial(update_of, side)) for side in ("full logits", "label rows", *SIDES)}
    lines = [[side, f"{peak / 1e9:.2f}", f"{peak / peaks['full logits']:.0%}"] for side, peak in peaks.items()]
    return table([f"forward passes of {BUDGET:,} tokens", "peak, GB", "of full logits"], lines)


def horizon() -> str:
    """Measure an iteration by the length of episodes: ALFWorld, two episodes of H steps, 2 layers of width 256."""
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    lengths = (5, 10) if effort.quick else (5, 10, 20, 40)
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
                each.append(median(times[name]))
    lines = [
        [name, *(f"{value:.3g}" for value in each), f"**{exponent(lengths, each):.2f}**"]
        for name, each in seconds.items()
    ]
    return table(["seconds", *(f"H = {steps}" for steps in lengths), "exponent"], lines)


def exponent(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the exponent of a power law between lengths and seconds, by least squares on logarithms."""
    slope, _ = linear_regression([math.log(length) for length in lengths], [math.log(value) for value in seconds])
    return slope


def score() -> str:
    """Measure the policy in a state of 100 actions, against scoring the words of each action without a menu."""
    lines = []
    count = 100
    for shape, env in itertools.product(SHAPES[1:], ENVS):
        with set_up(recipe(shape, env), menu=count) as scene:
            episodes = scene.steps(scene.play(2))
            case = Case(env, shape, scene, episodes, reader(shape, scene, episodes, max_length=2048))
            who, step = case.reader, episodes[0][-1]
            seen = with_menu(step.policy, scene.layout, made_up_actions(episodes, count))
            one = [[replace(step, sample=replace(step.sample, view=seen))]]
            scored = ScoringPolicy(who.model, who.tokenizer, who.encoder)
            sides: dict[str, Call] = {"plain": partial(acts, scored, one), "ours": partial(acts, policy(who), one)}
            times = case.race(sides, 1)
            lines.append(case.line(times, str(len(who.encoder.tokens(seen.prompt)))))
    heads = ["tokens with menu", "scoring, s", "ours, s", "times as fast"]
    return table([*CASE, *heads], lines)


SECTIONS: dict[str, Callable[[], str]] = {
    section.__name__: section for section in (whole, memory, horizon, cache, score)
}
SHAPED: dict[str, Callable[[], list[list[str]]]] = {section.__name__: section for section in (nano, gpt2, smollm2)}
"""Sections that measure rows of the table of iterations."""
KNOWN = (*SHAPED, *SECTIONS)


def main() -> None:
    """Measure section by section, and publish each as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(KNOWN))
    parser.add_argument("--envs", nargs="+", choices=ENVS, help="prompts of some environments only, on stdout")
    parser.add_argument("--quick", action="store_true", help="small models and few repeats, on stdout")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in KNOWN]:
        parser.error(f"unknown section {unknown[0]!r}; known: {', '.join(KNOWN)}")
    effort.quick = arguments.quick
    effort.envs = tuple(arguments.envs or ENVS)
    torch.set_num_threads(1)
    published = not effort.quick and effort.envs == ENVS
    for name in arguments.sections or KNOWN:
        rows = SHAPED[name]() if name in SHAPED else []
        text = table(ITERATIONS, rows) if rows else SECTIONS[name]()
        print(f"{made_by(f'python benchmarks/engine.py {name}')}, one thread.\n\n{text}\n", flush=True)
        if published and rows:
            publish_rows(ENGINE, "engine_iterations", rows, names=3)
        elif published:
            publish(ENGINE, f"engine_{name}", f"{text}\n")


if __name__ == "__main__":
    main()
