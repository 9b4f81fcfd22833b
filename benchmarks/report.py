"""Measure a report on many episodes: the time to write it, open it in Chromium, filter it and step through it.

    python benchmarks/report.py

The episodes are whole rides of DangerousTaxi, played by its expert with one random action in ten. The page is opened
from the disk in Debian's Chromium; times of actions are medians of ten, until the page is drawn. The table
is published, unless --episodes was given.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from arms import ENGINE, loaded_machine, made_by, publish, table

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import make_env
from reflectrl.prompts import PromptFormat
from reflectrl.report.page import write_report
from reflectrl.report.runs import read_runs
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.rollout.results import summarise, write_results
from reflectrl.seats.others import CarelessExpert
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

EPISODES = 10_000
TIMES = 10
MISTAKES = 0.1
"""Probability of a random action."""


def make_run(folder: Path, count: int) -> int:
    """Write a run folder with an evaluation of ``count`` episodes, and return their number of steps."""
    recipe = load_recipe("dangerous_taxi/nano_full")
    envs = [make_env(recipe.env.name, **recipe.env.options) for _ in range(64)]
    tasks = envs[0].split_tasks("train")
    episodes = [Episode(tasks[number % len(tasks)], number) for number in range(count)]
    layout = PromptFormat(envs[0].instructions)
    played = rollout(
        envs, episodes, policy=CarelessExpert(1 - MISTAKES), seats=reflecting(ExpertReflector()), layout=layout
    )
    folder.mkdir()
    (folder / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    (folder / "trajectories").mkdir()
    header = Header(recipe.env.name, recipe.env.options, layout)
    write_trajectories(folder / "trajectories" / "eval-rlft-expert-sampled.jsonl", header, played)
    write_results(folder / "eval.jsonl", [summarise("rlft", "expert", "sampled", "train", played)])
    return sum(len(trajectory.turns) for trajectory in played)


def seconds(work: Callable[[], Any]) -> float:
    """Return the seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_chromium(path: Path) -> dict[str, float]:
    """Return the seconds of each user action on the page at ``path``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        page = browser.new_page()

        def opens() -> None:
            page.goto(f"file://{path}")
            page.wait_for_selector(".row")

        def drawn(act: Callable[[], Any]) -> None:
            act()
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

        found = {"open, until episodes are listed": seconds(opens)}
        page.click(".row")
        words = iter([f"r{number % 5}c{number % 4}" for number in range(TIMES)])
        acts: dict[str, Callable[[], Any]] = {
            "filter by task": lambda: page.fill("#task", next(words)),
            "next episode": lambda: (page.focus("#list"), page.keyboard.press("j")),
            "next step": lambda: page.keyboard.press("l"),
        }
        for name, act in acts.items():
            found[name] = median(seconds(lambda act=act: drawn(act)) for _ in range(TIMES))
        browser.close()
    return found


def main() -> None:
    """Measure, print the table, and publish it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    given = parser.parse_args()
    if given.episodes < 1:
        parser.error(f"--episodes {given.episodes} was given; expected 1 or more.")
    if shutil.which("chromium") is None:
        sys.exit("chromium is not installed: apt-get install chromium.")
    with tempfile.TemporaryDirectory() as place:
        run, page = Path(place, "run"), Path(place, "report.html")
        steps = make_run(run, given.episodes)
        written = seconds(lambda: write_report(read_runs([run]), page))
        rows = [["write the report", f"{written:.1f} s"]]
        rows += [[what, f"{1e3 * took:.0f} ms"] for what, took in in_chromium(page).items()]
        size = page.stat().st_size / 1e6
    print(f"{made_by('python benchmarks/report.py', loaded_machine())}: {steps:,} steps, a page of {size:.1f} MB\n")
    text = f"{table(('what', 'time'), rows)}\n"
    print(text)
    if given.episodes == EPISODES:
        publish(ENGINE, "report", text)


if __name__ == "__main__":
    main()
