"""Environments that raise or answer nonsense: every fault becomes a sentence that says where it happened."""

from __future__ import annotations

import signal

import faulty
import pytest

from reflectrl.core import InvalidInput, Task, WorkFailed, check_env, make_env
from reflectrl.core.errors import EnvFailed
from reflectrl.workers.limits import WorkerLimits
from reflectrl.workers.pool import WorkerPool


@pytest.fixture(autouse=True, scope="module")
def _table():
    with faulty.registered():
        yield


def fail(*_):
    raise ZeroDivisionError("divided by nothing.\nat all")


def exit_with(status):
    raise SystemExit(status)


AT_1 = "in task 'train-0' after 1 steps"


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("start", "at the start of task 'train-0'"),
        ("observe", "at the start of task 'train-0'"),
        ("act", f"{AT_1}, at action 'right'"),
        *((hint, AT_1) for hint in ("expert", "reflection", "spoiler", "mistaken", "secrets")),
        ("tasks", "train tasks"),
    ],
)
def test_what_a_method_raises_becomes_a_sentence_that_says_where_it_happened(corridor, method, where):
    def late(self, *given):
        wanted = 2 if method == "act" else 1
        return fail() if self.steps == wanted else getattr(super(type(self), self), method)(*given)

    env = corridor(**{method: late if "after" in where else fail})
    with pytest.raises(EnvFailed) as caught:  # noqa: PT012
        env.reset(seed=0, options={"task": env.split_tasks("train")[0]})
        env.step("right")
        env.hints()
        env.step("right")
    assert "environment 'corridor' failed" in caught.value.where
    assert where in caught.value.where
    assert caught.value.what == "raised ZeroDivisionError: divided by nothing"
    assert type(caught.value.__cause__) is ZeroDivisionError
    if method != "tasks":
        with pytest.raises(InvalidInput, match="reset"):  # the episode is over
            env.step("right")
    # only what happens in an episode can be survived in worker processes
    assert ("env.workers" in str(caught.value)) is (method != "tasks")


@pytest.mark.parametrize("kind", [InvalidInput, WorkFailed])
def test_a_sentence_of_its_own_is_left_as_it_is(corridor, kind):
    def refuse(*_):
        raise kind("this task is not for you; choose another.")

    with pytest.raises(kind, match=r"^this task is not for you; choose another\.$") as caught:
        corridor(start=refuse).reset()
    assert caught.value.__cause__ is None


def test_an_environment_does_not_end_the_program_but_a_signal_does(corridor):
    with pytest.raises(EnvFailed, match=r"sys\.exit\(4\)"):
        corridor(start=lambda *_: exit_with(4)).reset()
    with pytest.raises(SystemExit):
        corridor(start=lambda *_: exit_with(128 + signal.SIGTERM)).reset()


NONSENSE = {
    "nonsense": "'nonsense'.*Outcome",
    "no answer": "success=<function",
    "reward nan": "nan",
    "reward text": "'0.5'",
    "reward beyond floats": r"10+\.\.\.0+",
    "success 1": "success=1",
    "no observation": "'A door.'.*Observation",
    "no text": "None",
    "no tuple": r"\['left', 'right'\].*tuple",
    "no actions": "no legal action",
    "an empty action": r"\[' '\]",
    "two lines": r"\['ri\\nght'\]",
    "an action twice": "'left'",
    "three actions": "3 actions.*2",
    "half a character": r"'A d\\ud83dr.'",
    "nul": r"'A d\\x00r.'",
    "a long text": "50,000,0.. .*1,000,000",
}


@pytest.mark.parametrize("fault", NONSENSE)
def test_nonsense_is_refused_at_the_step_at_which_it_happens_and_by_the_checker(fault):
    env = make_env("faulty", fault=fault)
    env.reset(seed=0, options={"task": env.tasks("train")[1]})
    for _ in range(2):
        env.step("left")
    with pytest.raises(EnvFailed, match=NONSENSE[fault]) as caught:
        env.step("left")
    assert caught.value.where == "environment 'faulty' failed in task 'train-1' after 2 steps, at action 'left'"
    assert len(str(caught.value)) < 500
    with pytest.raises(InvalidInput, match=f"task 'train-1' .*{NONSENSE[fault].replace('left', '(left|right)')}"):
        check_env(make_env("faulty", fault=fault), episodes=6)


def test_nonsense_in_a_worker_process_is_a_failure_like_any_other():
    with WorkerPool(1, WorkerLimits(on_failure="drop", max_failures=len(NONSENSE))) as pool:
        for fault, facts in NONSENSE.items():
            (env,) = pool.make("faulty", {"fault": fault, "at": 1}, 1)
            env.reset(seed=0, options={"task": env.tasks("train")[1]})
            with pytest.raises(WorkFailed, match=facts):
                env.step("left")
        assert pool.failures == len(NONSENSE)


@pytest.mark.parametrize(
    ("replaced", "facts"),
    [
        ({"tasks": lambda *_: None}, "None"),
        ({"tasks": lambda *_: iter([])}, "<list_iterator"),
        ({"tasks": lambda *_: [Task(1)]}, r"Task\(id=1"),
        ({"tasks": lambda *_: [Task("a"), Task("a")]}, "'a'"),
    ],
)
def test_tasks_that_are_none_are_refused(corridor, replaced, facts):
    with pytest.raises(EnvFailed, match=f"'corridor' .*train tasks: .*{facts}"):
        corridor(**replaced).split_tasks("train")
    with pytest.raises(InvalidInput, match=facts):
        check_env(corridor(**replaced))


@pytest.mark.parametrize(
    ("replaced", "facts"),
    [
        ({"expert": lambda _: "fly"}, r"'fly'.*\('right',\)"),
        ({"spoiler": lambda _: 3}, "3"),
        ({"reflection": lambda _: "\udcff"}, r"'\\udcff'"),
        ({"mistaken": lambda _: 1}, "1"),
        ({"secrets": lambda _: ["amber", 3]}, "3"),
    ],
)
def test_hints_that_nobody_can_play_or_say_are_refused(corridor, replaced, facts):
    env = corridor(**replaced)
    env.reset(options={"task": Task("train-0", {"room": 0})})
    with pytest.raises(EnvFailed, match=f"after 0 steps, .*{facts}"):
        env.hints()
