"""Environments that raise, answer nonsense, hang, grow or leave things behind, in this process and in others."""

from __future__ import annotations

import functools
import math
import os
import random
import signal
import time
from pathlib import Path

import faulty
import pytest

from reflectrl.core import EpisodeFailed, InvalidInput, Observation, Task, WorkFailed, check_env, make_env, register_env
from reflectrl.core.errors import EnvFailed
from reflectrl.players import RandomPolicy
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.workers.limits import WorkerLimits
from reflectrl.workers.pool import WorkerPool, ask_ahead
from reflectrl.workers.protocol import Reset

ours = functools.partial(faulty.processes, parent=os.getpid())


@pytest.fixture(autouse=True, scope="module")
def _table():
    with faulty.registered():
        yield


@pytest.fixture(autouse=True)
def _nothing_left():
    """No process is left after a test, not even a dead one."""
    before = sorted(ours())
    yield
    assert sorted(ours()) == before


def play(envs):
    episodes = [Episode(task, seed) for seed in range(2) for task in envs[0].tasks("train")]
    return rollout(envs, episodes, policy=RandomPolicy(), reflector=None, layout=PromptFormat(shuffle=True))


def undisturbed():
    return play([make_env("faulty")])


def begin(env):
    env.reset(seed=0, options={"task": env.tasks("train")[1]})
    return env


def process(env):
    """The number of the process that an environment lives in."""
    return int(env.instructions.partition('"pid": ')[2].partition(",")[0])


def resident_mb(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 10**6


# ---- raising, in this process ----------------------------------------------------------------------------------------


def fail(*_):
    raise ZeroDivisionError("divided by nothing.\nat all")


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("start", "failed at the start of task 'train-0'"),
        ("observe", "failed at the start of task 'train-0'"),
        ("act", "failed in task 'train-0' after 1 steps, at action 'right'"),
        ("expert", "failed in task 'train-0' after 1 steps, asked for hints"),
        ("reflection", "failed in task 'train-0' after 1 steps, asked for hints"),
        ("spoiler", "failed in task 'train-0' after 1 steps, asked for hints"),
        ("mistaken", "failed in task 'train-0' after 1 steps, asked for hints"),
        ("secrets", "failed in task 'train-0' after 1 steps, asked for hints"),
        ("tasks", "failed when it was asked for its train tasks"),
    ],
)
def test_what_a_method_raises_becomes_a_sentence_that_says_where_it_happened(corridor, method, where):
    def late(self, *given):
        return (
            fail() if self.steps == (2 if method == "act" else 1) else getattr(super(type(self), self), method)(*given)
        )

    env = corridor(**{method: late if "after" in where else fail})
    with pytest.raises(EnvFailed) as caught:  # noqa: PT012
        env.reset(seed=0, options={"task": env.split_tasks("train")[0]})
        env.step("right")
        env.hints()
        env.step("right")
    assert str(caught.value).startswith(
        f"environment 'corridor' {where}: it raised ZeroDivisionError: divided by nothing; mend "
    )
    assert type(caught.value.__cause__) is ZeroDivisionError


def test_only_what_happens_in_an_episode_can_be_survived_in_worker_processes(corridor):
    with pytest.raises(EnvFailed, match="env.workers"):
        corridor(start=fail).reset()
    with pytest.raises(EnvFailed, match="mend the environment.$"):
        corridor(tasks=fail).split_tasks("train")


@pytest.mark.parametrize("kind", [InvalidInput, WorkFailed])
def test_a_sentence_of_its_own_is_left_as_it_is(corridor, kind):
    def refuse(*_):
        raise kind("this task is not for you; choose another.")

    with pytest.raises(kind, match=r"^this task is not for you; choose another\.$") as caught:
        corridor(start=refuse).reset()
    assert caught.value.__cause__ is None


def test_an_environment_does_not_end_the_program_but_a_signal_does(corridor):
    def leave(status):
        raise SystemExit(status)

    with pytest.raises(EnvFailed, match=r"it called sys\.exit\(4\)"):
        corridor(start=lambda *_: leave(4)).reset()
    with pytest.raises(SystemExit):
        corridor(start=lambda *_: leave(128 + signal.SIGTERM)).reset()


def test_after_a_failure_the_episode_is_over(corridor):
    env = corridor(act=fail)
    env.reset()
    with pytest.raises(EnvFailed):
        env.step("right")
    with pytest.raises(InvalidInput, match="call reset first"):
        env.step("right")


# ---- nonsense --------------------------------------------------------------------------------------------------------

NONSENSE = {
    "nonsense": r"returned 'nonsense' from act\(\); expected an Outcome",
    "no answer": r"returned success=<function .*> for 'left'; expected True or False",
    "reward nan": "returned reward nan for 'left'; expected a finite number",
    "reward text": "returned reward '0.5' for 'left'; expected a finite number",
    "reward beyond floats": r"returned reward 10+\.\.\.0+ for 'left'; expected a finite number",
    "success 1": "returned success=1 for 'left'; expected True or False",
    "no observation": r"returned 'A door.' from observe\(\); expected an Observation",
    "no text": "showed None as a text; observation texts and actions must be str",
    "no tuple": r"showed the menu \['left', 'right'\], which is no tuple",
    "no actions": "offered no legal action",
    "an empty action": r"showed actions \[' '\], which are empty or span lines",
    "two lines": r"showed actions \['ri\\nght'\], which are empty or span lines",
    "an action twice": "showed a menu that repeats an action, 'left'",
    "three actions": "showed a menu that has 3 actions, but max_actions is 2",
    "half a character": r"showed the text 'A d\\ud83dr.'; expected one without NUL and lone surrogates",
    "nul": r"showed the text 'A d\\x00r.'; expected one without NUL",
    "a long text": "showed texts of 50,000,0.. characters; expected 1,000,000 at most",
}


@pytest.mark.parametrize("fault", NONSENSE)
def test_nonsense_is_refused_at_the_step_at_which_it_happens(fault):
    env = begin(make_env("faulty", fault=fault))
    env.step("left")
    env.step("left")
    where = "environment 'faulty' failed in task 'train-1' after 2 steps, at action 'left'"
    with pytest.raises(EnvFailed, match=f"^{where}: it {NONSENSE[fault]}") as caught:
        env.step("left")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("fault", NONSENSE)
def test_the_checker_finds_it_with_the_same_sentence(fault):
    with pytest.raises(InvalidInput, match=f"task 'train-1' .*: it {NONSENSE[fault].replace('left', '(left|right)')}"):
        check_env(make_env("faulty", fault=fault), episodes=6)


@pytest.fixture(scope="module")
def pool(_table):
    """A process for the failures that it survives."""
    with WorkerPool(1, WorkerLimits(max_failures=100)) as shared:
        shared.make("faulty", {}, 1)
        yield shared


@pytest.mark.parametrize("fault", NONSENSE)
def test_nonsense_that_happened_once_in_a_worker_process_is_a_failure_and_nothing_shows_it(pool, fault, tmp_path):
    before = pool.failures
    envs = pool.make("faulty", {"fault": fault, "marker": str(tmp_path / "happened")}, 3)
    assert play(envs) == undisturbed()
    assert pool.failures == before + 1
    for env in envs:
        env.close()


def test_what_is_wrong_with_an_answer_is_told_by_worker_processes_too():
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as dropping:
        (env,) = dropping.make("faulty", {"fault": "reward nan", "at": 1}, 1)
        with pytest.raises(EpisodeFailed, match="at action 'left': it returned reward nan for 'left'; expected a fin"):
            begin(env).step("left")


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"tasks": lambda *_: None}, r"returned None from tasks\('train'\); expected a sequence of Task records"),
        ({"tasks": lambda *_: iter([])}, "returned <list_iterator.*expected a sequence"),
        ({"tasks": lambda *_: [Task(1)]}, r"returned tasks\('train'\) that holds Task\(id=1.*with a text as id"),
        ({"tasks": lambda *_: [Task("a"), Task("a")]}, r"returned tasks\('train'\) that repeats an id, 'a'"),
    ],
)
def test_tasks_that_are_none_are_refused(corridor, replaced, said):
    with pytest.raises(EnvFailed, match=f"failed when it was asked for its train tasks: it {said}"):
        corridor(**replaced).split_tasks("train")
    with pytest.raises(InvalidInput, match=said):
        check_env(corridor(**replaced))


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"expert": lambda _: "fly"}, r"answered 'fly' from expert\(\), which is not on the menu \('right',\)"),
        ({"spoiler": lambda _: 3}, "showed 3 as a text"),
        ({"reflection": lambda _: "\udcff"}, r"showed the text '\\udcff'"),
        ({"mistaken": lambda _: 1}, r"answered 1 from mistaken\(\); expected True, False or None"),
        ({"secrets": lambda _: ["amber", 3]}, "showed 3 as a text"),
    ],
)
def test_hints_that_nobody_can_play_or_say_are_refused(corridor, replaced, said):
    env = corridor(**replaced)
    env.reset(options={"task": Task("train-0", {"room": 0})})
    with pytest.raises(EnvFailed, match=f"after 0 steps, asked for hints: it {said}"):
        env.hints()


@pytest.mark.parametrize(("name", "value"), [("instructions", 3), ("max_actions", "2"), ("max_actions", 0)])
def test_the_checker_looks_at_what_an_environment_says_of_itself(corridor, name, value):
    with pytest.raises(InvalidInput, match=f"corridor: {name} .* {value!r}; expected"):
        check_env(corridor(**{name: value}))


@pytest.mark.parametrize("fault", ["own class", "unreadable"])
def test_only_what_an_observation_is_made_of_leaves_a_worker_process(pool, fault):
    (env,) = pool.make("faulty", {"fault": fault, "at": 0}, 1)
    seen = begin(env).observation
    assert (type(seen), type(seen.text)) == (Observation, str)
    env.close()


# ---- messages --------------------------------------------------------------------------------------------------------

TELLING = """
import os, sys, time
import faulty
from reflectrl.core import Outcome, Task

class Liar(faulty.Faulty):
    name = "liar"
    def __init__(self, said="", times=1, then="", marker=""):
        super().__init__("say", at=1, marker=marker)
        faulty.FAULTS["say"] = lambda: self.say(said.encode("latin-1") * times, then)
    def say(self, said, then):
        while said:
            said = said[os.write(int(sys.argv[2]), said) :]
        if then:
            faulty.FAULTS[then]()

class Echo(faulty.Faulty):
    name = "echo"
    def act(self, action):
        return Outcome(self.task.options["reward"])

class Odd(faulty.Faulty):
    name = "odd"
    def tasks(self, split):
        return [Task("train-1", {"at": (1, 2)})]
"""


@pytest.fixture
def telling(tmp_path, monkeypatch):
    """The environments of ``TELLING`` are known."""
    (tmp_path / "telling.py").write_text(TELLING)
    monkeypatch.syspath_prepend(tmp_path)
    with faulty.registered():
        for name in ("Liar", "Echo", "Odd"):
            register_env(name.lower(), f"telling:{name}")
        yield


def answer(reward="0.5", actions='["left","right"]'):
    outcome = f'{{"reward":{reward},"ended":false,"success":false,"illegal":false}}'
    observation = f'{{"text":"A door.","actions":{actions},"task":""}}'
    return f'["Answer",{{"outcome":{outcome},"observation":{observation}}}]\n'


LIES = {
    "no JSON": ({"said": "\x80\x04K\x01.\n"}, "cannot be read"),
    "no reply": ({"said": "{}\n"}, "cannot be read"),
    "another answer": ({"said": '["Answer",{"text":"A door.","actions":[],"task":""}]\n'}, "cannot be read"),
    "an outcome that is none": ({"said": answer(reward="true")}, r"cannot be read.*outcome\.reward"),
    "nan": ({"said": answer(reward="NaN")}, "cannot be read"),
    "infinity": ({"said": answer(reward="1e999")}, r"cannot be read.*outcome\.reward"),
    "an action that is no text": ({"said": answer(actions='["left",2]')}, r"cannot be read.*actions\[1\]"),
    "a text for a menu": ({"said": answer(actions='"left"')}, "cannot be read.*actions"),
    "depth": ({"said": "[" * 100_000 + "\n"}, "cannot be read"),
    "a beginning": ({"said": '["Answer",'}, "cannot be read"),
    "a beginning and an end": ({"said": '["Answer",', "then": "exit"}, "exit code 3"),
    "a beginning and nothing more": ({"said": '["Answer",', "then": "stall"}, "stalled for more than 1 s"),
    "length": ({"said": " " * 2**16, "times": 1025}, "67,108,864 bytes"),
}
"""What it says in the middle of a step, before it answers, and what is said of it."""


@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_is_no_answer_is_a_failure_of_the_environment(telling, lie):  # noqa: ARG001
    options, said = LIES[lie]
    with WorkerPool(1, WorkerLimits(deadline_s=1 if "stall" in said else 60, on_failure="drop")) as own:
        (env,) = own.make("liar", options, 1)
        with pytest.raises(EpisodeFailed, match=f"'train-1' after 0 steps, at action 'left': it .*{said}"):
            begin(env).step("left")
        assert own.failures == 1


def test_after_such_a_message_the_episode_is_replayed_and_nothing_shows_it(telling, tmp_path):  # noqa: ARG001
    with WorkerPool(1) as own:
        assert play(own.make("liar", {"said": "null\n", "marker": str(tmp_path / "happened")}, 3)) == undisturbed()
        assert own.failures == 1


def test_numbers_come_back_to_the_bit(telling):  # noqa: ARG001
    with WorkerPool(1) as own:
        (env,) = own.make("echo", {}, 1)
        for reward in (0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 1, 10**300):
            env.reset(seed=0, options={"task": Task("train-1", {"number": 1, "reward": reward})})
            assert env.step("left")[1].hex() == float(reward).hex()


def test_options_arrive_as_they_are(pool):
    (env,) = pool.make("faulty", {}, 1)
    note = {"deep": [1, None, {"ä": 0.1, "": [[]]}, True, 1.0, "é\n\u2028", 10**30]}
    task = Task("train-1", {"number": 1, "note": note})
    alone = make_env("faulty")
    assert env.reset(seed=0, options={"task": task}) == alone.reset(seed=0, options={"task": task})
    env.close()


def nested(levels):
    return functools.reduce(lambda inside, _: [inside], range(levels), [])


ODD = [lambda: 0, (1, 2), [{"a": (1,)}], {1: 2}, {"a"}, Path("a"), math.nan, [-math.inf], b"a", nested(2000), "\ud800"]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_options_that_json_would_not_give_back_are_refused(pool, odd):
    before, said = pool.failures, "has 'number' = .*cannot be sent to a worker process; expected plain values"
    (env,) = pool.make("faulty", {}, 1)
    with pytest.raises(InvalidInput, match=f"task 'train-1' {said}"):
        env.reset(options={"task": Task("train-1", {"number": odd})})
    assert begin(env).step("left") == begin(make_env("faulty")).step("left")
    env.close()
    with pytest.raises(InvalidInput, match=f"environment 'faulty' {said.replace('number', 'marker')}"):
        pool.make("faulty", {"marker": odd}, 1)
    assert pool.failures == before


def test_tasks_with_such_options_are_refused_where_they_are_made(telling):  # noqa: ARG001
    with WorkerPool(1) as own:
        (env,) = own.make("odd", {}, 1)
        with pytest.raises(InvalidInput, match=r"task 'train-1' has 'at' = \(1, 2\), which cannot be sent"):
            env.split_tasks("train")
        assert own.failures == 0


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh_mb(_table):
    """What a process needs in which nothing has been played."""
    with WorkerPool(1) as one:
        return resident_mb(process(one.make("faulty", {}, 1)[0]))


def test_a_process_that_grows_is_replaced_between_episodes_and_nothing_shows_it(fresh_mb):
    with WorkerPool(1, WorkerLimits(max_memory_mb=int(fresh_mb) + 35)) as pool:  # each episode leaks 10 MB
        assert play(pool.make("faulty", {"fault": "leak"}, 2)) == undisturbed()
        assert pool.failures == 0
        assert pool.recycled > 1


def test_without_a_limit_no_process_is_replaced(pool):
    assert play(pool.make("faulty", {"fault": "leak"}, 2)) == undisturbed()
    assert pool.recycled == 0


def test_a_process_that_grows_without_end_is_stopped_in_the_middle(fresh_mb, tmp_path):
    options = {"fault": "grow", "marker": str(tmp_path / "happened")}
    limits = WorkerLimits(max_memory_mb=int(fresh_mb) + 60)  # no episode alone reaches it, one that grows twice as much
    with WorkerPool(1, limits) as pool:
        assert play(pool.make("faulty", options, 3)) == undisturbed()
        assert (pool.failures, pool.recycled) == (1, 0)


def test_its_failure_is_told_in_a_sentence(fresh_mb):
    with WorkerPool(1, WorkerLimits(max_memory_mb=int(fresh_mb) + 10, on_failure="drop")) as pool:
        (env,) = pool.make("faulty", {"fault": "grow", "at": 1}, 1)
        begin(env)
        with pytest.raises(
            EpisodeFailed, match=rf"it used \d+ MB of memory, more than {2 * (int(fresh_mb) + 10)}; the ep"
        ):
            env.step("left")


def test_a_limit_that_a_fresh_process_does_not_keep_is_refused(fresh_mb):
    limit = int(fresh_mb * 0.7)
    with WorkerPool(1, WorkerLimits(max_memory_mb=limit)) as pool:
        (env,) = pool.make("faulty", {}, 1)
        said = rf"uses \d+ MB of memory after 0 episodes of 1 environments; max_memory_mb is {limit}: raise it"
        with pytest.raises(WorkFailed, match=said):
            begin(env)


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processes")
def test_processes_that_stall_at_the_same_time_are_waited_for_once():
    with WorkerPool(2, WorkerLimits(deadline_s=4, on_failure="drop")) as pool:
        envs = pool.make("faulty", {"fault": "stall", "at": 0}, 2)
        task = envs[0].tasks("train")[1]
        before = time.monotonic()
        ask_ahead(envs, [Reset(task, 0)] * 2)
        assert time.monotonic() - before < 7.9  # one after the other: 8
        assert pool.failures == 2


def test_the_last_attempt_has_a_process_without_what_earlier_ones_used_up(tmp_path):
    options = {"fault": "out of files", "marker": str(tmp_path / "happened")}
    with WorkerPool(1) as pool:
        assert play(pool.make("faulty", options, 1)) == undisturbed()
        assert pool.failures == 2


def test_a_signal_without_a_name_is_named_by_its_number():
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as pool:
        (env,) = pool.make("faulty", {"fault": "odd signal", "at": 0}, 1)
        with pytest.raises(EpisodeFailed, match="it died of signal 40; the episode is dropped"):
            begin(env)


def test_what_an_environment_started_and_forgot_ends_with_its_process():
    with WorkerPool(1) as pool:
        (env,) = pool.make("faulty", {"fault": "leave a child", "at": 0}, 1)
        group = process(begin(env))
        assert len(faulty.processes(group=group)) == 2
    faulty.wait_until(lambda: not faulty.processes(group=group))


def test_a_process_has_no_file_of_ours(tmp_path):
    with (tmp_path / "ours").open("w") as file, WorkerPool(1) as pool:
        os.set_inheritable(file.fileno(), True)
        (env,) = pool.make("faulty", {}, 1)
        handles = [str(handle.readlink()) for handle in Path(f"/proc/{process(env)}/fd").iterdir()]
    assert str(tmp_path / "ours") not in handles
    assert len(handles) == 5  # the three that every program has, and two pipes


def test_an_environment_in_another_process_does_not_change_ours():
    def state():
        return Path.cwd(), random.getstate(), signal.getsignal(signal.SIGTERM)

    before = state()
    with WorkerPool(1) as pool:
        played = play(pool.make("faulty", {"fault": "vandalism"}, 2))
        assert pool.failures == 0
    assert state() == before
    assert played == undisturbed()
