"""Environments in this process: a failure drops the episode if that is wanted, and a step that hangs is reported."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import faulty
import pytest
from thinkers import Thinks

from reflectrl.config import load_recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.core import WorkFailed, make_env
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.pool import LocalEnvs, WorkerLimits
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

DROP = WorkerLimits(on_failure="drop")


@pytest.fixture(autouse=True)
def _table():
    with faulty.registered():
        yield


def play(envs, policy=None, **options):
    episodes = [Episode(task, seed) for seed in range(2) for task in envs[0].tasks("train")]
    players = {"policy": policy or RandomPolicy(), "seats": reflecting(ExpertReflector())}
    return rollout(envs, episodes, **players, layout=PromptFormat(), **options)


@pytest.mark.parametrize(("fault", "at"), [("raise", 0), ("farewell", 3), ("nonsense", 3), ("hints", 0)])
def test_drop_leaves_out_the_episodes_that_broke(fault, at):
    whole, finished = play([make_env("faulty")]), []
    with LocalEnvs(DROP) as source:
        played = play(source.make("faulty", {"fault": fault, "at": at}, 3), on_episode=finished.append)
    assert played == [trajectory for trajectory in whole if trajectory.task.id != "train-1"]
    assert source.failures == len(whole) - len(played) == 2
    assert [each for each in played if each in finished] == played
    assert len(finished) == len(played)


def test_an_episode_goes_on_whose_thoughts_cannot_be_read():
    whole = play([make_env("faulty")], Thinks("The door is left."))
    with LocalEnvs(DROP) as source:
        played = play(source.make("faulty", {"fault": "thought", "at": 2}, 2), Thinks("The door is left."))
    assert [each.actions for each in played] == [each.actions for each in whole]
    assert source.failures == 2


def test_without_drop_the_work_stops_and_the_sentence_says_what_isolates():
    said = (
        "'faulty' failed in task 'train-1' after 2 steps, .*: it raised Farewell: good bye; .*env.workers to 1 or more"
    )
    with LocalEnvs(WorkerLimits()) as source, pytest.raises(WorkFailed, match=said):
        play(source.make("faulty", {"fault": "farewell"}, 2))


def test_a_recipe_without_workers_drops_the_episodes_that_broke(tmp_path: Path):
    recipe = load_recipe(
        "number_line/nano", ["env.name=faulty", "env.options={fault: farewell}", "env.on_failure=drop"]
    )
    with RecipeEnvs(recipe, tmp_path) as source:
        assert len(play(source.make({}, 2))) == 10
        assert source.failures == 2


@pytest.mark.slow
def test_with_drop_a_hanging_step_loses_its_episode(tmp_path: Path):
    whole, before = play([make_env("faulty")]), signal.getsignal(signal.SIGALRM)
    with LocalEnvs(WorkerLimits(on_failure="drop", deadline_s=1.0)) as source:
        played = play(source.make("faulty", {"fault": "wait", "gate": str(tmp_path / "never")}, 2))
    assert played == [trajectory for trajectory in whole if trajectory.task.id != "train-1"]
    assert source.failures == len(whole) - len(played) == 2
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]) == (before, 0.0)


def test_a_step_that_hangs_is_reported_once(tmp_path: Path):
    said, gate = [], tmp_path / "gate"

    def tell(sentence):
        said.append(sentence)
        threading.Timer(0.5, gate.touch).start()  # without a report, the step would go on forever

    before = threading.active_count()
    with LocalEnvs(WorkerLimits(deadline_s=0.2), tell) as source:
        envs = source.make("faulty", {"fault": "wait", "gate": str(gate)}, 2)
        played = play(envs)
    assert played == play([make_env("faulty")])  # nothing was interrupted
    [sentence] = [sentence for sentence in said if "'train-1' after 2 steps, at action" in sentence]
    assert "'faulty' has not answered for 0.2 s" in sentence
    assert "env.workers=1 or more" in sentence
    assert threading.active_count() == before
