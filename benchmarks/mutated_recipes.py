"""Check that the command line rejects each broken recipe with a sentence, never with a traceback.

The shipped recipes are mutated, value by value and as text, and given to the real `rlft` command in this process, and a
few also in separate processes. For an accepted recipe, the command ends because the data of gen-data are missing.

    python benchmarks/mutated_recipes.py --count 1000 --seed 0
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from arms import RELIABILITY, publish, table
from mutations import mutant, shipped

from reflectrl.cli.stage_commands import rlft
from reflectrl.core import InvalidInput


def verdict(path: Path, runs: Path) -> str:
    """Return the outcome of `reflectrl rlft` for a recipe: accepted, refused or a traceback, which is printed."""
    try:
        rlft(recipe=str(path), runs=runs, run=None, profile=False, overrides=[])
    except InvalidInput as error:
        return "accepted" if "needs 'gen-data'" in str(error) else "refused with a sentence"
    except Exception:  # noqa: BLE001 - any other exception is counted as a traceback
        print(f"{path}\n{traceback.format_exc()}", file=sys.stderr)
    return "tracebacks"


def _in_process_of_its_own(path: Path, runs: Path) -> str:
    command = (sys.executable, "-m", "reflectrl", "rlft", "--recipe", str(path), "--runs", str(runs))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 2 or "Traceback" in done.stderr or not done.stderr.startswith("error: "):
        print(f"{path}\nexit code {done.returncode}\n{done.stderr}", file=sys.stderr)
        return "tracebacks"
    return "accepted" if "needs 'gen-data'" in done.stderr else "refused with a sentence"


def main() -> int:
    """Mutate recipes, run the command on each, print the counts, and publish those of the default settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=20, help="so many of them in processes of their own as well")
    parser.add_argument("--keep", type=Path, help="folder for the mutated recipes")
    given = parser.parse_args()
    recipes = shipped()
    in_one, apart = "the command's function, in one process", "`python -m reflectrl`, one process each"
    counts: dict[str, Counter[str]] = {in_one: Counter(), apart: Counter()}
    with tempfile.TemporaryDirectory() as place:
        folder = given.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(given.count):
            rng = random.Random(f"{given.seed} {number}")
            path = folder / f"mutated-{number}.yaml"
            path.write_bytes(mutant(rng, rng.choice(recipes)).encode("utf-8", "surrogatepass"))
            counts[in_one][verdict(path, Path(place, "runs"))] += 1
            if number % max(1, given.count // given.processes) == 0:
                counts[apart][_in_process_of_its_own(path, Path(place, "runs"))] += 1
    columns = ("accepted", "refused with a sentence", "tracebacks")
    rows = [[how, *(f"{each:,}" for each in (n.total(), *(n[it] for it in columns)))] for how, n in counts.items()]
    print(found := table(("how", "recipes", *columns), rows))
    if sys.argv[1:] == []:
        publish(RELIABILITY, "mutated_recipes", f"{found}\n")
    return int(any(each["tracebacks"] for each in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
