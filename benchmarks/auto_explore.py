"""Measure searches without learning in AutoExplore's company, on both kinds of test questions.

    python benchmarks/auto_explore.py            # about a minute; rewrites the table of benchmarks/results/learning.md
    python benchmarks/auto_explore.py --seeds 0  # one split of the files only, on stdout

Trained agents are measured by ``python benchmarks/learning.py explore``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from arms import ENVIRONMENTS, LEARNING, publish, spread, table
from walkers import Search, Texts, breadth_first, by_names, by_rank

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.config.spending import open_account
from reflectrl.core import NatLangEnv, Task
from reflectrl.core.run_files import DATASET
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import BY_CONTENT, read_dataset
from reflectrl.envs.auto_explore.files import readable_files
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Policy
from reflectrl.rollout import Episode
from reflectrl.rollout.loop import play_all
from reflectrl.seats.others import ExpertPolicy, RandomPolicy

SEEDS = (0, 1, 2, 3, 4)
"""Seeds of the published table, each of which splits the files differently."""


def texts_of(repositories: Mapping[str, Path]) -> Mapping[str, Texts]:
    """Return the texts of all files of each repository."""
    found = {name: readable_files(folder) for name, folder in repositories.items()}
    return {name: {**dict(files.readable), **files.others} for name, files in found.items()}


def walked(dataset: Path, env: NatLangEnv, split: str) -> Mapping[str, list[Search]]:
    """Play each task of a split once with every walker."""
    texts = texts_of(read_dataset(dataset).repositories)
    indexes = {name: BM25(texts[name]) for name in texts}
    walkers: Mapping[str, Callable[[Task, str], Search]] = {
        "breadth first, as many steps": lambda task, where: breadth_first(env, task, texts[where]),
        "names that stand in the question": lambda task, _: by_names(env, task),
        "to the first of BM25, which has read all files": lambda task, where: by_rank(env, task, indexes[where]),
    }
    tasks = env.split_tasks(split)
    return {title: [walk(task, str(task.options["repository"])) for task in tasks] for title, walk in walkers.items()}


def played(env: NatLangEnv, split: str, seed: int, policy: Policy) -> list[Search]:
    """Play each task of a split once with a policy that reads nothing but the menu."""
    tasks = env.split_tasks(split)
    episodes = [Episode(task, derive_seed(seed, "walkers", number)) for number, task in enumerate(tasks)]
    return [
        Search(each.success, len(each.turns), sum(act.startswith("cat ") for act in each.actions))
        for each in play_all([env], episodes, policy=policy, seats=(), layout=PromptFormat())
    ]


def overview(games: Mapping[str, Sequence[Sequence[Search]]]) -> dict[str, list[str]]:
    """Return the cells of each player: success over the seeds, steps, and files read."""
    rows = {}
    for title, by_seed in games.items():
        rates = [fmean(search.success for search in each) for each in by_seed]
        means = (
            fmean(getattr(search, what) for each in by_seed for search in each) for what in ("steps", "files_opened")
        )
        rows[title] = [spread(rates), *(f"{mean:.1f}" for mean in means)]
    return rows


def report(recipes: Mapping[int, Recipe], folder: Path) -> str:
    """Return the table of both kinds of questions; a dataset for the seed of each recipe is made in ``folder``."""
    for seed, recipe in recipes.items():
        build_dataset(recipe, folder / str(seed), open_account(recipe, folder / str(seed), None))
    envs = {seed: recipe_env(recipe, folder / str(seed), recipe.eval.env) for seed, recipe in recipes.items()}
    sides = []
    for split in ("test", BY_CONTENT):
        walks = [walked(folder / str(seed) / DATASET, env, split) for seed, env in envs.items()]
        sides.append(
            overview(
                {
                    "random": [played(env, split, seed, RandomPolicy()) for seed, env in envs.items()],
                    **{walker: [each[walker] for each in walks] for walker in walks[0]},
                    "expert": [played(env, split, seed, ExpertPolicy()) for seed, env in envs.items()],
                }
            )
        )
    heads = ("", "test: success %", "steps", "files", "by content: success %", "steps", "files")
    return f"{table(heads, [[title, *sides[0][title], *sides[1][title]] for title in sides[0]])}\n"


def main() -> None:
    """Play all searches, print the tables, and publish them if all seeds were played."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    seeds = tuple(parser.parse_args().seeds)
    recipes = {seed: load_recipe(ENVIRONMENTS["explore"].recipe, [f"seed={seed}"]) for seed in seeds}
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        text = report(recipes, Path(folder))
    print(text)
    if seeds == SEEDS:
        publish(LEARNING, "walkers", text)


if __name__ == "__main__":
    main()
