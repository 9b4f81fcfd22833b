"""Measure the processor milliseconds of a query to a memory of past episodes, on one thread.

    python benchmarks/retrieval.py

The episodes are made from templates like those of ALFWorld's household tasks. Each new episode asks twice, about two of
its states: task, kind and plan are compared with the past only for the first query. The words of each query have to be
embedded, which is timed apart. A model's embeddings have no zeros: those of the largest such memory are hashed ones in
a rotated basis, with the same similarities.
"""

from __future__ import annotations

import os

os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from arms import made_by, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the folder of remembered
from remembered import Rotated

from reflectrl.memory import EmbeddingCache, Experience, HashingEmbedder, Key, Query, Retriever, Step, Weights
from reflectrl.memory.embedders import Embedder
from reflectrl.memory.neural import minilm

KINDS = {"put": "put a {} in {}", "clean": "put a clean {} in {}", "heat": "put a hot {} in {}"}
KINDS |= {"cool": "put a cool {} in {}", "look": "examine the {} with the {}", "two": "put two {} in {}"}
THINGS = [
    f"{adjective}{noun}" for adjective in ("", "butter", "dish", "hand") for noun in ("mug", "pan", "egg", "lamp")
]
PLACES = [
    f"{noun} {number}" for noun in ("shelf", "desk", "cabinet", "drawer", "fridge", "sink") for number in range(1, 6)
]
STEPS = 15
EPISODES = 200
"""New episodes for each kind of query."""

Asked = Callable[[Experience, random.Random], Query]


def episode(number: int, rng: random.Random) -> Experience:
    """Return an episode that searches some places for a thing and puts it somewhere."""
    kind, thing, goal = rng.choice(list(KINDS)), rng.choice(THINGS), rng.choice(PLACES)
    steps = []
    for place in rng.choices(PLACES, k=STEPS - 3):
        there = ", ".join(f"a {rng.choice(THINGS)} {rng.randrange(1, 4)}" for _ in range(rng.randrange(1, 5)))
        steps.append(Step(f"go to {place}", f"On the {place}, you see {there}."))
    steps += [Step(f"take {thing} 1", f"You pick up the {thing} 1."), Step(f"go to {goal}", f"You arrive at {goal}.")]
    steps.append(Step(f"put {thing} 1 in/on {goal}", ""))
    plan = f"find a {thing}, take it, {kind} it, go to {goal} and put it there"
    task = f"Your task is to: {KINDS[kind].format(thing, goal)}."
    return Experience(f"game {number}", task, kind, plan, "You are in a room.", tuple(steps), True, 1.0)


def _seen(now: Experience, rng: random.Random) -> Key:
    return Key("observation", rng.choice(now.steps[:-1]).observation)


def _thing(now: Experience, rng: random.Random) -> Key:  # noqa: ARG001 - required by the signature
    return Key("observation", now.steps[-1].action.split()[1])


def _verb(_: Experience, rng: random.Random) -> Key:
    return Key("action", rng.choice(("take", "put", "go")))


ASKED: dict[str, Asked] = {
    "task, kind and plan, without a key": lambda now, _: Query(now.task, now.task_type, now.plan),
    "the same and an action key": lambda now, rng: Query(now.task, now.task_type, now.plan, _verb(now, rng)),
    "the same and a thing to search": lambda now, rng: Query(now.task, now.task_type, now.plan, _thing(now, rng)),
    "the same and the last observation": lambda now, rng: Query(now.task, now.task_type, now.plan, _seen(now, rng)),
    "task and the last observation": lambda now, rng: Query(now.task, key=_seen(now, rng)),
    "the last observation alone": lambda now, rng: Query(key=_seen(now, rng)),
}


def milliseconds(retriever: Retriever, embedder: Embedder, queries: Sequence[Query]) -> tuple[list[float], list[float]]:
    """Return the processor milliseconds of each query, and of the embedding of its words before."""
    took, embedding = [], []
    for query in queries:
        texts = [query.task, query.task_type, query.plan, query.key.text if query.key else ""]
        began = time.process_time()
        embedder.embed([text for text in texts if text])
        embedded = time.process_time()
        retriever.retrieve(query)
        took.append(1e3 * (time.process_time() - embedded))
        embedding.append(1e3 * (embedded - began))
    return took, embedding


def measure(count: int, named: str, embedder: Embedder) -> list[list[str]]:
    """Return the table's rows for a memory of ``count`` episodes, whose embedder the table calls ``named``."""
    rng = random.Random(0)
    past = [episode(number, rng) for number in range(count)]
    began = time.process_time()
    cache = EmbeddingCache(embedder)
    retriever = Retriever(past, cache, weights=Weights())
    retriever.prepare(("action", "observation"))
    built = time.process_time() - began
    different = len({step.observation for each in past for step in each.steps})
    vectors = f"{embedder.width} numbers a vector, {named}"
    name = f"{count:,} episodes, {different:,} different observations, {vectors}; made in {built:.1f} s"
    rows = []
    for what, ask in ASKED.items():
        present = [episode(count + number, rng) for number in range(EPISODES)]
        took, embedding = milliseconds(retriever, cache, [ask(now, rng) for now in present for _ in range(2)])
        first, later = sorted(took[::2]), sorted(took[1::2])
        shown = (median(first), median(later), later[-EPISODES // 20], max(took), median(embedding[::2]))
        rows.append([name, what, *(f"{each:.2f}" for each in shown)])
        name = ""
    return rows


def main() -> None:
    """Measure and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    memories: tuple[tuple[int, str, Embedder], ...] = (
        (1000, "hashed", HashingEmbedder()),
        (10_000, "hashed", HashingEmbedder()),
        (10_000, "hashed", HashingEmbedder(384)),
        (10_000, "hashed and rotated", Rotated(384)),
        (1000, "MiniLM", minilm()),
    )
    rows = [row for memory in memories for row in measure(*memory)]
    heads = ["memory", "query", "first of its episode, median ms", "second, median ms", "95 % of them are below"]
    heads += ["slowest of all", "embedding the first's words before, ms"]
    print(f"{made_by('python benchmarks/retrieval.py')}.\n\n{table(heads, rows)}")


if __name__ == "__main__":
    main()
