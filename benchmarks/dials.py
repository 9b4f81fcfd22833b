"""Turn the two dials of the safe, and measure when reflections pay: how far an action is computed, and remembered.

    python benchmarks/dials.py --out /tmp/dials                # everything, seeds 0 to 2: hours
    python benchmarks/dials.py turns --seeds 0 --out /tmp/dials

``turns`` is how many numbers have to be added, one after the other, from the state to the action; ``wheels`` is how
many numbers a note holds that only the first state shows, three bits each. ``kind`` tries two predictions on the
puzzles of ``puzzles.py``: one by the steps of computing, written down before, and one by what SFT alone tells. Policies
without reflections learn from 12,000 rows, those that read some from 40. A finished run is not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from arms import HERE, ONE_THREAD, table
from learning import sitting
from puzzles import PREDICTED
from transformers import AutoTokenizer

from reflectrl.core.run_files import eval_episodes_file
from reflectrl.pipeline.sweep import PlannedRun, plan_runs, read_seeds
from reflectrl.report.compare import Rows
from reflectrl.report.gain import Interval, change_over_runs
from reflectrl.report.runs import RunData, read_runs
from reflectrl.rollout.iteration import best_check
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.turn import policy_views

LEARNED = (
    *("data.samples=12000", "sft.policy.max_rows=null", "sft.policy.steps=2500", "sft.policy.learning_rate=1e-3"),
    *("sft.policy.batch_size=32", "sft.policy.micro_batch_size=32", "sft.policy.label_smoothing=0"),
)
"""SFT of a policy without reflections: all that it can learn."""
WHOLE = (
    *("model.max_length=320", "players.reflector.max_new_tokens=64", "players.policy.max_new_tokens=64"),
    "eval.policies=[sft,rlft]",
)
"""No prompt and no text is cut at any setting of a dial."""
LAYERS = "model.builtin.layers"
REFLECTOR = "reflector_model={builtin: {layers: 2, width: 64, heads: 4, vocabulary: 384, pieces: words}}"
"""The reflector has two layers whatever the policy has."""
DIALS: dict[str, tuple[str, Sequence[int | str]]] = {
    "turns": ("safe/nano", (1, 2, 3)),
    "wheels": ("safe/note", (2, 4, 8)),
    "kind": ("safe/nano", tuple(PREDICTED)),
}
"""Recipe and settings of each dial."""
ARMS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "turns": {
        **{f"none, {count}-layer policy": ("no_reflection", (f"{LAYERS}={count}", *LEARNED)) for count in (1, 2, 4)},
        "own thought, 2-layer policy": ("own_thought", ("data.samples=12000",)),
        **{f"reflections, {count}-layer policy": ("", (f"{LAYERS}={count}", REFLECTOR)) for count in (1, 2)},
    },
    "wheels": {
        "none": ("no_reflection", LEARNED),
        "reflections, not carried": ("forgetful", ()),
        "past states": ("transitions", LEARNED),
        "carried reflections": ("", ()),
    },
    "kind": {
        "none": ("no_reflection", ("env.name=puzzles:Puzzles", *LEARNED)),
        "reflections": ("", ("env.name=puzzles:Puzzles",)),
    },
}
"""Arms of each dial: an arm of its recipe, and overrides."""


def plan(dial: str, seeds: Sequence[int], out: Path) -> list[PlannedRun]:
    """Return the runs of a dial, seed by seed."""
    recipe, settings = DIALS[dial]
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    planned = [
        run
        for setting in settings
        for number, (arm, overrides) in enumerate(ARMS[dial].values())
        for run in plan_runs(
            out,
            f"{dial}{setting}-{number}",
            f"{recipe}_{arm}" if arm else recipe,
            seeds,
            overrides=(_turned(dial, setting), *WHOLE, *overrides),
            environment={**ONE_THREAD, "PYTHONPATH": paths},
        )
    ]
    return sorted(planned, key=lambda run: int(run.folder.name.rpartition("seed")[2]))


def _turned(dial: str, setting: int | str) -> str:
    return f"env.options={{kind: {setting}}}" if dial == "kind" else f"env.options.{dial}={setting}"


def report(dial: str, runs: Sequence[RunData]) -> str:
    """Return the table of a dial: a row an arm, a column a setting; mean success over seeds, and the worst run.

    For ``wheels``, cells end with the tokens that the policy reads a step, menu included.
    """
    _, settings = DIALS[dial]
    of = {
        (each, number): [run for run in runs if run.name.startswith(f"{dial}{each}-{number}-")]
        for each in settings
        for number in range(len(ARMS[dial]))
    }
    lines = [[title, *(_cell(dial, of[each, number]) for each in settings)] for number, title in enumerate(ARMS[dial])]
    said = table((dial, *map(str, settings)), lines)
    return (
        said if dial != "kind" else f"{said}\n\n{_hits({str(each): (of[each, 0], of[each, 1]) for each in settings})}"
    )


def _hits(sides: Mapping[str, tuple[Sequence[RunData], Sequence[RunData]]]) -> str:
    """Return what reflections were worth in each kind, and how often that was predicted; runs without, and with."""
    lines, hits, counted = [], [0, 0], 0
    for kind, (without, having) in sides.items():
        if not without or len(without) != len(having):
            continue
        before, after = (
            [Interval.of(Rows("rlft").of(run)["rlft"].metrics) for run in runs] for runs in (without, having)
        )
        gain = change_over_runs(after, before)
        words = fmean(_kept_accuracy("reflector", run) for run in having)
        actions = fmean(_kept_accuracy("policy", run) for run in without)
        counted += gain.is_clear
        for number, pays in enumerate((PREDICTED[kind], words > actions)):
            hits[number] += gain.is_clear and pays == (gain.mean > 0)
        lines.append(
            [kind, "pay" if PREDICTED[kind] else "do not", f"{100 * words:.0f}", f"{100 * actions:.0f}", gain.points]
        )
    rows = table(("kind", "by steps, they", "words right", "actions right", "reflections are worth"), lines)
    return (
        f"{rows}\n\nOf the {counted} whose interval excludes 0, the number of dependent steps tells {hits[0]} signs; "
        f"whether in held-out rows of SFT more words are right than actions without words tells {hits[1]}."
    )


def _kept_accuracy(player: str, run: RunData) -> float:
    """Return the held-out accuracy of the weights that SFT kept, as it prints it."""
    checks = run.sft[player]
    return checks[best_check({player: checks})].accuracy


def _cell(dial: str, runs: Sequence[RunData]) -> str:
    reached = Rows("rlft").successes(runs) if runs else []
    if not reached:
        return "-"
    read = f", {fmean(map(prompt_tokens, runs)):.0f}" if dial == "wheels" else ""
    return f"{100 * fmean(reached):.0f} ({100 * min(reached):.0f}){read}"


def prompt_tokens(run: RunData) -> float:
    """Return the mean number of tokens that the trained policy reads a step."""
    tokenizer = AutoTokenizer.from_pretrained(run.path / "base")
    header, episodes = read_trajectories(run.path / eval_episodes_file("rlft", run.reflector, "sampled"))
    views = (each for episode in episodes for each in policy_views(episode, header.prompt))
    return fmean(len(tokenizer(each.prompt.text).input_ids) for each in views)


def main() -> int:
    """Run what is missing, and print the tables of all finished runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dial", nargs="*", choices=(*DIALS, []), help="of turns, wheels and kind; all by default")
    parser.add_argument("--seeds", default="0-2", help="such as 0-2 or 0,5 (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run folders")
    given = parser.parse_args()
    dials = given.dial or list(DIALS)
    done, _, code = sitting(
        lambda: [run for dial in dials for run in plan(dial, read_seeds(given.seeds), given.out)], given.jobs
    )
    runs = read_runs(done)
    print("\n\n".join(report(dial, runs) for dial in dials))
    return code


if __name__ == "__main__":
    sys.exit(main())
