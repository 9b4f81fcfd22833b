"""Train TRL's GRPO and this library in the same environment, from the same untrained model, for equal processor time.

    python benchmarks/peers.py line --out FOLDER                            # all sides, seeds 0 to 2
    python benchmarks/peers.py taxi trl text --seconds 240 --out FOLDER     # some sides

``trl`` is GRPOTrainer with a rollout_func, in which an episode is one sequence of states and written actions; the other
sides are this library's, by how the policy answers, without reflections; ``group`` writes as ``text`` does, with GRPO's
advantages. This library fine-tunes for 400 steps, TRL for ``--taught`` seconds, until it succeeds as often; then RL has
``--seconds``, all of one thread's processor time. The learning rate of RL is the better of two for each side, by
sampled success on the validation split with seed 100. A finished run is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from arms import HERE, ONE_THREAD, table

from reflectrl.core import InvalidInput
from reflectrl.core.run_files import RESULTS
from reflectrl.pipeline.run import Run
from reflectrl.pipeline.sweep import read_seeds
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import episodes_file, read_results

RECIPES: Mapping[str, str] = {"line": "number_line/nano", "taxi": "dangerous_taxi/nano"}
SIDES = ("trl", "enumerated", "thought_choice", "json", "text", "group")
RATES = (3e-4, 1e-3)
TUNING_SEED = 100
LENGTH = 1024
"""Maximum number of tokens of a prompt, and of an episode in TRL."""
EPISODES = 200
PROBED = (1, 5)
"""Numbers of iterations that are timed before a run, to know how many fit."""


@dataclass(frozen=True)
class Score:
    """What a run reached: success on the test split, and the cost."""

    sft: float
    """Sampled, after fine-tuning."""
    sampled: float
    """Sampled, after RL."""
    greedy: float
    validation: float
    """Sampled on the validation split, after RL."""
    unparsed: float
    """Share of the steps of the sampled test episodes whose text named no legal action."""
    sft_seconds: float
    """Processor seconds of fine-tuning."""
    seconds: float
    """Processor seconds of RL."""
    steps: int
    """Steps of the environment in RL."""


@dataclass(frozen=True)
class Trial:
    """One run of a side."""

    env: str
    side: str
    seed: int
    rate: float
    seconds: float
    out: Path

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.out / f"{self.env}-{self.side}-{self.rate:g}-{self.seed}"

    def score(self, sft_seconds: float = 0.0) -> Score:
        """Return what the run reached, after running it as a process with one thread if it is not finished."""
        result = self.folder / "score.json"
        asked = json.dumps({**asdict(self), "out": str(self.out), "sft_seconds": sft_seconds})
        if self.folder.is_dir() and (self.folder / "asked.json").read_text() != asked:
            raise InvalidInput(f"{self.folder} holds a run with other times; choose another --out.")
        if not result.is_file():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            (self.folder / "asked.json").write_text(asked)
            with (self.folder / "log").open("wb") as log:
                environment = {**os.environ, **ONE_THREAD, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
                command = [sys.executable, str(HERE / "peers.py"), "--one", asked]
                subprocess.run(command, stdout=log, stderr=log, env=environment, check=True)
        return Score(**json.loads(result.read_text()))

    def changes(self) -> dict[str, object]:
        """Return the changes to the recipe for a side of this library."""
        mode = "text" if self.side == "group" else self.side
        changes: dict[str, object] = {
            "seed": self.seed,
            "model.max_length": LENGTH,
            "players.reflector.player": "none",
            "prompt.action_mode": mode,
            "sft.policy.label_smoothing": 0.0,
            "sft.policy.steps": 400,
            "sft.policy.max_rows": None,
            "rlft.learning_rate": self.rate,
            "rlft.validation": None,
            "rlft.keep": "last",
            "eval.split": ["test", "validation"],
            "eval.policies": ["sft", "rlft"],
            "eval.episodes": EPISODES,
            "eval.controls": [],
        }
        if mode != "enumerated":
            changes["players.policy.max_new_tokens"] = 8 if mode == "text" else 48
        if self.side == "group":
            changes |= {"rlft.advantage": {"kind": "group"}, "rlft.gamma": 1.0, "rlft.episodes_per_task": 8}
            changes["rlft.replay"] = None
        return changes

    def run(self, sft_seconds: float) -> Score:
        """Train and evaluate in this process."""
        if self.side == "trl":
            from peers_trl import train

            return Score(**train(RECIPES[self.env], self.seed, self.rate, sft_seconds, self.seconds, self.folder))
        path, probe, changes = self.folder / "run", self.folder / "probe", self.changes()
        Run(path, RECIPES[self.env], changes).gen_data()
        start = time.process_time()
        Run(path, RECIPES[self.env], changes).sft()
        sft_seconds = time.process_time() - start
        key, spent = "rlft.lessons.0.iterations", []
        for tried in PROBED:  # the difference is without what starting takes
            shutil.rmtree(probe, ignore_errors=True)
            shutil.copytree(path, probe)
            start = time.process_time()
            Run(probe, RECIPES[self.env], {**changes, key: tried}).rlft()
            spent.append(time.process_time() - start)
        iterations = max(round(self.seconds * (PROBED[1] - PROBED[0]) / (spent[1] - spent[0])), 1)
        run = Run(path, RECIPES[self.env], {**changes, key: iterations})
        start = time.process_time()
        steps = run.rlft()[-1].env_steps
        taken = time.process_time() - start
        run.evaluate()
        rows = {(row.policy, row.mode, row.split): row for row in read_results(path / RESULTS) if not row.group}
        test = rows["rlft", "sampled", "test"]
        _, played = read_trajectories(path / episodes_file(test, splits=2))
        return Score(
            sft=rows["sft", "sampled", "test"].metrics.success,
            sampled=test.metrics.success,
            greedy=rows["rlft", "greedy", "test"].metrics.success,
            validation=rows["rlft", "sampled", "validation"].metrics.success,
            unparsed=fmean(not turn.decision.choice.legal for each in played for turn in each.turns),
            sft_seconds=sft_seconds,
            seconds=taken,
            steps=steps,
        )


def compare(
    env: str, sides: Sequence[str], seeds: Sequence[int], seconds: float, taught: float, out: Path
) -> list[list[str]]:
    """Return the rows of the table: each side with the best of its learning rates."""
    rows = []
    for side in sides:
        tried = {rate: Trial(env, side, TUNING_SEED, rate, seconds, out).score(taught).validation for rate in RATES}
        best = max(RATES, key=lambda rate: tried[rate])
        scores = [Trial(env, side, seed, best, seconds, out).score(taught) for seed in seeds]
        spread = [
            f"{fmean(getattr(each, name) for each in scores):.0%} ({min(getattr(each, name) for each in scores):.0%})"
            for name in ("sft", "sampled", "greedy")
        ]
        unparsed = f"{fmean(each.unparsed for each in scores):.1%}"
        fine_tuned = f"{fmean(each.sft_seconds for each in scores):.0f}"
        cost = f"{1000 * fmean(each.seconds / each.steps for each in scores):.1f}"
        steps = f"{fmean(each.steps for each in scores):,.0f}"
        rows.append([side, f"{best:g}", fine_tuned, *spread, unparsed, steps, cost])
    return rows


def main() -> None:
    """Run what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", choices=RECIPES, default="line")
    parser.add_argument("sides", nargs="*", help=f"some of {', '.join(SIDES)}; all if absent")
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds of RL")
    parser.add_argument("--taught", type=float, default=110.0, help="processor seconds of TRL's fine-tuning")
    parser.add_argument("--out", type=Path, default=HERE / "runs" / "peers")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        asked = json.loads(given.one)
        taught = asked.pop("sft_seconds")
        trial = Trial(**{**asked, "out": Path(asked["out"])})
        score = trial.run(taught)
        (trial.folder / "score.json").write_text(json.dumps(asdict(score)))
        return
    if unknown := [side for side in given.sides if side not in SIDES]:
        parser.error(f"{unknown[0]!r} is not one of the sides; choose from {', '.join(SIDES)}")
    seeds = read_seeds(given.seeds)
    head = ["side", "rate", "SFT, s", "SFT (worst)", "sampled", "greedy", "unparsed", "steps", "ms a step"]
    print(f"{RECIPES[given.env]}, {len(seeds)} seeds, {given.seconds:g} processor seconds of RL")
    print(table(head, compare(given.env, given.sides or SIDES, seeds, given.seconds, given.taught, given.out)))


if __name__ == "__main__":
    main()
