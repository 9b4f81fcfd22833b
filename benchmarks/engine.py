"""The engine's tables in ``benchmarks/README.md``: what reuse of prefixes saves over playing and learning step by step.

    python benchmarks/engine.py                 # all of it, long on two cores; rewrites the tables
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
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import linear_regression
from typing import Any

import torch
from arms import HERE, made_by, publish, table
from engine_prompts import ENVS, Reader, gpt2_small, made_up_actions, new_tokens, set_up, with_menu
from engine_sides import (
    BUDGET,
    CASE,
    SHAPES,
    Case,
    InTurn,
    acts,
    asks,
    cases,
    effort,
    iteration,
    plain_reflector,
    policy,
    reader,
    recipe,
    reflector,
    reflects,
    sgd,
    together,
    tree_update,
)
from plain import PlainPolicy, ScoringPolicy, bucketed_update, padded_update, plain_update
from timing import Call, flops, matmul, peak_memory, race, ratio_table, share_of_peak, times_as_fast

from reflectrl.config.schema import ModelSection
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.sequences import padded
from reflectrl.models.kernels import adopt_kernels
from reflectrl.players import Player


def act() -> str:
    """The policy over an episode and over 16 side by side; plain: ``generate`` of one token, one or 16 at a time."""
    lines = []
    for case in cases(16, 1):
        who = case.reader
        single, batched = (PlainPolicy(who.model, who.encoder, who.label_ids, batch_size=size) for size in (1, 16))
        one, all_of = [[step] for step in case.episodes[0]], together(case.episodes)
        for calls in (one, *([] if case.heavy else [all_of])):
            sides = {"plain": single, "batched": batched, "ours": policy(who)}
            times = case.race({name: partial(acts, side, calls) for name, side in sides.items()})
            rows = [who.encoder.tokens(step.policy.prompt) for steps in calls for step in steps]
            tokens = f"{sum(map(len, rows)):,} / {new_tokens(rows):,}"
            faster = f"**{times_as_fast(times, 'ours', 'batched'):.1f}**"
            lines.append([*case.line(times, str(max(map(len, calls))), str(len(rows)), tokens), faster])
    heads = ["side by side", "steps", "tokens / new", "`generate`, 1 at a time, s", "ours, s"]
    return table([*CASE, *heads, "times as fast (goal 4)", "as `generate`, all side by side"], lines)


def score() -> str:
    """The policy in one state; plain: the probability of each action's words, without a menu."""
    lines = []
    for shape, env, count in itertools.product(SHAPES, ENVS, (20, 100)):
        with set_up(recipe(shape, env), menu=count) as scene:
            episodes = scene.steps(scene.play(2))
            case = Case(env, shape, scene, episodes, reader(shape, scene, episodes, max_length=2048))
            who, step = case.reader, episodes[0][-1]
            seen = with_menu(step.policy, scene.layout, made_up_actions(episodes, count))
            one = [[replace(step, sample=replace(step.sample, view=seen))]]
            scored = ScoringPolicy(who.model, who.tokenizer, who.encoder)
            sides: dict[str, Call] = {"plain": partial(acts, scored, one), "ours": partial(acts, policy(who), one)}
            times = case.race(sides, 2 if count == 20 else 1)
            lines.append(case.line(times, str(count), str(len(who.encoder.tokens(seen.prompt)))))
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
        rows = [who.encoder.tokens(sample.view.prompt) for sample in samples]
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
    longest = max(len(who.encoder.tokens(sample.view.prompt)) for sample in samples)
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
        rows = [who.encoder.tokens(step.policy.prompt) for step in case.episodes[0]]
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
    """Updates of ALFWorld's steps by the small model with other kernels; what compiling took is left out."""
    (case,) = cases(16, 1, SHAPES[:1], ["alfworld"])
    who, samples = case.reader, case.samples
    sections = {
        "float32, sdpa": ModelSection(),
        "attn_implementation: eager": ModelSection(attn_implementation="eager"),
        "compute: bfloat16": ModelSection(compute="bfloat16"),
        "compile: true": ModelSection(compile=True),
    }
    sides: dict[str, Call] = {}
    for name, section in sections.items():
        own = copy.deepcopy(who.model)
        own.set_attn_implementation(section.attn_implementation)
        adopt_kernels(own, section)
        sides[name] = partial(tree_update, replace(who, model=own), sgd(replace(who, model=own)), samples)
    return ratio_table(race(sides, 3), next(iter(sections)))


SECTIONS: dict[str, Callable[[], str]] = {
    section.__name__: section for section in (act, reflect, cache, learn, whole, horizon, memory, work, score, kernels)
}


def main() -> None:
    """Measure section by section; each is published as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small models and few repeats, on stdout")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"unknown section {unknown[0]!r}; known: {', '.join(SECTIONS)}")
    effort.quick = arguments.quick
    for name in arguments.sections or SECTIONS:
        began = time.monotonic()
        text = SECTIONS[name]()
        print(f"{name}\n\n{text}\n", flush=True)
        if not effort.quick:
            took = f"in {(time.monotonic() - began) / 60:.0f} min" if time.monotonic() - began > 60 else "in a minute"
            made = f"{made_by(f'python benchmarks/engine.py {name}')} {took}, {torch.get_num_threads()} threads."
            publish(HERE / "README.md", f"engine_{name}", f"{made}\n\n{text}\n")


if __name__ == "__main__":
    main()
