"""Environments in worker processes give the same episodes as in this process, whatever happens to the workers."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty
import psutil
import pytest
from faulty import wait_until
from thinkers import Thinks

from reflectrl.core import (
    EpisodeFailed,
    InvalidInput,
    Task,
    WorkFailed,
    check_env,
    make_env,
    register_env,
)
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.pool import WorkerLimits, WorkerPool
from reflectrl.rollout.protocol import PlayAction, Reset
from reflectrl.rollout.worker import gather, send
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

ours = functools.partial(faulty.processes, parent=os.getpid())
SHORT_S = 1.0
"""A deadline that is only missed by workers that never answer."""


@pytest.fixture(autouse=True, scope="module")
def _table():
    """Register the environment ``faulty``, and check at the end that no process is left, not even a zombie."""
    before = sorted(ours())
    with faulty.registered():
        yield
    assert sorted(ours()) == before


@pytest.fixture(scope="module")
def pool(_table):
    """A pool of two processes for the tests that do not break them."""
    with WorkerPool(2) as shared:
        shared.make("faulty", {}, 2)
        yield shared
        assert (shared.failures, shared.recycled) == (0, 0)


def play(envs, seats=(), tasks=None):
    task_list = tasks or envs[0].tasks("train")[:6]
    episodes = [Episode(task, seed) for seed in range(2) for task in task_list]
    return rollout(envs, episodes, policy=RandomPolicy(), seats=seats, layout=PromptFormat(shuffle=True))


@functools.cache
def undisturbed():
    return play([make_env("faulty")])


def begin(env):
    env.reset(seed=0, options={"task": env.tasks("train")[1]})
    return env


def about(env):
    """Return what an environment says about its process in its instructions."""
    return json.loads(env.instructions)


# ---- the same as in this process -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_episodes_are_the_same_with_any_number_of_processes_and_environments(pool):
    check_env(*pool.make("number_line", {"size": 5}, 1), episodes=1)
    here = play([make_env("dangerous_taxi", stage="full")], reflecting(ExpertReflector()))
    for count in (1, 4):
        assert play(pool.make("dangerous_taxi", {"stage": "full"}, count), reflecting(ExpertReflector())) == here
    with WorkerPool(1) as one:
        assert play(one.make("faulty", {}, 3)) == play(pool.make("faulty", {}, 3)) == undisturbed()


def test_what_it_makes_of_thoughts_is_what_the_inner_one_does(pool):
    options = {"game": "number_line"}
    inner, envs = make_env("gym_cards", **options), pool.make("gym_cards", options, 2)
    to_play = [Episode(task, 0) for task in inner.tasks("train")[:4]]
    here, there = (
        rollout(each, to_play, policy=Thinks("The target is lower."), seats=(), layout=PromptFormat())
        for each in ([inner], envs)
    )
    assert here == there
    assert {turn.rewards["agreement"] for played in there for turn in played.turns} == {0.0, 1.0}


def test_it_says_of_itself_and_shows_what_the_inner_one_does(pool):
    options = {"stage": "full", "horizon": 7}
    inner, (env,) = make_env("dangerous_taxi", **options), pool.make("dangerous_taxi", options, 1)
    for said in ("name", "instructions", "max_actions", "horizon", "splits"):
        assert getattr(env, said) == getattr(inner, said)
    for split in inner.splits:
        assert list(env.any_tasks(split)) == list(inner.any_tasks(split))
    with pytest.raises(InvalidInput, match="dangerous_taxi"):
        env.hints()
    task = inner.tasks("train")[0]
    assert env.reset(seed=5, options={"task": task}) == inner.reset(seed=5, options={"task": task})
    here = env.snapshot()
    for _ in range(2):
        assert (env.hints(), tuple(env.secrets())) == (inner.hints(), tuple(inner.secrets()))
        said = [(it.expert(), it.reflection(), it.spoiler(), it.mistaken()) for it in (env, inner)]
        assert said[0] == said[1]
        assert env.step(env.expert()) == inner.step(inner.expert())
    env.restore(here)
    assert env.snapshot() == here


def test_refusals_of_the_inner_environment_are_no_failures(pool):
    with pytest.raises(InvalidInput, match="'vault'.*'fault'"):
        pool.make("faulty", {"vault": 1}, 1)
    env = begin(*pool.make("faulty", {"fault": "refuse", "at": 1}, 1))
    with pytest.raises(InvalidInput, match=r"^this task is not for you; choose another\.$"):
        env.step("left")
    assert pool.failures == 0


# ---- many environments at a time -------------------------------------------------------------------------------------


def test_many_long_requests_with_long_answers_do_not_block_each_other(pool):
    tasks = [Task(f"train-{number}", {"number": number, "note": "x" * 30_000}) for number in range(16)]
    assert play(pool.make("faulty", {}, 32), tasks=tasks) == play([make_env("faulty")], tasks=tasks)


def test_a_request_that_was_sent_and_not_read_leaves_no_trace(pool):
    (env,), inner = pool.make("faulty", {}, 1), make_env("faulty")
    first, second = env.tasks("train")[:2]
    (unread,) = send([env], [Reset(first, 0)])
    for each in (env, inner):
        each.reset(seed=0, options={"task": second})
    send([env], [PlayAction("left")])
    assert env.step("right") == inner.step("right")
    send([env], [PlayAction("left")])
    send([env], [PlayAction("right")])
    assert env.hints() == inner.hints()
    here, there = send([env, inner], [PlayAction("right"), PlayAction("right")])
    gather([here, there])
    assert here.result() == there.result()
    assert unread.result() == inner.reset(seed=0, options={"task": first})
    assert env.step("right") == inner.step("right")


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processes")
def test_processes_that_stall_at_the_same_time_are_waited_for_once():
    with WorkerPool(2, WorkerLimits(deadline_s=1, on_failure="drop")) as pool:
        envs = pool.make("faulty", {"fault": "stall", "at": 0}, 2)
        task, elapsed_s = envs[0].tasks("train")[1], []
        while not elapsed_s or (elapsed_s[-1] >= 2 and len(elapsed_s) < 5):  # in sequence, it would always take longer
            before = time.monotonic()
            gather(send(envs, [Reset(task, len(elapsed_s))] * 2))
            elapsed_s.append(time.monotonic() - before)
        assert elapsed_s[-1] < 2
        assert pool.failures == 2 * len(elapsed_s)


# ---- failures that are survived --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "at", "count", "workers"),
    [
        ("quit", 0, 3, 1),
        ("stall with a child", 3, 3, 1),
        ("kill", 3, 12, 1),  # during a step of many environments, only this one is at fault
        ("raise", 3, 12, 2),
    ],
)
def test_an_episode_that_broke_once_is_replayed_and_nothing_shows_it(fault, at, count, workers, tmp_path):
    marker = tmp_path / "happened"
    with WorkerPool(workers, WorkerLimits(deadline_s=SHORT_S if "stall" in fault else 60.0)) as pool:
        assert play(pool.make("faulty", {"fault": fault, "at": at, "marker": str(marker)}, count)) == undisturbed()
        if fault in faulty.DEADLY:  # the process and its children are gone, and it was waited for
            assert not faulty.processes(group=int(marker.read_text()))
    assert pool.failures == 1


def test_the_other_environments_of_a_killed_process_replay_their_own_episodes():
    with WorkerPool(1) as pool:
        envs, inner = pool.make("faulty", {}, 2), [make_env("faulty") for _ in range(2)]
        for number, (env, own) in enumerate(zip(envs, inner, strict=True)):
            for each in (env, own):
                each.reset(seed=number, options={"task": each.tasks("train")[number]})
                each.step("left")
        os.kill(about(envs[0])["pid"], signal.SIGKILL)
        assert envs[1].step("right") == inner[1].step("right")
        assert envs[0].hints() == inner[0].hints()
        assert envs[0].step("right") == inner[0].step("right")
        assert pool.failures == 1


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "at", "count"), [("kill", 3, 12), ("hints", 0, 3)])
def test_drop_leaves_out_the_episodes_that_broke(fault, at, count):
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as pool:
        played = play(pool.make("faulty", {"fault": fault, "at": at}, count), reflecting(ExpertReflector()))
    whole = play([make_env("faulty")], reflecting(ExpertReflector()))
    assert played == [trajectory for trajectory in whole if trajectory.task.id != "train-1"]
    assert (len(whole) - len(played), pool.failures) == (2, 2)


def test_the_last_attempt_has_a_process_without_what_earlier_ones_used_up(tmp_path):
    with WorkerPool(1) as pool:
        options = {"fault": "out of files", "marker": str(tmp_path / "happened")}
        assert play(pool.make("faulty", options, 1)) == undisturbed()
        assert pool.failures == 2


@pytest.mark.slow
def test_an_interrupted_call_leaves_no_answer_behind_for_the_next(tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with WorkerPool(1) as pool:
            envs = pool.make("faulty", {"fault": "stall", "at": 0, "marker": str(tmp_path / "happened")}, 3)
            envs[0].tasks("train")
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                play(envs)
            assert play(envs) == undisturbed()
            assert pool.failures == 0
    finally:
        signal.signal(signal.SIGALRM, before)


# ---- failures that are reported --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "at", "facts"),
    [
        ("exit", 0, "start of task 'train-1'.*exit code 3"),
        ("odd signal", 0, "start of task 'train-1'.*signal 40"),
        ("kill", 1, "'train-1' after 0 steps.*'left'.*SIGKILL"),
        ("raise", 1, "'train-1' after 0 steps.*'left'.*ZeroDivisionError: divided by nothing"),
        ("farewell", 1, "'train-1' after 0 steps.*'left'.*Farewell: good bye"),
        ("interrupt", 1, "'train-1' after 0 steps.*'left'.*KeyboardInterrupt"),
        ("nonsense", 1, "'train-1' after 0 steps.*'left'.*nan"),
        ("no answer", 1, "'train-1' after 0 steps.*'left'.*read"),
        ("half an answer", 1, "'train-1' after 0 steps.*'left'.*exit code 3"),
    ],
)
def test_a_failure_says_where_it_happened_and_how(fault, at, facts):
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as pool:
        (env,) = pool.make("faulty", {"fault": fault, "at": at}, 1)
        with pytest.raises(EpisodeFailed, match=f"'faulty'.*{facts}"):
            begin(env).step("left")


@pytest.mark.slow
def test_too_many_failures_end_the_work():
    with WorkerPool(1) as pool:
        env = begin(*pool.make("faulty", {"fault": "nonsense", "at": 1}, 1))
        with pytest.raises(WorkFailed, match="nan.* 3 ") as caught:
            env.step("right")
        assert type(caught.value) is WorkFailed
        assert pool.failures == 3
    with WorkerPool(1, WorkerLimits(on_failure="drop", max_failures=1)) as pool:
        with pytest.raises(WorkFailed, match=" 2 .* 1.*'train-1'") as caught:
            play(pool.make("faulty", {"fault": "raise"}, 2))
        assert type(caught.value) is WorkFailed


def test_an_unrepeatable_episode_is_not_played_on(tmp_path):
    options = {"fault": "kill", "marker": str(tmp_path / "happened"), "signed": True}
    with WorkerPool(1) as pool, pytest.raises(WorkFailed, match="'train-1'"):
        play(pool.make("faulty", options, 1))


DEEP = functools.reduce(lambda inside, _: [inside], range(2000), [])


HALF = """
import os, sys, time
from faulty import Faulty
class Half(Faulty):
    name = "half"
    def act(self, action):
        os.write(int(sys.argv[2]), b'["Answer",')
        time.sleep(3600)
"""


@pytest.mark.slow
def test_a_process_that_stalls_mid_reply_misses_its_deadline(tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    with faulty.restored_registry(), WorkerPool(1, WorkerLimits(on_failure="drop", deadline_s=SHORT_S)) as pool:
        register_env("half", "half:Half")
        env = begin(*pool.make("half", {}, 1))
        with pytest.raises(EpisodeFailed, match="'left'.*stalled for more than 1 s"):
            env.step("left")


def test_a_deadline_may_be_longer_than_the_system_can_wait_at_once():
    with WorkerPool(1, WorkerLimits(deadline_s=1e7)) as patient:
        [env] = patient.make("number_line", {}, 1)
        assert begin(env).observation.actions


def test_options_that_json_would_not_give_back_are_refused(pool):
    (env,) = pool.make("faulty", {}, 1)
    for odd in (lambda: 0, (1, 2), [{"a": (1,)}], {1: 2}, Path("a"), math.nan, b"a", DEEP, "\ud800"):
        with pytest.raises(InvalidInput, match="'train-1'.*'number'"):
            env.reset(options={"task": Task("train-1", {"number": odd})})
        with pytest.raises(InvalidInput, match="'faulty'.*'marker'"):
            pool.make("faulty", {"marker": odd}, 1)
    with WorkerPool(1) as other, pytest.raises(WorkFailed, match=r"options\['at'\]=\(1, 2\) \(tuple\)"):
        other.make("faulty", {"fault": "odd tasks"}, 1)[0].split_tasks("train")
    assert begin(env).step("left") == begin(make_env("faulty")).step("left")


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh_mb():
    """Memory of a process in which nothing has been played."""
    with WorkerPool(1) as fresh:
        pid = about(*fresh.make("faulty", {}, 1))["pid"]
        return psutil.Process(pid).memory_info().rss // 10**6


@pytest.mark.slow
def test_a_process_that_grows_is_replaced_between_episodes_and_nothing_shows_it(fresh_mb):
    with WorkerPool(1, WorkerLimits(max_memory_mb=fresh_mb + 35)) as pool:  # each episode leaks 10 MB
        assert play(pool.make("faulty", {"fault": "leak"}, 2)) == undisturbed()
        assert pool.failures == 0
        assert pool.recycled > 1


@pytest.mark.slow
def test_a_process_that_grows_without_end_or_from_the_start_is_ended(fresh_mb, tmp_path):
    options = {"fault": "grow", "marker": str(tmp_path / "happened")}
    with WorkerPool(1, WorkerLimits(max_memory_mb=fresh_mb + 50)) as pool:
        assert play(pool.make("faulty", options, 3)) == undisturbed()
        assert pool.failures == 1
    with WorkerPool(1, WorkerLimits(max_memory_mb=fresh_mb * 7 // 10)) as pool:
        (env,) = pool.make("faulty", {}, 1)
        with pytest.raises(WorkFailed, match=f"{fresh_mb * 7 // 10}"):
            begin(env)


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_are_no_more_processes_than_cores_workers_or_environments():
    cores = os.cpu_count() or 1
    for workers, count in ((2, 1), (cores + 1, 3)):
        with WorkerPool(workers) as pool:
            pids = {about(env)["pid"] for env in pool.make("faulty", {}, count)}
            assert len(pids) == min(workers, count, cores)
            assert pids <= set(ours())
    with pytest.raises(InvalidInput, match="workers=0"):
        WorkerPool(0)


def test_a_worker_loads_no_torch_and_outlives_ctrl_c(pool):
    (env,) = pool.make("faulty", {}, 1)
    assert (about(env)["torch"], about(env)["threads"]) == (False, "1")
    os.kill(about(env)["pid"], signal.SIGINT)
    assert play([env]) == undisturbed()
    assert pool.failures == 0


def test_a_worker_changes_nothing_of_this_process(tmp_path, capfd):
    def state():
        return Path.cwd(), random.getstate(), signal.getsignal(signal.SIGTERM)

    before = state()
    with (tmp_path / "ours").open("w") as file, WorkerPool(1) as pool:
        os.set_inheritable(file.fileno(), True)
        (noisy,) = pool.make("faulty", {"fault": "noise"}, 1)
        handles = [str(handle.readlink()) for handle in Path(f"/proc/{about(noisy)['pid']}/fd").iterdir()]
        assert str(tmp_path / "ours") not in handles
        assert len(handles) == 5  # the three that every program has, and two pipes
        assert play([noisy]) == play(pool.make("faulty", {"fault": "vandalism"}, 2)) == undisturbed()
        assert pool.failures == 0
    assert state() == before
    assert capfd.readouterr().out == ""


def test_what_an_environment_started_and_forgot_ends_with_its_process():
    with WorkerPool(1) as pool:
        group = about(begin(*pool.make("faulty", {"fault": "leave a child", "at": 0}, 1)))["pid"]
        assert len(faulty.processes(group=group)) == 2
    wait_until(lambda: not faulty.processes(group=group))


def test_a_process_ends_with_its_last_environment():
    pool = WorkerPool(1)
    first, second = pool.make("faulty", {}, 2)
    first.close()
    first.close()
    assert about(second)["pid"] in ours()
    second.close()
    assert about(second)["pid"] not in ours()
    (env,) = pool.make("faulty", {}, 1)
    assert play([env]) == undisturbed()
    pool.close()
    pool.close()
    assert about(env)["pid"] not in ours()
    with pytest.raises(InvalidInput):
        env.reset(seed=0)
    env.close()


PARENT = """
import sys, faulty
from reflectrl.core import register_env
from reflectrl.rollout.pool import WorkerPool
register_env("faulty", "faulty:Faulty")
(env,) = WorkerPool(1).make("faulty", {"fault": sys.argv[1], "at": 0}, 1)
print(env.instructions, flush=True)
env.reset(seed=0, options={"task": env.tasks("train")[1]})
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stall with a child", ""], ids=["killed while it stalls", "forgets to close"])
def test_no_worker_outlives_its_parent(fault):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", PARENT, fault], stdout=subprocess.PIPE, env=env) as program:
        worker = json.loads(program.stdout.readline())["pid"]
        if fault:
            wait_until(lambda: len(faulty.processes(group=worker)) == 2)
            program.kill()
        else:
            assert program.wait(timeout=300) == 0
    wait_until(lambda: not faulty.processes(group=worker))


# ---- what a worker can find ------------------------------------------------------------------------------------------

USERS_MODULE = """
from faulty import Faulty
from reflectrl import register_env
class Mine(Faulty):
    name = "mine"
register_env("mine", Mine)
"""


def test_a_module_may_register_its_class_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "users_module.py").write_text(USERS_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("users_module")
    with WorkerPool(1) as pool:
        assert play(pool.make("mine", {}, 1)) == undisturbed()


def test_a_class_that_a_worker_cannot_import_is_refused(pool):
    register_env("local", type("Local", (faulty.Faulty,), {"__qualname__": "f.<locals>.Local"}))
    register_env("nowhere", "no_such_module:Env")
    register_env("nobody", "faulty:Nobody")
    for name, facts in {"local": "Local", "nowhere": "no_such_module", "nobody": "Nobody"}.items():
        with pytest.raises(InvalidInput, match=f"'{name}'.*{facts}"):
            pool.make(name, {}, 1)
    assert pool.failures == 0
