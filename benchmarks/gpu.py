"""Compare the engine with the plain implementation on a GPU, and train SmolLM2 there.

    python benchmarks/gpu.py                  # all parts
    python benchmarks/gpu.py tests smollm2    # some parts only
    python benchmarks/gpu.py writers_smollm2 --server http://localhost:8000/v1    # and vLLM, with random weights:
                                              # vllm serve FOLDER --load-format dummy --served-model-name smollm2
    python benchmarks/gpu.py --quick          # small models and few repeats, on stdout; on the CPU if there is no GPU;
                                              # trains only what is named, such as pretrained_taxi

It needs torch with CUDA and this package. Weights are random and created on the GPU, prompts are those of
DangerousTaxi; only the parts ``pretrained_*`` train SmolLM2 as its wheel has it. Where files were copied without git,
``REFLECTRL_COMMIT`` names the commit. All parts ``pretrained_*`` of a command are trained together, 16 processes at a
time; start ``nvidia-cuda-mps-control -d`` before, or they take turns on the GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from arms import ENGINE, HERE, RUNS, made_by, plan, publish_rows, table
from engine_prompts import SMOLLM2, Reader, Step, ends, new_tokens, random_model, set_up
from engine_sides import BUDGET, LIMIT, effort, iteration, plain_reflector, policy, reflector, sgd, tree_update
from learning import sitting
from plain import PlainPolicy, bucketed_update, plain_update
from siblings import Table, record, record_of, results
from studies import GPU_STUDIES, STUDIES
from timing import Call
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, LlamaConfig, MistralConfig, PretrainedConfig

from reflectrl.lm.decode import Sampler, write
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.paged import PagedWriter
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.reuse import refusal
from reflectrl.lm.section import LoraSection
from reflectrl.lm.sequences import Tokens
from reflectrl.lm.writer import Writer
from reflectrl.pipeline.sweep import PlannedRun, unfinished
from reflectrl.report.runs import read_runs

RECORDS = HERE / "records" / "gpu"
"""Folder of finished runs, which are not trained again."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS_OF_AN_ITERATION = ("reflect", "act", "update", "iteration")
STEPS = 3
"""Number of steps of each episode."""
ALONE = 1
"""Number of episodes that the plain side plays, one prompt at a time."""
NUMBERS = (8, 64)
"""Numbers of episodes side by side."""
TEXTS = (8, 64, 512)
"""Numbers of texts that are written side by side."""
PART_SECONDS = 240.0
"""Time for a comparison of writers; what would take longer is not measured."""
NOT_MEASURED = "not measured"
JOBS = 16
"""Number of runs at a time, each a process on the same GPU."""
ALL = STUDIES | GPU_STUDIES
WIDE = ("model.compute=bfloat16", "eval.batch_size=64")
"""Changes to recipes of two cores for a GPU."""
LEARNED: Mapping[str, tuple[str, ...]] = {
    "pretrained_families": WIDE,
    "pretrained_alfworld": WIDE,
    "pretrained_taxi": (
        *(*WIDE, "sft.reflector.micro_batch_size=16", "sft.policy.micro_batch_size=16"),
        "rlft.micro_batch_tokens=16384",
    ),
    "pretrained_explorer": (
        *(*WIDE, "sft.reflector.micro_batch_size=8", "sft.policy.micro_batch_size=8"),
        *("eval.max_tasks=200", "eval.episodes=200"),
    ),
    "pretrained_explore": (*WIDE, "sft.reflector.micro_batch_size=16"),
}
"""Studies of ``siblings.py`` whose runs are trained on the GPU, the longest first, with the changes to their recipes:
the same training, with more rows in a pass, and more episodes of the explorer's test."""
SHORT = (
    *("sft.reflector.steps=2", "sft.policy.steps=2", "rlft.lessons=[{name: a, iterations: 1}]", "rlft.episodes=2"),
    *("rlft.validation.episodes=2", "eval.episodes=2", "env.options.horizon=2"),
    *("players.reflector.max_new_tokens=2", "data.samples=40"),
)
"""Further changes, for a quick look."""
Side = Callable[[Callable[[str], AbstractContextManager[object]]], None]
"""Function that plays and updates for one iteration, with each part of it in a given context."""


def shape(name: str) -> PretrainedConfig:
    """Return the configuration of a model without dropout, and with the fused activation for GPT-2."""
    if name == "gpt2_xl":
        still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 3000} if effort.quick else {"n_embd": 1600}
        whole = {"n_layer": 48, "n_head": 25, "bos_token_id": None, "eos_token_id": None, **still, **sizes}
        return GPT2Config(activation_function="gelu_pytorch_tanh", **whole)
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 3000}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    if name == "smollm2":
        return LlamaConfig(**{**SMOLLM2, **(small | heads if effort.quick else {}), "max_position_embeddings": 2048})
    return MistralConfig(sliding_window=None, **({**small, **heads} if effort.quick else {}))  # Mistral 7B's own sizes


@contextmanager
def reader(name: str, episodes: int, steps: int = STEPS) -> Iterator[tuple[Reader, list[list[Step]]]]:
    """Set up a model in bfloat16 with new adapters, and the steps of episodes that it reads."""
    gc.collect()  # a model with a patched forward is in a reference cycle
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with set_up("dangerous_taxi/paper") as scene:
        played = scene.steps(scene.play(episodes, steps=steps))
        lora = LoraSection(r=64)
        made = random_model(scene, played, shape(name), 1024, device=DEVICE, dtype=torch.bfloat16, lora=lora)
        add_choice_head(made.model.get_base_model())
        yield made, played


def measured(side: Side, *readings: Callable[[], float]) -> list[dict[str, float]]:
    """Return by how much each reading, such as a clock's, grows in each part of an iteration and in all of it."""
    totals: list[dict[str, float]] = [defaultdict(float) for _ in readings]

    @contextmanager
    def part(name: str) -> Iterator[None]:
        before = [reading() for reading in readings]
        yield
        for total, reading, start in zip(totals, readings, before, strict=True):
            grown = reading() - start
            total[name] += grown
            total["iteration"] += grown

    side(part)
    return totals


def clock() -> float:
    """Return the time in seconds after all pending work of the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def plain(who: Reader, episodes: Sequence[Sequence[Step]], size: int) -> Side:
    """Return an iteration of the plain side, ``size`` prompts at a time; size 1 uses full-vocabulary logits."""
    player = PlainPolicy(who.model, who.encoder, who.label_ids, batch_size=size)
    optimizer = sgd(who)
    if size == 1:
        learn: Any = partial(plain_update, who.model, optimizer, who.encoder, who.label_ids)
    else:
        learn = partial(bucketed_update, who.model, optimizer, who.encoder, budget=BUDGET)
    return partial(iteration, player, plain_reflector(who, 1.0, size), learn, episodes)


def engine(who: Reader, episodes: Sequence[Sequence[Step]]) -> Side:
    """Return an iteration of the engine with all episodes side by side."""
    speaker = reflector(who, 1.0)

    def play(part: Callable[[str], AbstractContextManager[object]]) -> None:
        speaker.clear()  # prompts differ between iterations
        iteration(policy(who), speaker, partial(tree_update, who, sgd(who)), episodes, part)

    return play


# ---- parts -----------------------------------------------------------------------------------------------------------


def tests() -> Iterator[str]:
    """Run the tests that need a GPU: equal logits, gradients and words; learning; resuming to the same bytes."""
    mark = "gpu" if DEVICE == "cuda" else "not gpu"
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", "-W", "default", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", mark, "tests/test_devices.py"], cwd=HERE.parent, capture_output=True, text=True
    )
    print(done.stdout, done.stderr, file=sys.stderr)
    said = (line.partition(" - ")[0].partition(" ") for line in done.stdout.splitlines())
    outcomes = [[name, word.lower()] for word, _, name in said if word in ("PASSED", "FAILED", "ERROR", "SKIPPED")]
    yield table(["test", "outcome"], outcomes)


def seconds_of(call: Call) -> float:
    """Return the mean seconds of one call among many."""
    times = 5 if effort.quick else 50
    for _ in range(2):  # the first time is a warm-up
        start = clock()
        for _ in range(times):
            call()
        seconds = (clock() - start) / times
    return seconds


def model(name: str) -> Iterator[str]:
    """Measure each part of an iteration with more and more episodes side by side; each size once, after a warm-up."""
    numbers = (2,) if effort.quick else NUMBERS
    heads = ["episodes", "policy's tokens / new", "part", "plain, ms per step", "batched, ms", "ours, ms"]
    heads += ["times as fast as plain", "as batched", "passes per step"]
    lines: list[list[str]] = []
    with reader(name, max(numbers)) as (who, episodes):
        base = who.model.get_base_model()
        reason = refusal(base, who.encoder.max_length, BUDGET)
        note = f"States are not reused: {reason}." if reason else "The engine's logits are those of plain rows."
        alone, first = plain(who, episodes[:ALONE], 1), episodes[: numbers[0]]
        short = [steps[:1] for steps in first]
        for side in (plain(who, short[:ALONE], 1), plain(who, short, len(short)), engine(who, short)):
            side(nullcontext)
        (one,) = measured(alone, clock)
        calls: list[None] = []
        base.base_model.register_forward_pre_hook(lambda *_: calls.append(None))
        measures: list[list[dict[str, float]]] = []
        for number in numbers:
            some = episodes[:number]
            (batched,) = measured(plain(who, some, number), clock)
            ours, passes = measure = measured(engine(who, some), clock, calls.__len__)
            measures.append(measure)
            rows = [who.encoder.tokens(step.policy.prompt) for steps in some for step in steps]
            for part in PARTS_OF_AN_ITERATION:
                taken = (one[part] / ALONE / STEPS, *(side[part] / number / STEPS for side in (batched, ours)))
                cells = [str(number), f"{sum(map(len, rows)):,} / {new_tokens(rows):,}", part]
                cells += [f"{1e3 * seconds:.3g}" for seconds in taken]
                cells += [f"**{seconds / taken[-1]:.1f}**" for seconds in taken[:-1]]
                lines.append([*cells, f"{passes[part] / number / STEPS:.2g}"])
            memory = f" {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most." if DEVICE == "cuda" else ""
            text = f"{note}{memory}\n\n{table(heads, lines)}"
            yield text
        if not effort.quick:
            whole = [cells for cells in lines if cells[2] == "iteration"]
            publish_rows(ENGINE, "gpu_iterations", [[name, number, *cells] for number, _, _, *cells, _ in whole])
        yield f"{text}\n\n{speeds(engine(who, first), base, *measures[0])}"


def speeds(side: Side, base: Any, taken: Mapping[str, float], passes: Mapping[str, float]) -> str:
    """Return the FLOP/s of each part, their share of a large matrix product's, and the rate of reading weights.

    Args:
        side: an iteration, which is run once more, to count its operations.
        base: the model.
        taken: seconds of each part.
        passes: number of forward passes in each part.

    """
    wide = 256 if effort.quick else 8192
    square = torch.rand(wide, wide, device=DEVICE, dtype=torch.bfloat16)  # random: GPUs multiply zeros faster
    peak = 2 * wide**3 / seconds_of(lambda: square @ square)
    with FlopCounterMode(display=False) as counter:
        (operations,) = measured(side, counter.get_total_flops)
    weights = sum(weight.nbytes for weight in base.parameters())
    lines = []
    for part in PARTS_OF_AN_ITERATION:
        speed = operations[part] / taken[part]
        read = weights * passes[part] / taken[part]
        lines.append([part, f"{speed / 1e12:.3g}", f"**{100 * speed / peak:.2g}%**", f"{read / 1e9:.0f}"])
    heads = ["the engine with the fewest episodes", "TFLOP/s", f"of a product's {peak / 1e12:.3g}"]
    return table([*heads, "GB/s of weights read"], lines)


# ---- writing ---------------------------------------------------------------------------------------------------------


Write = Callable[[Sequence[Tokens]], int]
"""Function that continues texts and returns the number of tokens that it wrote."""


def writing(name: str, who: Reader) -> dict[str, Write | None]:
    """Return what writes with a model, or a server that has its name, in the order of the table; ``None`` if absent."""
    base, limit = who.model.get_base_model(), 8 if effort.quick else LIMIT
    stops = ends(who.model.config.vocab_size, who.tokenizer.eos_token_id)
    cache = PrefixCache(base.device, base.dtype)
    pages = PagedWriter(base, ends=stops, limit=limit)

    def sampler(rows: Sequence[Tokens]) -> Sampler:
        return Sampler([number / len(rows) for number in range(len(rows))], 1.0)

    def own(rows: Sequence[Tokens]) -> int:
        cache.clear()
        return sum(map(len, write(base, cache, rows, sampler(rows), ends=stops, limit=limit)))

    def paged(rows: Sequence[Tokens]) -> int:
        return sum(map(len, pages.write(rows, sampler(rows))))

    def batched(rows: Sequence[Tokens]) -> int:
        writer = Writer(who.model, who.tokenizer, max_new_tokens=limit, batch_size=len(rows), ends=stops)
        return sum(map(len, writer.write(rows, sampler(rows))))

    def served(rows: Sequence[Tokens]) -> int:
        asked = {"model": name, "max_tokens": limit, "temperature": 1.0, "stop_token_ids": stops}

        def complete(row: Tokens) -> int:
            body = json.dumps({**asked, "prompt": row, "return_token_ids": True}).encode()
            request = urllib.request.Request(f"{effort.server}/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                return len(json.load(answer)["choices"][0]["token_ids"])

        with ThreadPoolExecutor(len(rows)) as clients:
            return sum(clients.map(complete, rows))

    return {
        "own loop": own,
        "continuous batching": paged,
        "vLLM server": served if effort.server else None,
        "batched `generate`": batched,
    }


def writers(name: str) -> Iterator[str]:
    """Measure tokens per second of each writer with more and more texts side by side, once after a warm-up."""
    began, numbers = clock(), (2, 4) if effort.quick else TEXTS
    with reader(name, max(numbers), steps=1) as (who, episodes):
        rows = [who.encoder.tokens(steps[-1].reflector.prompt, reserve=LIMIT) for steps in episodes]
        sides = writing(name, who)
        taken = dict.fromkeys(sides, 0.0)  # seconds of a text, warm-up included
        lines: list[list[str]] = []
        for number in numbers:
            lines.append([name, str(number)])
            for side, call in sides.items():
                start = clock()
                if call is None or start + number * taken[side] > began + PART_SECONDS:
                    lines[-1].append(NOT_MEASURED)
                    continue
                call(rows[:number])
                warm = clock()
                tokens = call(rows[:number])
                lines[-1].append(f"{tokens / (clock() - warm):.3g}")
                taken[side] = (clock() - start) / number
            text = table(["model", "texts", *sides], lines)
            yield text
    if not effort.quick:
        publish_rows(ENGINE, "gpu_writers", lines)
    yield text


def planned(name: str) -> list[PlannedRun]:
    """Return the runs of a study."""
    seeds, place, further = ("0", RUNS / "gpu_quick", SHORT) if effort.quick else (None, RUNS / "gpu", ())
    return plan(name, ALL[name].arms, seeds, place, (*LEARNED[name], *further))


def train(names: Sequence[str]) -> None:
    """Train the runs of studies that neither are finished nor have a record, side by side, and record them."""
    runs = [run for name in names for run in planned(name)]
    done, *_ = sitting(lambda: runs, JOBS, recorded)
    for folder in done if not effort.quick else ():
        record(folder, RECORDS)


def recorded(run: PlannedRun) -> Path | None:
    """Return the folder that holds the record of a finished run, if there is one."""
    return None if effort.quick else record_of(run, RECORDS)


def learned(name: str) -> list[Table]:
    """Return what SmolLM2 learned in the finished runs of a study."""
    folders = {run.folder: recorded(run) for run in planned(name)}
    left = {run.folder for run in unfinished([run for run in planned(name) if folders[run.folder] is None])}
    finished = [record or folder for folder, record in folders.items() if folder not in left]
    return results(name, read_runs(finished), "GPU") if finished else []


MODELS = ("gpt2_xl", "smollm2", "mistral_7b")
PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "tests": tests,
    **{name: partial(model, name) for name in MODELS},
    **{f"writers_{name}": partial(writers, name) for name in MODELS},
}
KNOWN = (*PARTS, *LEARNED)


def hardware() -> str:
    """Describe the GPU, or the CPU if there is none."""
    if DEVICE == "cuda":
        return f"one {torch.cuda.get_device_name()} with {os.cpu_count()} cores,\ntorch {torch.__version__}"
    return f"{os.cpu_count()} cores ({platform.machine()}), torch {torch.__version__}"


def main() -> None:
    """Measure part by part, and publish each as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(KNOWN))
    parser.add_argument("--quick", action="store_true", help="small models and few repeats, on stdout")
    parser.add_argument("--server", metavar="URL", help="address of a vLLM server, for the parts writers_*")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in KNOWN]:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(KNOWN)}")
    effort.quick, effort.server = arguments.quick, arguments.server
    if DEVICE == "cpu" and not effort.quick:
        parser.error("torch finds no CUDA device; use --quick to try the parts on the processor")
    names = arguments.parts or (PARTS if effort.quick else KNOWN)
    if studies := [name for name in names if name in LEARNED]:
        train(studies)
    for each in (each for name in studies for each in learned(name)):
        print(f"{each}\n", flush=True)
        if not effort.quick:
            each.publish()
    for name in (name for name in names if name in PARTS):
        for text in PARTS[name]():
            print(f"{made_by(f'python benchmarks/gpu.py {name}', hardware())}\n\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
