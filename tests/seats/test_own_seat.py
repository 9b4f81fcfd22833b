"""A recipe seats a player of the user's own by the name of its class; every stage and file of a run knows it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from agent_server import STATE, in_process
from command_line import reflectrl, refused
from trained_runs import play_stages, small_recipe

from reflectrl.config import Recipe, check_recipe, dump_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.data_gen.rows import read_rows
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import read_recipe
from reflectrl.pipeline.inputs import changed_inputs, outside_files, stage_inputs
from reflectrl.report import report
from reflectrl.rollout import policy_views
from reflectrl.rollout.record import read_trajectories
from reflectrl.seats.own import own_seat
from reflectrl.share.export import export_run

MODULE = '''
from collections import Counter

import reflectrl as rl


class Tally:
    """Names the actions that were played most."""

    def __init__(self, most: int = 3) -> None:
        self.most = most

    def say(self, views, draws):
        counts = [Counter(view.past).most_common(self.most) for view in views]
        return [rl.Utterance(", ".join(f"{action} {n}x" for action, n in each)) for each in counts]


class Praise(Tally):
    """Praises each step, unseen by anybody, and rates the episode."""

    when = "episode_end"

    def say(self, views, draws):
        return [rl.Utterance("Well done.", scores=(None,) * (len(view.past) - 1) + (0.5,)) for view in views]


class Opening(Tally):
    when, reads, cue = "episode_start", (), "Opening:"

    def say(self, views, draws):
        return [rl.Utterance(f"Go to {view.observation.text.split()[-1]}") for view in views]


class Late(Tally):
    when = "later"


class Eager(Opening):
    reads = ("policy",)


class Copycat(Tally):
    cue = "Memory:"


class Mute:
    pass


class Broken(Tally):
    def __init__(self) -> None:
        raise RuntimeError("out of paper")
'''
TALLY = "players.tally={class: 'counting:Tally', most: 1}"


@pytest.fixture(autouse=True)
def _counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the working folder, and a cache of its own for what this user has begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("counting.py").write_text(MODULE)


def forget() -> None:
    """Forget the module, as a new process has."""
    sys.modules.pop("counting", None)


def without_module() -> None:
    """Leave the module out, as on another machine."""
    forget()
    Path("counting.py").rename("counted.py")


@pytest.mark.slow
def test_a_custom_player_speaks_in_every_stage(tmp_path: Path) -> None:
    rates = ("players.praise={class: 'counting:Praise'}", "rlft.rewards={env: 1.0, praise: 0.1}")
    run = tmp_path / "run"
    play_stages(small_recipe(TALLY, "players.opening={class: 'counting:Opening'}", *rates), run)
    assert load_recipe(run / "recipe.yaml") == read_recipe(run)
    rows = read_rows(run / "sft" / "policy.jsonl")
    assert all("Tally:" in row.prompt.said for row in rows)
    assert any("Tally: add one 1x\nOpening: Go to" in f"{row.prompt.said}" for row in rows)
    header, played = read_trajectories(run / "trajectories" / "rlft-00003.jsonl")
    for episode in played:
        assert episode.turns[-1].said["praise"].text == "Well done."
        assert [turn.rewards.get("praise") for turn in episode.turns[-1:]] == [0.5]
    agent = load_agent(run)
    first = played[0].turns[0]
    move = agent.act(first.observation, seed=played[0].seed)
    assert {role: words.text for role, words in move.said.items() if role != "reflector"} == {
        role: words.text for role, words in first.said.items() if role in ("tally", "opening")
    }
    with in_process(agent) as client:
        assert client.post("/act", json={**STATE, "history": ["add one"]}).json()["said"]["tally"] == "add one 1x"
    assert reflectrl("play", "--run", run, "--episodes", 1).code == 0
    without_module()  # what was recorded says all about the prompts
    report([run], tmp_path / "report.html")
    again, episodes = read_trajectories(run / "trajectories" / "rlft-00003.jsonl")
    assert (again, episodes) == (header, played)
    for episode in episodes:
        [opened] = {turn.said["opening"].text for turn in episode.turns[:1]}
        for view, turn in zip(policy_views(episode, again.prompt), episode.turns, strict=True):
            shown = [f"Reflection: {turn.reflection}", f"Tally: {turn.said['tally'].text}", f"Opening: {opened}"]
            assert view.prompt.said.splitlines() == [line.rstrip() for line in shown]
    missing = refused("play", "--run", run)
    assert missing.count("\n") == 1
    assert "players.tally.class is 'counting:Tally', which cannot be imported: No module named 'counting'." in missing


@pytest.mark.slow
def test_a_folder_from_elsewhere_imports_nothing_before_the_user_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    play_stages(small_recipe(TALLY, "eval.policies=[rlft]"), run)
    export_run(run, tmp_path / "export")
    for folder in ("run", "export"):
        forget()
        moved = shutil.copytree(tmp_path / folder, tmp_path / f"{folder} from elsewhere")
        with pytest.raises(InvalidInput, match=r"wants to import counting:Tally \(players.tally\)"):
            load_agent(moved)
        assert "counting" not in sys.modules
        monkeypatch.setenv("REFLECTRL_TRUSTED_AGENT", str(moved))
        assert [seat.role for seat in load_agent(moved).seats] == ["reflector", "tally"]


def recipe(*overrides: str) -> Recipe:
    return load_recipe("number_line/nano", overrides)


def test_its_settings_and_code_are_inputs_of_stages() -> None:
    for own, first in ((TALLY, "gen-data"), ("players.tally={class: 'counting:Praise'}", "rlft")):
        begun = recipe(own)
        for stage in STAGES:
            changed = changed_inputs(recipe(own, "players.tally.most=2"), stage, stage_inputs(begun, stage))
            assert [key for key, _, _ in changed] == ["players.tally.most"] * (
                STAGES.index(stage) >= STAGES.index(first)
            )
        assert [stage for stage in STAGES if any("counting.py" in file for file in outside_files(begun, stage))] == [
            first
        ]


def test_a_recipe_with_a_custom_seat_round_trips() -> None:
    given = recipe(TALLY)
    Path("given.yaml").write_text(f"{dump_recipe(given)}arms:\n  alone:\n    players.tally: null\n")
    assert load_recipe("given.yaml") == given
    assert given.players.own == {"tally": {"class": "counting:Tally", "most": 1}}
    alone = load_recipe("given.yaml", arm="alone")
    assert (alone.players.own, alone.layout("").roles) == ({}, ())


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ("{class: 'counting:Nobody'}", "players.tally.class is 'counting:Nobody', which cannot be imported: .*Nobody"),
        ("{class: 'nowhere:Tally'}", "cannot be imported: No module named 'nowhere'"),
        ("{class: 'counting:Mute'}", r"expected a class with a method say\(views, draws\)"),
        ("{class: counting}", "players.tally: class is 'counting'; expected package.module:Class"),
        ("{most: 3}", "players.tally: unknown key, given .*; known: corrector, memory, planner"),
        ("{class: 'counting:Late'}", "has when='later'; did you mean 'after_act'"),
        ("{class: 'counting:Eager'}", r"has reads=\('policy',\); expected .* spoken by episode_start: planner"),
        ("{class: 'counting:Copycat'}", "has cue='Memory:'; expected one word with a colon .* such as 'Tally:'"),
        ("{class: 'counting:Tally', moost: 3}", "players.tally has the unknown key 'moost'; did you mean 'most'"),
        ("{class: 'counting:Tally', most: many}", "players.tally.most: given 'many'; expected a valid integer"),
        ("{class: 'counting:Broken'}", "players.tally cannot be made: it raised RuntimeError: out of paper"),
    ],
)
def test_a_class_that_cannot_play_is_refused_before_anything_is_done(own: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        check_recipe(recipe(f"players.tally={own}"))


@pytest.mark.parametrize("name", ["env", "novelty", "format", "own", "Tally", "model_dump"])
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"a seat of your own is called '{name}'"):
        recipe(f"players.{name}={{class: 'counting:Tally'}}")


def test_two_players_of_ones_own_that_begin_their_lines_alike_are_refused() -> None:
    both = ("players.one={class: 'counting:Opening'}", "players.two={class: 'counting:Opening'}")
    with pytest.raises(InvalidInput, match="players.two has cue='Opening:', with which players.one begins its line"):
        recipe(*both).layout("")


def test_it_is_made_anew_for_each_team_with_its_settings() -> None:
    one, other = (own_seat("tally", {"class": "counting:Tally", "most": most}) for most in (1, 2))
    assert (vars(one.player), vars(other.player)) == ({"most": 1}, {"most": 2})
    assert one.when == "before_act"
