"""Files of a run folder: its stages, and the names of its files and folders, relative to it.

runs/<name>/  recipe.yaml  stages.json  calls/  dataset/  data/  sft/  base/  reflector/  policy-sft/  policy/
              reflector-rlft/  checkpoints/  adapters/  failures/  trackers/  trajectories/  metrics.jsonl
              throughput.jsonl  ratings.jsonl  memory.jsonl  eval.jsonl  trials.jsonl  report.html

No other module writes these names out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

STAGES = ("gen-data", "sft", "rlft", "eval")
"""Stages in the order in which they run."""

RECIPE = "recipe.yaml"
AGENT = "agent.json"
"""Description of an exported agent; a folder with this file is one."""
LEDGER = "stages.json"
"""Ledger of the stages, with their inputs and the sizes of their products."""
LOCK = ".lock"
"""Lock file of the process that works in the folder; the file remains afterwards."""
CALLS = "calls"
"""Folder with a journal for each role that calls a chat endpoint."""
DATASET = "dataset"
"""Folder of the questions and repositories of a recipe with a dataset section, and the environment's option for it."""
DEMONSTRATIONS = "data/demonstrations.jsonl"
TEACHER = "data/teacher.jsonl"
NEGATIVES = "data/negatives.jsonl"
"""Negative samples: steps that follow a mistake."""
BASE = "base"
BASE_REFLECTOR = "base-reflector"
"""Base model of a reflector whose base differs from the policy's."""
REFLECTOR = "reflector"
REFLECTOR_RLFT = "reflector-rlft"
"""Reflector that RLFT trained along with the policy."""
POLICY_SFT = "policy-sft"
POLICY = "policy"
VALIDATED = "validation.json"
"""File beside a policy's weights: its ``Validated``."""
IMAGES = "trajectories/images"
"""Folder of the pictures of recorded episodes."""
METRICS = "metrics.jsonl"
"""``Iteration`` lines."""
THROUGHPUT = "throughput.jsonl"
"""``Throughput`` lines."""
RATINGS = "ratings.jsonl"
"""``Ratings`` lines of a run with a rater."""
MEMORY = "memory.jsonl"
"""Episodes of a memory that grows during training."""
RESULTS = "eval.jsonl"
"""``EvalRow`` lines."""
TRIALS = "trials.jsonl"
"""``TrialRow`` lines of an evaluation with trials."""
FAILURES = "failures"
"""Folder of batches whose loss was not finite."""
ADAPTERS = "adapters"
"""Folder of the adapter that a policy's server has at present, during RLFT."""
TRACKERS = "trackers"
REPORT = "report.html"

POLICIES: Mapping[str, str] = {POLICY: "rlft", POLICY_SFT: "sft"}
"""Folders of trained policies, the last one first, with the stages that write them."""

PLAYER_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    VALIDATED,
    "configuration_*.py",
    "modeling_*.py",
    "tokenization_*.py",
)
"""Patterns of the files of a saved model and its tokenizer, as transformers and peft name them, and its validation."""

_TRAJECTORIES = "trajectories"
_ROWS = tuple(f"sft/{kind}.jsonl" for kind in ("reflector", "policy", "policy-no-reflection"))

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "gen-data": (DATASET, "data/*.jsonl", *_ROWS),
    "sft": ("sft/*-training.jsonl", BASE, BASE_REFLECTOR, REFLECTOR, POLICY_SFT),
    "rlft": (
        BASE,  # of a run without sft
        POLICY,
        REFLECTOR_RLFT,
        METRICS,
        THROUGHPUT,
        RATINGS,
        MEMORY,
        f"{_TRAJECTORIES}/rlft-*.jsonl",
        f"{_TRAJECTORIES}/advantages-*.jsonl",
    ),
    "eval": (RESULTS, TRIALS, f"{_TRAJECTORIES}/eval-*.jsonl"),
}
"""Products of each stage, as patterns: files and whole folders."""
MADE_AGAIN = (DATASET, *_ROWS, REFLECTOR, POLICY_SFT, POLICY, REFLECTOR_RLFT, MEMORY, RESULTS)
"""Final products of the stages, which later stages need; a stage makes a deleted one again."""


def saved_player(folder: Path, name: str) -> Path:
    """Return where a run folder or an exported agent holds a player: the policy of an export is the folder itself."""
    return folder if name == POLICY and (folder / AGENT).exists() else folder / name


def sft_rows_file(kind: str) -> str:
    """Return the name of the SFT rows of a kind: ``reflector``, ``policy`` or ``policy-no-reflection``."""
    return f"sft/{kind}.jsonl"


def sft_training_file(player: str) -> str:
    """Return the name of the ``SFTProgress`` lines of the ``reflector`` or the ``policy``, also of a single player."""
    return f"sft/{player}-training.jsonl"


def checkpoints_folder(training: str) -> str:
    """Return the checkpoint folder of a training: ``rlft``, ``sft-policy``, ``sft-reflector`` or ``sft-both``."""
    return f"checkpoints/{training}"


def unfinished_file(stage: str, rank: int = 0) -> str:
    """Return the name of the file with the results that a process of ``stage`` has so far."""
    return f"{stage}.partial{f'-{rank}' if rank else ''}.jsonl"


def unfinished_files(run: Path, stage: str) -> list[Path]:
    """Return the files with the results that ``stage`` has so far, of all processes."""
    return sorted(run.glob(f"{stage}.partial*.jsonl"))


def eval_episodes_file(policy: str, reflections: str, mode: str, split: str | None = None) -> str:
    """Return the name of a policy's evaluation episodes; ``split`` is given where the evaluation has several."""
    return f"{_TRAJECTORIES}/eval-{'-'.join([policy, reflections, mode, *([split] if split else [])])}.jsonl"


def memory_file(rank: int) -> str:
    """Return the name of the memory file of process ``rank`` in training; all processes hold the same memory."""
    return f"{checkpoints_folder('rlft')}/memory-{rank}.jsonl" if rank else MEMORY


def training_episodes_file(iteration: int) -> str:
    """Return the name of the file with the recorded episodes of an RLFT iteration."""
    return f"{_TRAJECTORIES}/rlft-{iteration:05d}.jsonl"


def advantages_file(iteration: int) -> str:
    """Return the name of the file with the advantages of the steps in ``training_episodes_file(iteration)``."""
    return f"{_TRAJECTORIES}/advantages-{iteration:05d}.jsonl"


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders in ``folder``, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{RECIPE}"))


def recorded_iterations(run: Path) -> list[int]:
    """Return the RLFT iterations whose episodes ``run`` has recorded, in order."""
    names = {path.name for path in (run / _TRAJECTORIES).glob("rlft-*.jsonl")}
    numbers = [int(digits) for name in names if (digits := name[len("rlft-") : -len(".jsonl")]).isdecimal()]
    return sorted(number for number in numbers if Path(training_episodes_file(number)).name in names)
