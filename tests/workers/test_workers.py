from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faulty
import pytest
from faulty import wait_until

from reflectrl.core import EpisodeFailed, InvalidInput, Task, WorkFailed, check_env, make_env, register_env
from reflectrl.players import ExpertReflector, RandomPolicy
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.workers.limits import WorkerLimits
from reflectrl.workers.pool import WorkerPool, ask_ahead
from reflectrl.workers.protocol import Reset, Step

ours = functools.partial(faulty.processes, parent=os.getpid())


@pytest.fixture(autouse=True, scope="module")
def _table():
    with faulty.registered():
        yield


@pytest.fixture(scope="module")
def pool(_table):
    """Two processes for the tests that do not break them."""
    with WorkerPool(2) as shared:
        shared.make("faulty", {}, 2)
        yield shared
        assert shared.failures == 0


@pytest.fixture(autouse=True)
def _nothing_left(pool):  # noqa: ARG001 - its processes are there before and after
    """No process is left after a test, not even a dead one."""
    before = sorted(ours())
    yield
    assert sorted(ours()) == before


def play(envs, reflector=None, tasks=None):
    task_list = tasks or envs[0].tasks("train")[:6]
    episodes = [Episode(task, seed) for seed in range(2) for task in task_list]
    return rollout(envs, episodes, policy=RandomPolicy(), reflector=reflector, layout=PromptFormat(shuffle=True))


def told(env):
    """What an environment says of the process it lives in."""
    return json.loads(env.instructions)


def deadline(fault):
    return 1 if fault.startswith("stall") else 60


# ---- the same as in this process -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4])
def test_episodes_are_the_same_as_in_this_process(pool, count):
    remote = play(pool.make("dangerous_taxi", {"stage": "full"}, count), ExpertReflector())
    assert remote == play([make_env("dangerous_taxi", stage="full")], ExpertReflector())


def test_one_process_plays_as_two_do(pool):
    with WorkerPool(1) as one:
        assert play(one.make("faulty", {}, 3)) == play(pool.make("faulty", {}, 3)) == play([make_env("faulty")])


def test_a_worker_env_has_the_further_splits(pool):
    (remote,) = pool.make("dangerous_taxi", {}, 1)
    assert remote.splits == ("train", "validation", "test", "unseen_destination")
    assert remote.split_tasks("unseen_destination") == make_env("dangerous_taxi").tasks("unseen_destination")


def test_a_worker_env_keeps_the_promises_of_an_environment(pool):
    check_env(*pool.make("number_line", {"size": 5}, 1), episodes=1)


def test_it_says_of_itself_and_shows_what_the_inner_one_does(pool):
    inner = make_env("dangerous_taxi", stage="dropoff", horizon=7)
    (env,) = pool.make("dangerous_taxi", {"stage": "dropoff", "horizon": 7}, 1)
    for name in ("name", "instructions", "max_actions", "horizon"):
        assert getattr(env, name) == getattr(inner, name)
    for split in ("train", "validation", "test"):
        assert list(env.tasks(split)) == list(inner.tasks(split))
    options = {"task": inner.tasks("test")[0]}
    assert env.reset(seed=5, options=options) == inner.reset(seed=5, options=options)
    assert env.hints() == inner.hints()
    assert (env.expert(), env.reflection(), env.spoiler()) == (inner.expert(), inner.reflection(), inner.spoiler())
    here = env.snapshot()
    assert env.step("move north") == inner.step("move north")
    assert env.hints() == inner.hints()
    assert env.mistaken() is inner.mistaken() is not None
    env.restore(here)
    assert env.snapshot() == here


def test_secrets_are_those_of_the_inner_one(pool):
    inner = make_env("auto_explore")
    (env,) = pool.make("auto_explore", {}, 1)
    options = {"task": next(task for task in inner.tasks("train") if task.id.startswith("d2/"))}
    for each in (env, inner):
        each.reset(seed=5, options=options)
    assert len(inner.secrets()) == 3
    assert list(env.secrets()) == list(inner.secrets())
    assert env.hints() == inner.hints()


def test_hints_before_the_first_reset_are_refused(pool):
    (env,) = pool.make("number_line", {}, 1)
    with pytest.raises(InvalidInput, match="'number_line' has not been reset yet"):
        env.hints()


def test_what_the_inner_one_refuses_is_refused_with_its_words_and_is_no_failure(pool):
    with pytest.raises(InvalidInput, match="environment 'faulty' has no option 'vault'; did you mean 'fault'"):
        pool.make("faulty", {"vault": 1}, 1)
    (env,) = pool.make("faulty", {"fault": "refuse"}, 1)
    env.reset(seed=0, options={"task": env.tasks("train")[1]})
    env.step("left")
    env.step("left")
    with pytest.raises(InvalidInput, match=r"^this task is not for you; choose another\.$"):
        env.step("left")
    assert pool.failures == 0


# ---- many at a time --------------------------------------------------------------------------------------------------


def waits(pid):
    """How often a process has waited for something."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_process_is_waited_for_once_a_step_not_once_an_environment():
    with WorkerPool(1) as pool:
        envs = pool.make("faulty", {}, 12)
        envs[0].tasks("train")
        before = waits(told(envs[0])["pid"])
        assert sum(len(trajectory.turns) for trajectory in play(envs)) == 72
        assert waits(told(envs[0])["pid"]) - before < 36  # 7 messages


def test_many_long_requests_with_long_answers_do_not_block_each_other(pool):
    tasks = [Task(f"train-{number}", {"number": number, "note": "x" * 30_000}) for number in range(16)]
    assert play(pool.make("faulty", {}, 32), tasks=tasks) == play([make_env("faulty")], tasks=tasks)


def test_what_was_asked_ahead_but_not_played_leaves_no_trace(pool):
    (env,), inner = pool.make("faulty", {}, 1), make_env("faulty")
    first, second = env.tasks("train")[:2]
    ask_ahead([env], [Reset(first, 0)])
    for each in (env, inner):
        each.reset(seed=0, options={"task": second})
    ask_ahead([env, inner], [Step("left"), Step("left")])
    assert env.step("right") == inner.step("right")
    ask_ahead([env], [Step("left")])
    ask_ahead([env], [Step("right")])
    assert env.hints() == inner.hints()
    ask_ahead([env], [Step("right")])
    assert env.step("right") == inner.step("right")


def test_two_threads_may_play_over_the_same_processes(pool):
    mine, yours = pool.make("faulty", {}, 4), pool.make("faulty", {}, 4)[::-1]
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(play, [mine, yours])
    assert one == other == play([make_env("faulty")])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fault", ["kill", "stall", "raise"])
def test_one_that_breaks_in_the_middle_of_a_step_of_many_is_the_only_one_to_blame(workers, fault, tmp_path):
    options = {"fault": fault, "task": "train-2", "marker": str(tmp_path / "happened")}
    with WorkerPool(workers, WorkerLimits(deadline_s=deadline(fault))) as pool:
        assert play(pool.make("faulty", options, 12)) == play([make_env("faulty")])
    assert pool.failures == 1


@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_drop_leaves_out_the_one_that_breaks_in_the_middle_of_a_step_of_many(fault):
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as pool:
        played = play(pool.make("faulty", {"fault": fault, "task": "train-2"}, 12))
    assert played == [trajectory for trajectory in play([make_env("faulty")]) if trajectory.task.id != "train-2"]
    assert (len(played), pool.failures) == (10, 2)


# ---- crashes and stalls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "at"), [("quit", 0), ("kill", 3), ("stall with a child", 3), ("raise", 3), ("no answer", 3)]
)
def test_an_episode_that_broke_once_is_replayed_and_nothing_shows_it(fault, at, tmp_path):
    marker = tmp_path / "happened"
    options = {"fault": fault, "at": at, "marker": str(marker)}
    before = len(ours())
    with WorkerPool(1, WorkerLimits(deadline_s=deadline(fault))) as pool:
        played = play(pool.make("faulty", options, 3))
        if fault in faulty.DEADLY:  # the process is gone, with what it had started, and was waited for
            assert not faulty.processes(group=int(marker.read_text()))
            assert len(ours()) == before + 1
    assert pool.failures == 1
    assert played == play([make_env("faulty")])


def test_the_other_environments_of_a_killed_process_replay_their_own_episodes():
    with WorkerPool(1) as pool:
        envs = pool.make("faulty", {}, 2)
        inner = [make_env("faulty") for _ in envs]
        for number, (env, own) in enumerate(zip(envs, inner, strict=True)):
            for each in (env, own):
                each.reset(seed=number, options={"task": each.tasks("train")[number]})
                each.step("left")
        os.kill(told(envs[0])["pid"], signal.SIGKILL)
        assert envs[1].step("right") == inner[1].step("right")
        assert envs[0].hints() == inner[0].hints()
        assert envs[0].step("right") == inner[0].step("right")
        assert pool.failures == 1


@pytest.mark.parametrize(
    ("fault", "at", "sentence"),
    [
        ("exit", 0, r"at the start of task 'train-1': it died with exit code 3; the episode is dropped\."),
        ("kill", 1, r"in task 'train-1' after 0 steps, at action 'left': it died of SIGKILL; the episode is dropped\."),
        ("stall", 1, r"in task 'train-1' .*'left': it stalled for more than 1 s; the episode is dropped\."),
        (
            "raise",
            1,
            r"in task 'train-1' .*'left': it raised ZeroDivisionError: divided by nothing; the episode is",
        ),
    ],
)
def test_a_failure_is_told_in_a_sentence(fault, at, sentence):
    with WorkerPool(1, WorkerLimits(deadline_s=deadline(fault), on_failure="drop")) as pool:
        (env,) = pool.make("faulty", {"fault": fault, "at": at}, 1)
        task = env.tasks("train")[1]
        with pytest.raises(EpisodeFailed, match=f"^environment 'faulty' failed {sentence}"):  # noqa: PT012
            env.reset(seed=0, options={"task": task})
            env.step("left")


def test_a_call_that_fails_again_and_again_is_given_up():
    with WorkerPool(1) as pool:
        (env,) = pool.make("faulty", {"fault": "nonsense"}, 1)
        env.reset(seed=0, options={"task": env.tasks("train")[1]})
        env.step("left")
        env.step("left")
        said = "it returned 'nonsense' from act.*; expected an Outcome; it was tried 3 times"
        with pytest.raises(WorkFailed, match=said) as raised:
            env.step("right")
        assert not isinstance(raised.value, EpisodeFailed)
        assert pool.failures == 3


@pytest.mark.parametrize(("fault", "at"), [("kill", 3), ("raise", 0), ("hints", 0)])
def test_drop_leaves_out_the_episodes_that_broke(fault, at):
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as pool:
        played = play(pool.make("faulty", {"fault": fault, "at": at}, 3), ExpertReflector())
    whole = play([make_env("faulty")], ExpertReflector())
    assert played == [trajectory for trajectory in whole if trajectory.task.id != "train-1"]
    assert (len(whole) - len(played), pool.failures) == (2, 2)


def test_too_many_failures_end_the_work():
    with WorkerPool(1, WorkerLimits(on_failure="drop", max_failures=1)) as pool:
        envs = pool.make("faulty", {"fault": "raise"}, 2)
        with pytest.raises(WorkFailed, match="environments failed 2 times; the limit is 1: .*task 'train-1'") as raised:
            play(envs)
    assert not isinstance(raised.value, EpisodeFailed)


def test_an_episode_that_does_not_come_back_the_same_is_not_played_on(tmp_path):
    options = {"fault": "kill", "marker": str(tmp_path / "happened"), "signed": True}
    with (
        WorkerPool(1) as pool,
        pytest.raises(WorkFailed, match="'train-1' again after a failure and came to another state"),
    ):
        play(pool.make("faulty", options, 1))


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
            assert play(envs) == play([make_env("faulty")])
            assert pool.failures == 0
    finally:
        signal.signal(signal.SIGALRM, before)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_there_are_no_more_processes_than_cores_workers_or_environments():
    cores = os.cpu_count() or 1
    for workers, count in ((2, 1), (cores + 1, 3)):
        with WorkerPool(workers) as pool:
            pids = {told(env)["pid"] for env in pool.make("faulty", {}, count)}
            assert len(pids) == min(workers, count, cores)
            assert pids <= set(ours())


def test_a_worker_loads_no_torch_and_computes_with_one_thread(pool):
    (env,) = pool.make("faulty", {}, 1)
    assert (told(env)["torch"], told(env)["threads"]) == (False, "1")


def test_noise_of_an_engine_does_not_reach_our_standard_output(capfd):
    with WorkerPool(1) as pool:
        play(pool.make("faulty", {"fault": "noise"}, 1))
    assert capfd.readouterr().out == ""


def test_ctrl_c_does_not_end_a_worker(pool):
    (env,) = pool.make("faulty", {}, 1)
    os.kill(told(env)["pid"], signal.SIGINT)
    assert len(play([env])) == 12
    assert pool.failures == 0


def test_a_process_ends_with_its_last_environment_and_comes_back_for_new_ones():
    with WorkerPool(1) as pool:
        first, second = pool.make("faulty", {}, 2)
        first.close()
        first.close()
        assert told(second)["pid"] in ours()
        second.close()
        assert told(second)["pid"] not in ours()
        assert len(play(pool.make("faulty", {}, 1))) == 12


def test_nothing_is_played_after_the_pool_was_closed():
    pool = WorkerPool(1)
    (env,) = pool.make("faulty", {}, 1)
    pool.close()
    pool.close()
    assert told(env)["pid"] not in ours()
    with pytest.raises(InvalidInput, match="used after its worker processes were closed"):
        env.reset(seed=0)
    env.close()


PARENT = """
import sys, faulty
from reflectrl.core import register_env
from reflectrl.workers.pool import WorkerPool
if __name__ == "__main__":
    register_env("faulty", "faulty:Faulty")
    pool = WorkerPool(1)
    (env,) = pool.make("faulty", {"fault": sys.argv[1], "at": 0}, 1)
    print(env.instructions, flush=True)
    env.reset(seed=0, options={"task": env.tasks("train")[1]})
    print("begun", flush=True)
"""


@pytest.fixture
def parent(tmp_path):
    """Start a program that has a worker; returns it and the worker's number."""
    started = []
    (tmp_path / "parent.py").write_text(PARENT)

    def start(fault):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, tmp_path / "parent.py", fault]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        started.append(program)
        return program, json.loads(program.stdout.readline())["pid"]

    yield start
    for program in started:
        program.kill()
        program.communicate()


def test_no_worker_outlives_its_parent_not_even_when_that_is_killed_and_it_stalls(parent):
    program, worker = parent("stall with a child")
    wait_until(lambda: len(faulty.processes(group=worker)) == 2)
    program.kill()
    wait_until(lambda: not faulty.processes(group=worker))


def test_a_program_that_forgets_to_close_its_pool_ends_all_the_same(parent):
    program, worker = parent("")
    assert program.communicate(timeout=300)[0] == b"begun\n"
    assert program.returncode == 0
    assert not faulty.processes(group=worker)


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
        assert play(pool.make("mine", {}, 1)) == play([make_env("faulty")])


def test_a_class_that_no_other_process_can_import_is_refused_at_once(pool):
    class Local(faulty.Faulty):
        pass

    register_env("local", Local)
    with pytest.raises(InvalidInput, match="'local' is .*Local.* move the class to the top"):
        pool.make("local", {}, 1)


@pytest.mark.parametrize(
    ("name", "target", "sentence"),
    [
        ("nowhere", "no_such_module:Env", "which cannot be imported: No module named 'no_such_module'"),
        ("nobody", "faulty:Nobody", "which cannot be imported: .*no attribute 'Nobody'"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_as_in_this_process(pool, name, target, sentence):
    register_env(name, target)
    with pytest.raises(InvalidInput, match=f"environment '{name}' points at .*{sentence}"):
        pool.make(name, {}, 1)
    assert pool.failures == 0


def test_no_workers_at_all_are_refused():
    with pytest.raises(InvalidInput, match="workers=0 was given; expected 1 or more"):
        WorkerPool(0)
