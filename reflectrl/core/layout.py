"""Layout of a run folder: its stages, and the names of everything in it relative to the folder.

runs/<name>/  recipe.yaml  stages.json  calls/  dataset/  data/  sft/  base/  reflector/  policy-sft/  policy/
              reflector-rlft/  checkpoints/  failures/  trackers/  trajectories/  metrics.jsonl  throughput.jsonl
              ratings.jsonl  memory.jsonl  eval.jsonl  trials.jsonl  report.html  compute.json

No other module spells these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

STAGES = ("gen-data", "sft", "rlft", "eval")
"""Stages in the order in which they run."""

RECIPE = "recipe.yaml"
AGENT = "agent.json"
"""Description of an exported agent, by which its folder is known."""
LEDGER = "stages.json"
"""Stages with their inputs and the digests of what they wrote."""
COMPUTE = "compute.json"
"""Precision of each role's model, where the recipe leaves it open."""
LOCK = ".lock"
"""Held by the process that works in the folder; it stays there afterwards."""
CALLS = "calls"
"""Folder with the journal of each role that asks a chat endpoint."""
DATASET = "dataset"
"""Folder of the questions and repositories of a recipe with a dataset section."""
DEMONSTRATIONS = "data/demonstrations.jsonl"
TEACHER = "data/teacher.jsonl"
"""Episodes of the teacher."""
NEGATIVES = "data/negatives.jsonl"
"""Steps that follow a mistake."""
BASE = "base"
BASE_REFLECTOR = "base-reflector"
"""Base of a reflector that has another one than the policy."""
REFLECTOR = "reflector"
REFLECTOR_RLFT = "reflector-rlft"
"""Reflector that was trained along with the policy."""
POLICY_SFT = "policy-sft"
POLICY = "policy"
METRICS = "metrics.jsonl"
"""``Iteration`` lines."""
THROUGHPUT = "throughput.jsonl"
"""``Throughput`` lines."""
RATINGS = "ratings.jsonl"
"""``Ratings`` lines of a run with a rater."""
MEMORY = "memory.jsonl"
"""Episodes of a memory that has grown in training."""
RESULTS = "eval.jsonl"
"""``EvalRow`` lines."""
TRIALS = "trials.jsonl"
"""``TrialRow`` lines of an evaluation with trials."""
FAILURES = "failures"
"""Folder of batches whose loss was not finite."""
TRACKERS = "trackers"
REPORT = "report.html"

POLICIES: Mapping[str, str] = {POLICY: "rlft", POLICY_SFT: "sft"}
"""Folders of trained policies, the last first, with the stages that make them."""

_TRAJECTORIES = "trajectories"

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "gen-data": (f"{DATASET}/*.jsonl", f"{DATASET}/repositories/*", "data/*.jsonl", "sft/*.jsonl"),
    "sft": (COMPUTE, *(f"{folder}/*" for folder in (BASE, BASE_REFLECTOR, REFLECTOR, POLICY_SFT))),
    "rlft": (
        f"{BASE}/*",  # of a run without sft
        f"{POLICY}/*",
        f"{REFLECTOR_RLFT}/*",
        METRICS,
        THROUGHPUT,
        RATINGS,
        MEMORY,
        f"{_TRAJECTORIES}/rlft-*.jsonl",
        f"{_TRAJECTORIES}/advantages-*.jsonl",
    ),
    "eval": (RESULTS, TRIALS, f"{_TRAJECTORIES}/eval-*.jsonl"),
}
"""Files that each stage leaves for others to read; a folder that is named here has one digest for all that is in it."""
MADE_AGAIN = (DATASET, "sft/*.jsonl", REFLECTOR, POLICY_SFT, POLICY, REFLECTOR_RLFT, MEMORY, RESULTS)
"""Last products of the stages, without which later ones cannot start; a stage repeats the one that was deleted."""
LOOSE_FOLDERS = ("data", "sft", _TRAJECTORIES)
"""Folders whose files are read one by one."""


def sft_rows_file(kind: str) -> str:
    """Name of the SFT rows of a kind: ``reflector``, ``policy`` or ``policy-no-reflection``."""
    return f"sft/{kind}.jsonl"


def checkpoints_folder(training: str) -> str:
    """Name of the folder with the checkpoints of ``rlft``, ``sft-policy``, ``sft-reflector`` or ``sft-both``."""
    return f"checkpoints/{training}"


def unfinished_file(stage: str) -> str:
    """Name of the file in which ``stage`` keeps what it has done so far."""
    return f"{stage}.partial.jsonl"


def eval_episodes_file(policy: str, reflections: str, mode: str, split: str | None = None) -> str:
    """Name of the evaluated episodes of a policy; ``split`` is given where the evaluation has several."""
    return f"{_TRAJECTORIES}/eval-{'-'.join([policy, reflections, mode, *([split] if split else [])])}.jsonl"


def memory_file(rank: int) -> str:
    """Name of the memory that a process of a launch keeps in training; all hold the same."""
    return f"{checkpoints_folder('rlft')}/memory-{rank}.jsonl" if rank else MEMORY


def training_episodes_file(iteration: int) -> str:
    """Name of the episodes recorded of an iteration of RLFT."""
    return f"{_TRAJECTORIES}/rlft-{iteration:05d}.jsonl"


def advantages_file(iteration: int) -> str:
    """Name of the advantages of the steps of ``training_episodes``."""
    return f"{_TRAJECTORIES}/advantages-{iteration:05d}.jsonl"


def recorded_iterations(run: Path) -> list[int]:
    """Iterations of RLFT of which ``run`` has recorded episodes, in order."""
    names = {path.name for path in (run / _TRAJECTORIES).glob("rlft-*.jsonl")}
    numbers = [int(digits) for name in names if (digits := name[len("rlft-") : -len(".jsonl")]).isdecimal()]
    return sorted(number for number in numbers if Path(training_episodes_file(number)).name in names)
