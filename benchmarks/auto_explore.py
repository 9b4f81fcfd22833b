"""Measure searches without learning in AutoExplore's company, on both kinds of test questions.

    python benchmarks/auto_explore.py            # about a minute; rewrites the table of benchmarks/README.md
    python benchmarks/auto_explore.py --seeds 0  # one split of the files only, on stdout

Trained agents are measured by ``python benchmarks/learning.py explore``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from arms import ENVIRONMENTS, HERE, made_by, publish, spread, table
from walkers import Search, Texts, breadth_first, by_names, by_rank

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.endpoint import open_account
from reflectrl.config.environment import recipe_env
from reflectrl.core import NatLangEnv, Task
from reflectrl.core.layout import DATASET
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import BY_CONTENT, read_dataset
from reflectrl.envs.auto_explore.files import readable_files
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Policy
from reflectrl.rollout import Episode
from reflectrl.rollout.evaluate import play_all
from reflectrl.seats.policy import ExpertPolicy, RandomPolicy

SEEDS = (0, 1, 2, 3, 4)
"""Seeds of the published table, each of which splits the files differently."""
Game = tuple[int, Search]
"""The depth of the file that answers the question, and the result of the search."""


def depth(task: Task) -> int:
    """Return the depth of the file that answers a task."""
    return int(task.id.partition("/")[0].removeprefix("d"))


def texts_of(repositories: Mapping[str, Path]) -> Mapping[str, Texts]:
    """Return the texts of all files of each repository."""
    found = {name: readable_files(folder) for name, folder in repositories.items()}
    return {name: {**dict(files.readable), **files.others} for name, files in found.items()}


def walked(dataset: Path, env: NatLangEnv, split: str) -> Mapping[str, list[Game]]:
    """Play each task of a split once with every walker."""
    texts = texts_of(read_dataset(dataset).repositories)
    indexes = {name: BM25(texts[name]) for name in texts}
    walkers: Mapping[str, Callable[[Task, str], Search]] = {
        "breadth first, as many steps": lambda task, where: breadth_first(env, task, texts[where]),
        "names that stand in the question": lambda task, _: by_names(env, task),
        "to the first of BM25, which has read all files": lambda task, where: by_rank(env, task, indexes[where]),
    }
    tasks = env.split_tasks(split)
    return {
        title: [(depth(task), walk(task, str(task.options["repository"]))) for task in tasks]
        for title, walk in walkers.items()
    }


def played(env: NatLangEnv, split: str, seed: int, policy: Policy) -> list[Game]:
    """Play each task of a split once with a policy that reads nothing but the menu."""
    tasks = env.split_tasks(split)
    episodes = [Episode(task, derive_seed(seed, "walkers", number)) for number, task in enumerate(tasks)]
    return [
        (depth(each.task), Search(each.success, len(each.turns), sum(act.startswith("cat ") for act in each.actions)))
        for each in play_all([env], episodes, policy=policy, seats=(), layout=PromptFormat())
    ]


def success(games: Sequence[Game], at: int | None = None) -> float:
    """Return the success rate over all depths, or at one depth."""
    return fmean(search.success for deep, search in games if at in (None, deep))


def overview(games: Mapping[str, Sequence[Sequence[Game]]], seeds: Sequence[int]) -> str:
    """Return the table of all players: success by seed, overall and at each depth, steps, and files read."""
    depths = sorted({deep for deep, _ in next(iter(games.values()))[0]})
    lines = []
    for title, by_seed in games.items():
        rates = [success(each) for each in by_seed]
        at_depths = (f"{100 * fmean(success(each, at) for each in by_seed):.0f}" for at in depths)
        all_games = [search for each in by_seed for _, search in each]
        steps, files = (
            f"{fmean(getattr(search, what) for search in all_games):.1f}" for what in ("steps", "files_opened")
        )
        lines.append([title, *(f"{100 * rate:.0f}" for rate in rates), spread(rates), *at_depths, steps, files])
    seed_heads = (f"s{seed}" for seed in seeds)
    return table(["", *seed_heads, "success %", *(f"depth {at} %" for at in depths), "steps", "files"], lines)


def report(recipes: Mapping[int, Recipe], folder: Path) -> str:
    """Return both tables; a dataset for the seed of each recipe is made in ``folder``."""
    for seed, recipe in recipes.items():
        build_dataset(recipe, folder / str(seed), open_account(recipe, folder / str(seed), None))
    envs = {seed: recipe_env(recipe, folder / str(seed), recipe.eval.env) for seed, recipe in recipes.items()}
    parts = []
    for title, split in (("Test questions", "test"), ("Questions by content", BY_CONTENT)):
        walks = [walked(folder / str(seed) / DATASET, env, split) for seed, env in envs.items()]
        games = {
            "random": [played(env, split, seed, RandomPolicy()) for seed, env in envs.items()],
            **{walker: [each[walker] for each in walks] for walker in walks[0]},
            "expert": [played(env, split, seed, ExpertPolicy()) for seed, env in envs.items()],
        }
        sizes = ", ".join(str(len(env.split_tasks(split))) for env in envs.values())
        parts.append(f"**{title}** ({sizes})\n\n{overview(games, [*recipes])}\n")
    return f"""{made_by("python benchmarks/auto_explore.py")}.
Each seed splits the files anew, as for the agents, and every question is played once; in brackets: the questions of
each seed. The walker by BM25 has read all files before it starts, the others read as many as "files" counts. Trained
agents on the questions by content: not measured.

{chr(10).join(parts)}"""


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
        publish(HERE / "README.md", "auto_explore walkers", text)


if __name__ == "__main__":
    main()
