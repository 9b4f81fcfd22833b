"""Measure which files are found in packages outside training, by questions in other words than the files'.

    python benchmarks/explorer.py                              # without agents; fetches 47 packages, about 10 minutes
    python benchmarks/explorer.py --dataset FOLDER             # the same on a dataset that was written already
    python benchmarks/explorer.py --runs runs/smollm2-explorer # also agents of runs, on the first run's dataset
    python benchmarks/explorer.py --most 105                   # every fourth question, for slow agents
    python benchmarks/explorer.py --keep FOLDER                # writes the dataset, so that it is fetched once

All players play each question once, with the commands of ``smollm2/explorer`` and one thread. Walkers that neither
learn nor search have only the commands for folders and files.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from arms import LEARNING, publish, table
from walkers import breadth_first, by_names, by_rank

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.spending import open_account
from reflectrl.core import Task, Trajectory
from reflectrl.core.run_files import DATASET
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.ambiguity import content_words
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import UNSEEN, read_dataset
from reflectrl.envs.auto_explore.sandbox import Sandbox
from reflectrl.envs.auto_explore.search import ALL, VERB
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.team import Team
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Policy
from reflectrl.report.series import mean_interval
from reflectrl.rollout import Episode
from reflectrl.rollout.loop import play_all
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.table import Seat

RECIPE = "smollm2/explorer"
READ = ("cat ", "open ", "head ")
"""First words of the commands that read a file."""
SEARCHES = {
    "search tool: the rarest word, first file": 1,
    "search tool: three words, first file": 3,
    "search tool: all words, first file": 0,
}
"""Number of searches of each player that names the first result; 0 is one search for all words."""
POLICIES = {"before training": "base", "SFT": "policy-sft", "**SFT + RLFT (Reflect-RL)**": "policy"}
"""Policies of a run by their titles in the table."""


@dataclass(frozen=True)
class Found:
    """Result of one question."""

    success: bool
    steps: int | None
    """Number of steps; ``None`` for a player that takes none."""
    files: float
    """Number of files opened."""
    read: float
    """Bytes of files that were shown to the player, or read by its walk; those that an index read do not count."""


Line = tuple[str, Sequence[Found]]
"""A player's title and its results."""


@dataclass
class Packages:
    """The questions, and the packages that they ask about."""

    dataset: Path
    recipe: Recipe
    most: int | None
    """Maximum number of questions to play, evenly from all packages; ``None`` for all."""

    def __post_init__(self) -> None:
        self.env = self.explorer(self.recipe)
        self.plain = AutoExplore(**{**self._options(self.recipe), "tools": ()})
        tasks: list[Task] = list(self.env.split_tasks(UNSEEN))
        self.tasks = tasks[:: math.ceil(len(tasks) / self.most)] if self.most else tasks
        repositories = read_dataset(self.dataset).repositories
        self.texts: dict[str, dict[str, str]] = {}
        for name in {str(task.options["repository"]) for task in self.tasks}:
            with Sandbox(repositories[name]) as copy:
                self.texts[name] = copy.texts()
        self.indexes = {name: BM25(texts) for name, texts in self.texts.items()}

    def explorer(self, recipe: Recipe) -> AutoExplore:
        """Return a new environment with the options of a recipe."""
        return AutoExplore(**self._options(recipe))

    def _options(self, recipe: Recipe) -> dict[str, object]:
        return {**recipe.env.options, **recipe.eval.env, "dataset": str(self.dataset)}

    def walked(self, title: str, walk: Callable[[Task, str], Found]) -> Line:
        """Play each question once with a search that reads no prompts."""
        return title, [walk(task, str(task.options["repository"])) for task in self.tasks]

    def played(self, title: str, env: AutoExplore, policy: Policy, seats: Sequence[Seat], layout: PromptFormat) -> Line:
        """Play each question once with players that read prompts."""
        episodes = [Episode(task, derive_seed(0, "explorer", number)) for number, task in enumerate(self.tasks)]
        trajectories = play_all([env], episodes, policy=policy, seats=seats, layout=layout)
        return title, [outcome(trajectory) for trajectory in trajectories]


def outcome(trajectory: Trajectory) -> Found:
    """Return the result of an episode."""
    texts = [turn.observation.text for turn in trajectory.turns]
    return Found(trajectory.success, len(trajectory.turns), opened(trajectory.actions), shown(texts))


def opened(actions: Iterable[str]) -> int:
    """Return the number of different files that were read, in full or in part."""
    return len({action.partition(" ")[2] for action in actions if action.startswith(READ)})


def shown(texts: Sequence[str]) -> int:
    """Return the number of bytes of files in an episode's texts; a line of search results counts once."""
    lines, results = set(), 0
    for text in texts:
        for line in text.splitlines():
            if line.startswith("Result: "):
                results += len(line.removeprefix("Result: ").encode())
            elif line.startswith("/"):
                lines.add(line)
    return results + sum(len(line.encode()) for line in lines)


def without_training(packages: Packages) -> Iterator[Line]:
    """Play all questions with each player that does not learn."""
    plain, env = packages.plain, packages.env

    def first(task: Task, where: str) -> Found:
        best = packages.indexes[where].ranking(content_words(str(task.options["question"])))[0]
        return Found(best == task.options["file"], None, 0, 0)

    def among(task: Task, where: str, count: int = 5) -> Found:
        ranking = packages.indexes[where].ranking(content_words(str(task.options["question"])))
        return Found(task.options["file"] in ranking[:count], None, 0, 0)

    def guided(task: Task, where: str) -> Found:
        done = by_rank(plain, task, packages.indexes[where])
        return Found(done.success, done.steps, 0, 0)

    def breadth(task: Task, where: str) -> Found:
        texts = packages.texts[where]
        done = breadth_first(plain, task, texts)
        mean = fmean(len(text.encode()) for text in texts.values())
        return Found(done.success, done.steps, done.files_opened, done.files_opened * mean)

    def names(task: Task, _: str) -> Found:
        done = by_names(plain, task)
        return Found(done.success, done.steps, done.files_opened, 0)

    layout = PromptFormat()
    yield packages.played("random", env, RandomPolicy(), (), layout)
    yield packages.walked("names that stand in the question", names)
    yield packages.walked("breadth first", breadth)
    yield packages.walked("BM25 of the whole question, top 1", first)
    yield packages.walked("BM25 of the whole question, top 5", among)
    yield packages.walked("walker to BM25's top 1", guided)
    for title, searches in SEARCHES.items():
        yield packages.walked(title, lambda task, _, searches=searches: searched(env, task, searches))
    yield packages.played("expert", env, ExpertPolicy(), (), layout)


def searched(env: AutoExplore, task: Task, searches: int) -> Found:
    """Search for the rarest words one after the other, or (with 0) for all at once, and name the first file found."""
    env.reset(seed=0, options={"task": task})
    texts, success = [], False
    for number in range(max(1, searches) + 1):
        menu = env.observation.actions
        left = [action for action in menu if action.startswith(VERB) and (action == VERB + ALL) == (searches == 0)]
        names = [action for action in menu if action.startswith("id ")]
        choices = left if number < max(1, searches) and left else names
        if not choices:  # no word of the question occurs in any file
            break
        _, _, terminated, truncated, info = env.step(choices[0])
        success = bool(info["success"])
        texts.append(env.observation.text)
        if terminated or truncated:
            break
    return Found(success, env.steps, 0, shown(texts))


def with_training(packages: Packages, runs: Sequence[Path]) -> Iterator[Line]:
    """Play all questions with the most probable commands of run folders' policies, and once before any training."""
    for run in runs:
        recipe = load_recipe(str(run / "recipe.yaml"))
        for title, name in POLICIES.items():
            if run != runs[0] if name == "base" else not (run / name).is_dir():
                continue
            players = Team(recipe, RunFolder(run))  # of each policy its own: the reflector keeps what it wrote
            lm, policy = players.lm_policy(name)
            seats = () if name == "base" else players.seats(lm, name)
            yield packages.played(
                f"{recipe.name} (seed {recipe.seed}): {title}",
                packages.explorer(recipe),
                policy(True),
                seats,
                players.layout,
            )


def cells(line: Line) -> list[str]:
    """Return the cells of a row."""
    title, found = line
    mean, half = mean_interval([float(one.success) for one in found])
    steps = [one.steps for one in found if one.steps is not None]
    return [
        title,
        f"**{100 * mean:.0f}**" + (f" ± {100 * half:.0f}" if half is not None else ""),
        f"{fmean(steps):.1f}" if steps else "-",
        f"{fmean(one.files for one in found):.1f}",
        f"{fmean(one.read for one in found):,.0f}",
    ]


def report(packages: Packages, lines: Iterable[Line]) -> str:
    """Print what is asked, and return the table."""
    asked = Counter(str(task.options["repository"]) for task in packages.tasks)
    print(f"questions: {', '.join(f'{name} {count}' for name, count in sorted(asked.items()))}\n")
    return f"{table(('', 'success %', 'steps', 'files opened', 'bytes read'), [cells(line) for line in lines])}\n"


@contextmanager
def dataset_of(arguments: argparse.Namespace, recipe: Recipe) -> Iterator[Path]:
    """Yield the folder of the dataset: the given one, the first run's, or a new one."""
    if arguments.dataset or arguments.runs:
        yield arguments.dataset or arguments.runs[0] / DATASET
        return
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        folder = arguments.keep or Path(place)
        build_dataset(recipe, folder, open_account(recipe, folder, None))
        yield folder / DATASET


def main() -> None:
    """Play all players, print the table, and publish it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="run folders whose agents play")
    parser.add_argument("--dataset", type=Path, help="folder of a dataset with the split 'unseen'")
    parser.add_argument("--keep", type=Path, help="folder to write the dataset into")
    parser.add_argument("--most", type=int, help="maximum number of questions to play")
    parser.add_argument("--publish", action="store_true", help="rewrite the table of benchmarks/results/learning.md")
    arguments = parser.parse_args()
    recipe = load_recipe(RECIPE)
    with dataset_of(arguments, recipe) as dataset:
        packages = Packages(dataset, recipe, arguments.most)
        lines = [*without_training(packages), *with_training(packages, arguments.runs)]
        text = report(packages, lines)
    print(text)
    if arguments.publish:
        publish(LEARNING, "explorer", text)


if __name__ == "__main__":
    main()
