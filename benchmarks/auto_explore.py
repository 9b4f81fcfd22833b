"""The AutoExplore tables of ``benchmarks/README.md``: every arm and seed through ``reflectrl run``, then one summary.

    python benchmarks/auto_explore.py             # trains what is missing in benchmarks/runs, rewrites the tables
    python benchmarks/auto_explore.py --seeds 0   # one seed only, tables on stdout
    python benchmarks/auto_explore.py --walkers   # what learns nothing, on both kinds of test questions; seconds
    python benchmarks/auto_explore.py --packages  # the trained agents on three real packages, which pip fetches
    python benchmarks/auto_explore.py --packages --seeds  # there without agents, so without training, on stdout

Each run is an ordinary run folder of a shipped recipe, one process and one thread each, ``--jobs`` at a time; a run
that is there already is not trained again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from arms import HERE, RUNS, Arm, env_steps, find, made_by, minutes, objectives, publish, spread, table, train_all
from walkers import Search, Texts, breadth_first, by_names, by_rank

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.endpoint import open_account
from reflectrl.config.environment import DATASET, recipe_env
from reflectrl.core import Task, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.ambiguity import content_words
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import BY_CONTENT, ask_about, read_dataset, write_dataset
from reflectrl.envs.auto_explore.files import readable_files
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.envs.auto_explore.sources import fetch_all
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.players import RunPlayers
from reflectrl.players import ExpertPolicy, Policy, RandomPolicy, Seat
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode
from reflectrl.rollout.evaluate import play_all
from reflectrl.rollout.record import read_trajectories

REFLECT = Arm("auto_explore-reflect_rl", "auto_explore/nano")
PLAIN = Arm("auto_explore-no_reflection", "auto_explore/nano_no_reflection")
SPOTLESS = Arm("auto_explore-no_negatives", "auto_explore/nano_no_negatives")
UNTAUGHT = Arm("auto_explore-rlft_only", "auto_explore/nano_rlft_only")
ARMS = (REFLECT, PLAIN, SPOTLESS, UNTAUGHT)

PACKAGES = ("pypi:click==8.1.7", "pypi:httpx==0.28.1", "pypi:rich==13.9.4")
SPLITS = ("test", "validation")
"""Splits of the packages' questions that are played: nothing is trained on them, and one split has few."""
PER_FILE, MOST = 2, 100
"""Questions of a file and of a package."""
PAGE = 10
DEEPEST = 3
"""Depths from here on count as one."""
PROMPT = PromptFormat()
"""Episodes of each task for players that read nothing but the menu."""

Game = tuple[int, Search]
"""The depth of the file, and how it was searched."""


@dataclass(frozen=True)
class Line:
    """One player."""

    title: str
    games: Sequence[Sequence[Game]]
    """Games of each seed; one entry where no seed matters."""
    greedy: str = "-"
    """Mean success in per cent with the most probable commands, where they were played."""
    cost: tuple[str, ...] = ("-", "-")
    """Minutes of training and environment steps, where they are shown."""
    walks: bool = True
    """False if it takes no steps."""


def depth(task: Task) -> int:
    """Depth of the file which answers a task."""
    return min(DEEPEST, int(task.id.partition("/")[0].removeprefix("d")))


def searched(trajectory: Trajectory) -> Search:
    """A trajectory in short."""
    return Search(trajectory.success, len(trajectory.turns), opened(trajectory.actions))


def opened(actions: Sequence[str]) -> int:
    """Different files read: what was read is never offered again, so each ``cat`` is of another one."""
    return sum(action.startswith("cat ") for action in actions)


def texts_of(repositories: Mapping[str, Path]) -> Mapping[str, Texts]:
    """All that the files of each repository say."""
    found = {name: readable_files(folder) for name, folder in repositories.items()}
    return {name: {**dict(files.readable), **files.others} for name, files in found.items()}


def line(title: str, arm: Arm, seeds: Sequence[int], policy: str, reflections: str | None = None) -> Line:
    """Sampled episodes of an arm's evaluations."""
    games = []
    for seed in seeds:
        row = find(arm, seed, policy, reflections, "sampled")
        file = f"eval-{row.policy}-{row.reflections}-{row.mode}.jsonl"
        _, trajectories = read_trajectories(arm.folder(seed) / "trajectories" / file)
        games.append([(depth(trajectory.task), searched(trajectory)) for trajectory in trajectories])
    if policy not in ("sft", "rlft") or reflections is not None:
        return Line(title, games)
    greedy = f"{100 * fmean(find(arm, seed, policy, None, 'greedy').metrics.success for seed in seeds):.0f}"
    if policy == "sft":
        return Line(title, games, greedy)
    took, played = (fmean(number(arm, seed) for seed in seeds) for number in (minutes, env_steps))
    return Line(title, games, greedy, (f"{took:.1f}", f"{played:,.0f}"))


def walked(run: Path, recipe: Recipe, split: str = "test") -> Mapping[str, list[Game]]:
    """Every walker, each task of a split of the run's dataset once."""
    env = recipe_env(recipe, run, recipe.eval.env)
    texts = texts_of(read_dataset(run / DATASET).repositories)
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


def walker_lines(runs: Sequence[Mapping[str, Sequence[Game]]]) -> list[Line]:
    """A line for each walker, from what all of them found with each seed."""
    return [Line(title, [run[title] for run in runs]) for title in runs[0]]


def success(games: Sequence[Game], at: int | None = None) -> float:
    """Rate, over all depths or at one."""
    return fmean(search.success for deep, search in games if at in (None, deep))


def overview(lines: Sequence[Line], seeds: Sequence[int], *, costs: bool) -> str:
    """All depths together, and the mean success at each."""
    depths = sorted({deep for deep, _ in lines[0].games[0]})
    heads = [*_heads(seeds), *(f"{named(at)} %" for at in depths), *(["greedy %"] if costs else []), "steps", "files"]
    cells = []
    for player in lines:
        at_depths = (f"{100 * fmean(success(games, at) for games in player.games):.0f}" for at in depths)
        greedy = [player.greedy] if costs else []
        cost = player.cost if costs else ()
        cells.append([*_rates(player, seeds, None), *at_depths, *greedy, *_means(player, None), *cost])
    return table([*heads, "minutes", "env steps"] if costs else heads, cells)


def by_depth(lines: Sequence[Line], seeds: Sequence[int]) -> str:
    """A table for each depth."""
    parts = []
    for at in sorted({deep for deep, _ in lines[0].games[0]}):
        cells = [[*_rates(player, seeds, at), *_means(player, at)] for player in lines]
        title = f"{named(at)[0].upper()}{named(at)[1:]}"
        parts.append(f"### {title}\n\n{table([*_heads(seeds), 'steps', 'files'], cells)}\n")
    return "\n".join(parts)


def named(at: int) -> str:
    """A depth in words."""
    return f"depth {at}{' and more' if at == DEEPEST else ''}"


def _heads(seeds: Sequence[int]) -> list[str]:
    return ["", *(f"s{seed}" for seed in seeds), "success %"]


def _rates(player: Line, seeds: Sequence[int], at: int | None) -> list[str]:
    rates = [success(games, at) for games in player.games]
    each = [f"{100 * rate:.0f}" for rate in rates] if len(rates) == len(seeds) else ["-"] * len(seeds)
    return [player.title, *each, spread(rates)]


def _means(player: Line, at: int | None) -> list[str]:
    played = [search for games in player.games for deep, search in games if at in (None, deep)]
    steps = f"{fmean(search.steps for search in played):.1f}" if player.walks else "-"
    return [steps, f"{fmean(search.files_opened for search in played):.1f}"]


def company(seeds: Sequence[int], runs: Path) -> tuple[str, str]:
    """The overview with how it was made, and the tables by depth."""
    reflect, plain, spotless, untaught = (replace(arm, runs=runs) for arm in ARMS)
    lines = [
        line("random", reflect, seeds, "random"),
        *walker_lines(
            [walked(reflect.folder(seed), load_recipe(str(reflect.folder(seed) / "recipe.yaml"))) for seed in seeds]
        ),
        line("RLFT only (no SFT, no reflection), 30 iterations", untaught, seeds, "rlft"),
        line("SFT, without reflection", plain, seeds, "sft"),
        line("SFT, with reflection", reflect, seeds, "sft"),
        line("SFT + RLFT without reflection", plain, seeds, "rlft"),
        line("SFT + RLFT without negatives", spotless, seeds, "rlft"),
        line("**Reflect-RL**", reflect, seeds, "rlft"),
        line("its policy, reflections blank", reflect, seeds, "rlft", "blank"),
        line("its policy, reflections of other states", reflect, seeds, "rlft", "shuffled"),
        line("its policy, the expert's reflections", reflect, seeds, "rlft", "expert"),
        line("expert", reflect, seeds, "expert"),
    ]
    rows = [find(reflect, seed, "rlft", None, "sampled") for seed in seeds]
    fewest, most = (pick(row.tasks for row in rows) for pick in (min, max))
    asked = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    text = f"""{made_by("python benchmarks/auto_explore.py")}, one thread a run. Each seed
splits the files anew, and no file of a test question is asked about in training; {rows[0].metrics.episodes} sampled
episodes a seed over the {asked} test questions, which the walkers play once each. Columns s0.. are success in
per cent for each seed; "success %" is the mean over seeds with a 95 % t interval over seeds; "depth" is the number of
folders to enter; "greedy" plays each test question once with the most probable commands; steps and files read are means
over all sampled episodes; minutes are processor minutes of SFT and RLFT together; env steps are those RLFT played.
{objectives(load_recipe(REFLECT.recipe))}

{overview(lines, seeds, costs=True)}
"""
    return text, by_depth(lines, seeds)


def without_learning(seeds: Sequence[int], folder: Path, overrides: Sequence[str] = ()) -> str:
    """The tables of the walkers on both kinds of test questions, about datasets that are made in ``folder``."""
    recipes = {seed: load_recipe(REFLECT.recipe, [f"seed={seed}", *overrides]) for seed in seeds}
    for seed, recipe in recipes.items():
        build_dataset(recipe, folder / str(seed), open_account(recipe, folder / str(seed), None))
    parts = []
    for title, split in (("Test questions", "test"), ("Questions by content", BY_CONTENT)):
        envs = [recipe_env(recipe, folder / str(seed), recipe.eval.env) for seed, recipe in recipes.items()]
        tasks = [env.split_tasks(split) for env in envs]
        played = list(zip(envs, tasks, seeds, strict=True))
        lines = [
            Line("random", [play(env, some, seed, RandomPolicy()) for env, some, seed in played]),
            *walker_lines([walked(folder / str(seed), recipe, split) for seed, recipe in recipes.items()]),
            Line("expert", [play(env, some, seed, ExpertPolicy()) for env, some, seed in played]),
        ]
        sizes = ", ".join(str(len(some)) for some in tasks)
        parts.append(f"#### {title} ({sizes})\n\n{overview(lines, seeds, costs=False)}\n")
    return f"""{made_by("python benchmarks/auto_explore.py --walkers")}.
Each seed splits the files anew, as for the agents, and every question is played once; in brackets: the questions of
each seed. The walker by BM25 has read all files before it starts, the others read as many as "files" counts. Trained
agents on the questions by content: not measured.

{chr(10).join(parts)}"""


def fetch_packages(folder: Path) -> Path:
    """A dataset of questions about the packages, in ``folder``."""
    repositories = fetch_all(PACKAGES, folder / "fetched")
    write_dataset(folder / DATASET, ask_about(repositories, write_questions, per_file=PER_FILE, seed=0))
    return folder / DATASET


def package_tasks(env: AutoExplore) -> list[Task]:
    """The first questions of each package."""
    taken: Counter[str] = Counter()
    tasks = []
    for task in (task for split in SPLITS for task in env.split_tasks(split)):
        taken[task.options["repository"]] += 1
        if taken[task.options["repository"]] <= MOST:
            tasks.append(task)
    return tasks


def play(
    env: AutoExplore,
    tasks: Sequence[Task],
    seed: int,
    policy: Policy,
    seats: Sequence[Seat] = (),
    layout: PromptFormat = PROMPT,
) -> list[Game]:
    """Each task once."""
    episodes = [Episode(task, derive_seed(seed, "packages", number)) for number, task in enumerate(tasks)]
    played = play_all([env], episodes, policy=policy, seats=seats, layout=layout)
    return [(depth(task), searched(trajectory)) for task, trajectory in zip(tasks, played, strict=True)]


def play_agent(env: AutoExplore, tasks: Sequence[Task], arm: Arm, seed: int) -> list[Game]:
    """The trained policy of a run, with its reflector."""
    run = RunFolder(arm.folder(seed))
    run_players = RunPlayers(load_recipe(str(run / "recipe.yaml")), run)
    lm, player = run_players.lm_policy("policy")
    return play(env, tasks, seed, player(False), run_players.seats(lm), run_players.layout)


def packages(seeds: Sequence[int], runs: Path, dataset: Path) -> str:
    """The tables of the packages."""
    env = AutoExplore(dataset=str(dataset), page=PAGE, output=40, listing=False)
    tasks = package_tasks(env)
    texts = texts_of(read_dataset(dataset).repositories)
    indexes = {name: BM25(texts[name]) for name in texts}

    def ranked(task: Task, best: int) -> Game:
        repository, question, file = (str(task.options[key]) for key in ("repository", "question", "file"))
        found = file in indexes[repository].ranking(content_words(question))[:best]
        return depth(task), Search(found, 0, len(texts[repository]))

    walks = [(depth(task), breadth_first(env, task, texts[str(task.options["repository"])])) for task in tasks]
    lines = [
        Line("random", [play(env, tasks, seed, RandomPolicy()) for seed in seeds or [0]]),
        Line("breadth first, as many steps", [walks]),
        *(Line(f"BM25, top {n}", [[ranked(task, n) for task in tasks]], walks=False) for n in (1, 5)),
    ]
    if seeds:
        agents = [play_agent(env, tasks, replace(REFLECT, runs=runs), seed) for seed in seeds]
        lines.append(Line("**Reflect-RL**, trained on the company", agents))
    lines.append(Line("expert", [play(env, tasks, 0, ExpertPolicy())]))
    asked = Counter(str(task.options["repository"]) for task in tasks)
    return f"""{made_by("python benchmarks/auto_explore.py --packages")}. Source archives of
{", ".join(source.removeprefix("pypi:") for source in PACKAGES)}, fetched by pip;
{len(tasks)} questions of the offline writer ({", ".join(f"{name} {asked[name]}" for name in sorted(asked))}),
those of the splits {" and ".join(SPLITS)}: nothing was trained on any of them.
Everyone has {env.horizon} steps, sees {PAGE} entries of a folder at a time and plays each question once (random and
Reflect-RL: once a seed). Breadth first is told all of a file that it reads, the agents its beginning. BM25 takes no
steps: it reads every file for its index, and succeeds if the file is the first, or among the first five, of its
ranking; the offline writer uses the words of the file, which is what a ranking by words finds.

{overview(lines, seeds, costs=False)}

{by_depth(lines, seeds)}"""


def main() -> None:
    """Train what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--walkers", action="store_true", help="play what learns nothing; nothing is trained")
    parser.add_argument("--packages", action="store_true", help="play the packages instead (needs their registry)")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    if not seeds and not arguments.packages:
        parser.error("--seeds without a seed needs --packages")
    if arguments.walkers:
        with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
            text = without_learning(seeds, Path(folder))
        print(text)
        if len(seeds) == 5:
            publish(HERE / "README.md", "auto_explore walkers", text)
        return
    train_all([REFLECT] if arguments.packages else ARMS, seeds, arguments.jobs)
    if arguments.packages:
        with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
            text = packages(seeds, RUNS, fetch_packages(Path(folder)))
        print(text)
        if len(seeds) == 5:
            publish(HERE / "README.md", "auto_explore packages", text)
        return
    text, more = company(seeds, RUNS)
    print(text, more, sep="\n")
    if len(seeds) == 5:
        publish(HERE / "README.md", "auto_explore", f"{text}\n{more}")


if __name__ == "__main__":
    main()
