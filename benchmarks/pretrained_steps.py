"""Measure what a step of the ``smollm2`` recipes takes, and how much of the processor's peak it uses.

    python benchmarks/pretrained_steps.py    # minutes

The pretrained model of the recipe reads the first two states of eight recorded episodes, side by side, in one thread.
The reflector writes the expert's words, because untrained adapters would write others of any length.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from functools import partial
from statistics import fmean

import torch
from arms import made_by, table
from engine_prompts import Reader, Scene, Step, set_up
from engine_sides import acts, policy, sgd, together, tree_update, writes
from timing import Call, flops, matmul, race, share_of_peak

from reflectrl.engine.head import add_choice_head
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import new_model
from reflectrl.models.precision import Precision
from reflectrl.models.tokenizer import label_ids

RECIPES = ("smollm2/number_line", "smollm2/taxi_pickup", "smollm2/auto_explore", "smollm2/alfworld_tomato")
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
EPISODES, STEPS = 8, 2
PARTS = ("reflect", "act", "update")


def reader(scene: Scene, compute: Precision, *, frozen: bool) -> Reader:
    """Return the recipe's model with new adapters, as training loads it."""
    section = scene.recipe.model.model_copy(update={"compute": compute})
    lm = new_model(section, labels=scene.labels, seed=0)
    ids = tuple(label_ids(lm.tokenizer, scene.labels))
    if not frozen:
        add_choice_head(lm.base)
    encoder = PromptEncoder(lm.tokenizer, ids, section.max_length)
    return Reader(lm.model.requires_grad_(False) if frozen else lm.model, lm.tokenizer, encoder, ids)


def calls(speaker: Reader, who: Reader, episodes: Sequence[Sequence[Step]]) -> dict[str, Call]:
    """Return the work of each part of an iteration."""
    each, samples = together(episodes), [step.sample for episode in episodes for step in episode]
    learn = partial(tree_update, who, sgd(who), samples)
    learn()
    return {"reflect": partial(writes, speaker, each), "act": partial(acts, policy(who), each), "update": learn}


def line(name: str, compute: Precision) -> list[str]:
    """Measure a recipe in one precision, and return its row of the table."""
    with set_up(name) as scene:
        episodes = scene.steps(scene.play(EPISODES, steps=STEPS))
        speaker, who = (reader(scene, compute, frozen=frozen) for frozen in (True, False))
    steps = [step for episode in episodes for step in episode]
    product, operations = matmul(dtype=getattr(torch, compute))
    parts = calls(speaker, who, episodes)
    times = race({"matmul": product, **parts}, 1, warm_up=False)
    peak = times["matmul"].seconds
    cells = []
    for part, call in parts.items():
        seconds = times[part].seconds
        cells.append(f"{seconds / len(steps):.2f} ({share_of_peak(flops(call), seconds, operations, peak):.0%})")
    tokens = fmean(len(who.encoder.tokens(step.policy.prompt)) for step in steps)
    lora = scene.recipe.model.lora
    adapted = "all" if lora is None or lora.layers is None else str(lora.layers)
    return [name, adapted, compute, f"{tokens:.0f}", f"{operations / peak / 1e9:.0f}", *cells]


def main() -> None:
    """Measure, and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    heads = ["recipe", "adapted layers", "precision", "tokens", "matmul, GFLOP/s", *(f"{part}, s" for part in PARTS)]
    rows = table(heads, [line(*each) for each in itertools.product(RECIPES, PRECISIONS)])
    print(f"{made_by('python benchmarks/pretrained_steps.py')}, one thread.\n\n{rows}")


if __name__ == "__main__":
    main()
