"""A recipe with a memory: its words are in every prompt of RLFT, evaluation and the run's agent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import remembered
from interruptions import kill_rlft
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, make_env
from reflectrl.data_gen.rows import read_rows
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.team import Team
from reflectrl.report.runs import read_runs
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import EpisodeStore, Header, read_trajectories
from reflectrl.seats.experience import Experience, goal
from reflectrl.seats.memory import Memory, MemoryPlayerSection
from reflectrl.seats.others import ExpertPolicy
from reflectrl.share.export import export_run

pytestmark = pytest.mark.slow
SHOWN = "Done before: "
GROWING = ("data.samples=30", "rlft.episodes=12")


def remembered_by(players: Team, policy: str) -> tuple[Experience, ...]:
    """Return what the memory of a policy holds."""
    [memory] = [seat.player for seat in players.playing(None, policy) if seat.role == "memory"]
    assert isinstance(memory, Memory)
    return memory.retriever.experiences


def test_the_memory_shows_the_teacher_from_training_to_the_agent(trained_run: TrainedRuns):
    run = trained_run(name="rap/nano")
    _, taught = read_trajectories(run / "data" / "teacher.jsonl")
    starts = {each.turns[0].observation.text for each in taught if each.success}
    for name in ("rlft-00000", "rlft-00003", "eval-sft-local-sampled", "eval-rlft-local-sampled"):
        for played in read_trajectories(run / "trajectories" / f"{name}.jsonl")[1]:
            said = [turn.said["memory"].text for turn in played.turns]
            assert all(words.startswith(SHOWN) and len(words) <= 200 for words in said)
            assert any(start in said[0] for start in starts)
            assert list(played.turns[0].said) == ["memory", "reflector"]  # which reads it
    for name, role in (("policy", "policy"), ("reflector", "reflector")):
        rows = read_rows(run / "sft" / f"{name}.jsonl")
        assert {row.player for row in rows} == {role}
        assert all(row.prompt.said.startswith(f"Memory: {SHOWN}") for row in rows)  # as at play
    own = {each.task.id: each.turns[0].observation.text for each in taught}
    first = [row for row in read_rows(run / "sft" / "policy.jsonl") if row.step == 0]
    assert first
    assert not any(own[row.task] in row.prompt.said for row in first)  # a task's own episode is not its example
    [plain, *_] = read_trajectories(run / "trajectories" / "eval-random-none-sampled.jsonl")[1]
    assert plain.turns[0].said == {}
    env = make_env("number_line", size=8)
    env.reset(seed=0)
    assert load_agent(run).act(env.observation).said["memory"].text.startswith(SHOWN)
    with pytest.raises(InvalidInput, match="players.memory"):
        export_run(run)


def test_sft_rows_show_what_the_memory_shows_at_play(tmp_path: Path):
    silent = ("players.reflector.player=none", "players.memory.key=action", "data.negatives=0", "data.samples=60")
    run = tmp_path / "run"
    play_stages(small_recipe(*silent, name="rap/nano"), run, "gen-data")
    players = Team(read_recipe(run), RunFolder(run))
    _, taught = read_trajectories(run / "data" / "teacher.jsonl")
    episodes = [Episode(each.task, each.seed) for each in taught]
    seats = players.playing(None, memory=players.recipe.players.memory)
    played = rollout(players.env(), episodes, policy=ExpertPolicy(), seats=seats, layout=players.layout)
    shown = {(each.task.id, step): turn.said["memory"].text for each in played for step, turn in enumerate(each.turns)}
    rows = read_rows(run / "sft" / "policy-no-reflection.jsonl")
    assert len({shown[row.task, row.step] for row in rows}) > 3
    assert all(shown[row.task, row.step] in row.prompt.said for row in rows)


def test_action_keys_may_show_more_steps(trained_run: TrainedRuns):
    run = trained_run(name="rap/nano")
    players = Team(read_recipe(run), RunFolder(run))
    [env] = players.env()
    episodes = [Episode(task, seed=0) for task in env.tasks("test")]

    def most_steps(key: Literal["observation", "action"]) -> int:
        section = MemoryPlayerSection(key=key, episodes=1, steps=1, action_steps=3)
        seats = players.playing(None, memory=section)
        played = rollout([env], episodes, policy=ExpertPolicy(), seats=seats, layout=players.layout)
        return max(turn.said["memory"].text.count("> ") for each in played for turn in each.turns[1:])

    assert most_steps("observation") == 2
    assert 2 < most_steps("action") <= 6


def test_a_recipe_may_remember_failures(tmp_path: Path) -> None:
    half_right = remembered.played("mug", ("take mug", "Taken."), ("put mug", ""), reward=0.5, success=False)
    for keep, shown in (("success", []), ("rewarded", ["Tried before: Put a mug."])):
        recipe = small_recipe(f"players.memory.keep={keep}", name="rap/nano")
        team = Team(recipe, RunFolder(tmp_path))
        seats = team.remembering(recipe.players.memory, team.kept([half_right]), None)
        said = [seat.player.say([remembered.seen("You see a cup.")], [0.0])[0].text for seat in seats]
        assert [words[: len("Tried before: Put a mug.")] for words in said] == shown


def test_a_growing_memory_begins_with_the_teacher(trained_run: TrainedRuns):
    run = trained_run(*GROWING, name="rap/nano_grows")
    players = Team(read_recipe(run), RunFolder(run))
    taught = players.taught
    grown = EpisodeStore(run / "memory.jsonl", Header("number_line", {"size": 8}, players.layout))
    assert len(grown) > len(taught) > 0
    assert remembered_by(players, "policy") == grown.snapshot() != taught
    assert remembered_by(players, "policy-sft") == taught
    [read] = read_runs([run])
    assert all(each.memory_hits == 1 for each in read.points)


def test_a_memory_that_grew_is_made_again_where_it_is_gone(trained_run: TrainedRuns, tmp_path):
    run = shutil.copytree(trained_run(*GROWING, name="rap/nano_grows"), tmp_path / "run")
    before = (run / "memory.jsonl").read_bytes()
    (run / "memory.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"memory.jsonl, which the stage 'rlft' wrote, is gone; .* makes it again"):
        load_agent(run)
    assert "memory.jsonl was deleted: making it again" in play_stages(read_recipe(run), run)
    assert (run / "memory.jsonl").read_bytes() == before


def test_a_growing_memory_survives_a_kill_and_an_unfinished_line(trained_run: TrainedRuns, tmp_path: Path) -> None:
    whole = trained_run(*GROWING, name="rap/nano_grows")
    run = shutil.copytree(trained_run(*GROWING, name="rap/nano_grows", stages=STAGES[:2]), tmp_path / "small")
    recipe = kill_rlft(small_recipe(*GROWING, name="rap/nano_grows"), run)
    with (run / "memory.jsonl").open("ab") as memory:
        memory.write(b'{"task_id": "cut off by the k')
    play_stages(recipe, run, "rlft")
    for name in ("memory.jsonl", "metrics.jsonl", "trajectories/rlft-00003.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_the_recipe_says_how_memories_are_compared(tmp_path: Path) -> None:
    taught = remembered.played(
        "mug", ("take cup in desk", "A cup."), ("wait", "Rain."), ("put mug", "Done."), ("go", "")
    )
    team = Team(small_recipe(name="rap/nano"), RunFolder(tmp_path))

    def shown(*past: str, **settings: Any) -> str:
        section = MemoryPlayerSection(key="action", episodes=1, steps=1, **settings)
        [seat] = team.remembering(section, team.kept([taught]), None)
        return seat.player.say([remembered.seen("You see a table.", *past, task="Put a mug.")], [0.0])[0].text

    assert shown("put cup in desk").endswith("> take cup in desk: A cup.")
    assert shown("put cup in desk", key_match="lexical").endswith("> put mug: Done.")
    assert shown("put mug") != shown("put cup in desk")
    assert shown("put mug", weights={"key": 0.0}) == shown("put cup in desk", weights={"key": 0.0}) != ""
    assert shown("put mug", min_score=0.99) != ""
    assert shown("put cup in desk", min_score=0.99) == ""


@pytest.mark.parametrize("name", ["rap/shop_nano", "rap/robots_nano", "rap/kitchen_nano"])
def test_a_memory_shows_what_the_expert_did_in_such_a_task(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    if recipe.env.name == "robots":
        pytest.importorskip("gymnasium_robotics" if "kitchen" in name else "metaworld")
    players = Team(recipe, RunFolder(tmp_path))
    [env], layout = players.env(), players.layout
    alike, *rest = env.tasks("train")
    others = [task for task in rest if task.group != alike.group][:1]  # a shop has one group
    test = next(task for task in env.tasks("test") if task.group == alike.group)
    lessons = [Episode(task, seed=0) for task in (*others, alike)]
    taught = rollout([env], lessons, policy=ExpertPolicy(), seats=[], layout=layout)
    seats = players.remembering(recipe.players.memory, players.kept(taught), None)
    [played] = rollout([env], [Episode(test, seed=1)], policy=ExpertPolicy(), seats=seats, layout=layout)
    said = [turn.said["memory"].text for turn in played.turns]
    assert recipe.players.memory is not None
    assert all(words.startswith(SHOWN) and len(words) <= recipe.players.memory.max_chars for words in said)
    assert " ".join(goal(taught[-1].turns[0].observation.task).split()) in said[0]
