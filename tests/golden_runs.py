"""Twelve tiny runs, each of all stages, and digests of what they computed; see ``test_goldens.py``.

    python tests/golden_runs.py FOLDER RUN ...

trains the runs in ``FOLDER`` and writes their digests to ``FOLDER/digests.json``. The process has to be started with
the environment variables ``ROUNDING``, because torch, MKL, OpenBLAS and the C library read them when they are loaded.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from safetensors.numpy import load_file
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS, POLICY, POLICY_SFT, RATINGS, REFLECTOR, REFLECTOR_RLFT, RESULTS, TRIALS

ROUNDING: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",  # the one code path of MKL that is the same on processors of all makers
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",  # of numpy
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4",  # exp and log round once less with FMA
    "OMP_NUM_THREADS": "1",
}
"""Environment variables with which sums should be rounded alike on all x86-64 processors.

With ``MKL_CBWR`` alone, number_line, trials, taxi and pictures had these digests even where MKL and OpenBLAS were told
to use AVX-512, and the C library to use FMA."""

ARTEFACTS: Mapping[str, tuple[str, ...]] = {
    "rows": ("sft/reflector.jsonl", "sft/policy.jsonl", "sft/policy-no-reflection.jsonl"),
    "sft": (REFLECTOR, POLICY_SFT),
    "metrics": (METRICS, RATINGS),
    "weights": (POLICY, REFLECTOR_RLFT),
    "eval": (RESULTS, TRIALS),
}
"""Files of lines and folders of weights behind each digest, in the order in which a run writes them."""

_SHORT = (
    "model.builtin.layers=2",
    "model.builtin.width=32",
    "data.samples=20",
    "sft.policy.steps=3",
    "sft.policy.batch_size=4",
    "sft.policy.micro_batch_size=4",
    "rlft.lessons.0.iterations=2",
    "rlft.episodes=4",
    "rlft.record_episodes=0",
    "rlft.save_every=2",
    "eval.episodes=4",
)
_REFLECTOR = ("sft.reflector.steps=3", "sft.reflector.batch_size=4", "sft.reflector.micro_batch_size=4")
_UNVALIDATED = ("rlft.validation=null", "rlft.keep=last")
_TAXI = ("env.options.horizon=6", "eval.split=test")
_EXPLORE = (
    "env.options.horizon=6",
    "rlft.lessons.0.iterations=1",
    "rlft.lessons.1.iterations=1",
    "eval.greedy=false",
    "eval.controls=[blank]",
)
_CARDS = (*_UNVALIDATED, "rlft.update.num_iterations=2", "rlft.update.num_minibatches=2")
_FEW_WORDS = "players.policy.max_new_tokens=12"
_WRITES_JSON = (
    "sft.policy.steps=60",
    "sft.policy.batch_size=16",
    "sft.policy.learning_rate=1e-2",
    "eval.policies=[rlft]",
)

RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "taxi": (
        "dangerous_taxi/nano",
        (*_REFLECTOR, *_TAXI, "rlft.validation.every=1", "rlft.validation.episodes=4"),
    ),
    "number_line": ("number_line/nano", (*_REFLECTOR, *_UNVALIDATED)),
    "auto_explore": ("auto_explore/nano", (*_REFLECTOR, *_EXPLORE, *_UNVALIDATED)),
    "alfworld": (
        "alfworld/nano",
        (
            *_REFLECTOR,
            *_UNVALIDATED,
            "env.options.horizon=6",
            "env.options.count=8",
            "eval.controls=[]",
            "eval.greedy=false",
        ),
    ),
    "corrector": ("gym_cards/nano_number_line_gtr", (*_CARDS, *_WRITES_JSON)),
    "pictures": ("gym_cards/nano_number_line_image_rl4vlm", (*_CARDS, _FEW_WORDS, "eval.policies=[rlft]")),
    "cotrained": (
        "auto_explore/nano_cotrained",
        (*_REFLECTOR, *_EXPLORE, *_UNVALIDATED, "model.name=builtin/nano", "players.reflector.max_new_tokens=8"),
    ),
    "single_player": ("dangerous_taxi/nano_single_player", (*_TAXI, *_UNVALIDATED)),
    "trials": ("rap/nano_trials_taught", (*_REFLECTOR, *_UNVALIDATED, "eval.trials.count=2")),
    "rater": ("vtifa/nano", _REFLECTOR),
    "paper_objective": ("dangerous_taxi/nano_paper_objective", (*_REFLECTOR, *_TAXI)),
    "thought_choice": ("gym_cards/nano_number_line_thought_choice", (*_CARDS, _FEW_WORDS)),
}
"""Recipe of each run, and the changes that make it tiny."""


def digests(run: Path) -> dict[str, str]:
    """Return a digest, the first 16 digits of a SHA-256, for each of ``ARTEFACTS``."""
    return {name: _digest(run / place for place in places) for name, places in ARTEFACTS.items()}


def _digest(places: Iterable[Path]) -> str:
    digest = sha256()
    for place in places:
        for name, content in _lines(place) if place.suffix else _tensors(place):
            digest.update(f"{place.name} {name}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file, if there is one, without the order of keys and columns without a value."""
    for number, (_, row) in enumerate(read_jsonl(file) if file.exists() else ()):
        assert isinstance(row, dict)
        said = {key: value for key, value in row.items() if value is not None}
        yield str(number), json.dumps(said, sort_keys=True).encode()


def _tensors(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the tensors of a saved model by name; neither its configuration nor the files' metadata matter."""
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            yield f"{name} {tensor.dtype} {tensor.shape}", tensor.tobytes()


def main(folder: Path, names: Iterable[str]) -> None:
    """Train runs, and write their digests."""
    import torch

    torch.backends.mkldnn.enabled = False  # oneDNN divides sums by the processor's caches
    found = {}
    for name in names:
        recipe, overrides = RUNS[name]
        play_stages(load_recipe(recipe, [*_SHORT, *overrides]), folder / name)
        found[name] = digests(folder / name)
        gc.collect()
        gc.freeze()  # later trainings, which collect garbage, need not search what was imported
    (folder / "digests.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or RUNS)
