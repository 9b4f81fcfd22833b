"""Members of the development suite keep the promises of environments and of their docstrings; its table is right."""

from __future__ import annotations

import inspect
import re
import sys
from itertools import cycle, islice
from pathlib import Path

import pytest
import suite_envs
from playing import Choose, at_random, share_of_wins
from suite import REFERENCES, Score, plan, report, score

from reflectrl import NatLangEnv, check_env, make_env
from reflectrl.config import load_recipe
from reflectrl.pipeline.sweep import unfinished
from reflectrl.report.runs import RunData, StageTime
from reflectrl.rollout.iteration import EpisodeMetrics
from reflectrl.rollout.results import EvalRow

MEMBERS = suite_envs.MODULES
TAUGHT = [name for name in MEMBERS if name not in REFERENCES]
FEWEST = {"train": 48, "validation": 24, "test": 48}


def success(env: NatLangEnv, episodes: int, choose: Choose) -> float:
    """Return the share of test episodes in which a player succeeds."""
    return share_of_wins(env, islice(cycle(env.tasks("test")), episodes), choose)


def module_text(name: str) -> str:
    return (Path(suite_envs.__file__).parent / f"{name}.py").read_text()


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_keeps_every_promise_in_at_most_90_lines(name):
    env = make_env(suite_envs.target(name))
    check_env(env, episodes=1)
    assert env.name == name
    text = module_text(name)
    assert len(text.splitlines()) <= 90
    told = inspect.getdoc(sys.modules[type(env).__module__])
    horizon = re.search(r"Kind: .+?\. Horizon: (\d+)\. Hard: .+\.", told, re.DOTALL)[1]
    assert int(horizon) == env.horizon <= 30
    assert all(len(env.tasks(split)) >= fewest for split, fewest in FEWEST.items())
    starts = {split: [task.options for task in env.tasks(split)] for split in FEWEST}
    if any(starts["train"]):  # some games have one world, or hide what differs
        hidden = name in ("number_hunt", "triage", "triage_free")
        shared = [options for options in starts["test"] if options in starts["train"]]
        assert bool(shared) == hidden


@pytest.mark.parametrize("name", TAUGHT)
def test_an_expert_reaches_what_its_docstring_claims_and_random_play_does_not(name):
    env = make_env(suite_envs.target(name))
    told = " ".join(inspect.getdoc(sys.modules[type(env).__module__]).split())
    least, claim = re.search(r"reaches (at least )?(\d+) %", told).groups()
    reached = success(env, 100, lambda env: env.expert())
    assert reached >= int(claim) / 100
    assert least or reached == 1
    assert success(env, 100, at_random()) < 0.5


def towards_the_bells(env: NatLangEnv) -> str:
    """Return an untried way, best towards the bells, else the way back, else the one that was tried first."""
    text, ways = env.observation.text, [action.removeprefix("go ") for action in env.observation.actions]
    found = [re.search(rf"{said} ([a-z, ]+)\.", text) for said in ("once went", "came from the", "ring in the")]
    gone, came, bells = (each[1] if each else "" for each in found)
    fresh = [way for way in ways if way not in gone and way != came]
    back = [came] if came and came not in gone else []
    return "go " + [*(way for way in fresh if way in bells), *fresh, *back, *gone.split(", ")][0]


def test_a_player_without_memory_finds_out_of_the_maze_as_often_as_is_claimed():
    env = make_env(suite_envs.target("hedge_maze"))
    assert success(env, 100, towards_the_bells) >= REFERENCES["hedge_maze"][0]
    assert success(env, 100, at_random()) < 0.5


def row(policy: str, value: float, reflections: str = "local", mode: str = "sampled", group: str = "") -> EvalRow:
    rest = {field: 0 for field in EpisodeMetrics.__dataclass_fields__}
    return EvalRow(policy, reflections, mode, "test", 48, "", EpisodeMetrics(**{**rest, "success": value}), group)


def trained(name: str, *rows: EvalRow) -> RunData:
    times = (StageTime("sft", True, 0.0, 5.0), StageTime("rlft", True, 0.0, 7.0))
    return RunData(name, Path(name), "", rows, (), (), seed=int(name[-1]), times=times)


def test_a_score_is_read_from_the_rows_of_the_test_without_controls():
    taught = score(
        trained(
            "triage-seed3",
            row("random", 0.1, "none"),
            row("sft", 0.4),
            row("rlft", 0.7),
            row("rlft", 0.9, mode="greedy"),
            row("rlft", 0.2, "blank"),
            row("rlft", 0.99, "expert"),
            row("rlft", 0.3, group="d0/"),
            row("expert", 0.9, "none"),
        )
    )
    assert taught == Score("triage", 3, 0.1, 0.4, 0.7, 0.9, 0.9, 12.0)
    assert taught.closed == pytest.approx(0.75)
    free = score(trained("ice-seed0", row("random", 0.1, "none"), row("rlft", 0.55, "none")))
    assert (free.sft, free.greedy, free.reference, free.taught) == (None, None, 1.0, False)
    assert free.closed == pytest.approx(0.5)
    assert Score("ice", 0, 0.2, None, 0.1, None, 1.0, 1.0).closed == pytest.approx(-0.125)


def test_the_table_shows_means_worst_seeds_and_sums():
    def run(member: str, seed: int, rlft: float, sft: float | None = 0.3) -> Score:
        return Score(member, seed, 0.0, sft, rlft, 0.5, 1.0, 60.0 + seed)

    lines = report(
        [
            run("triage", 0, 0.9),
            run("triage", 1, 0.7),
            run("cliff", 0, 1.0),
            run("crafting", 0, 0.6),
            run("crafting", 1, 0.2),
            run("ice", 0, 0.5, None),
        ]
    ).splitlines()
    assert lines[2:6] == [
        "| cliff | expert | 1 | 0 | 30 | 100 | 100 | 50 | 100 | 1.00 | 1.00 | 60 |",
        "| crafting | expert | 2 | 0 | 30 | 40 | 20 | 50 | 100 | 0.40 | 0.20 | 60 |",
        "| triage | expert | 2 | 0 | 30 | 80 | 70 | 50 | 100 | 0.80 | 0.70 | 60 |",
        "| ice | none | 1 | 0 | - | 50 | 50 | 50 | 100 | 0.50 | 0.50 | 60 |",
    ]
    assert lines[7:] == [
        "closed, 3 members with an expert: median 0.80, worst member 0.40 (crafting), worst run 0.20 (crafting-seed1)",
        "closed, 1 member without an expert: median 0.50, worst member 0.50 (ice), worst run 0.50 (ice-seed0)",
    ]


def test_each_member_and_seed_is_a_run_with_a_budget(tmp_path):
    planned = plan(["ice", "cliff"], (0, 1), 3.0, tmp_path / "out", ["rlft.gamma=0.9"])
    assert [run.folder.name for run in planned] == ["ice-seed0", "cliff-seed0", "ice-seed1", "cliff-seed1"]
    assert unfinished(planned) == planned  # whose recipes are good
    recipe = load_recipe(planned[0].recipe, planned[0].overrides)
    assert (recipe.env.name, recipe.budget.minutes, recipe.seed) == (suite_envs.target("ice"), 3.0, 0)
    assert recipe.budget.states("rlft.gamma")
