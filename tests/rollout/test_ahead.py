"""Episodes that are begun while players act in others, and between two rollouts."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import faulty
import pytest

from reflectrl.core import InvalidInput, Task, WorkFailed, make_env
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, begin_ahead, rollout
from reflectrl.rollout.pool import WorkerLimits, WorkerPool
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

ours = functools.partial(faulty.processes, parent=os.getpid())


@pytest.fixture(autouse=True, scope="module")
def _table():
    with faulty.registered():
        yield


@pytest.fixture(scope="module")
def pools(_table):
    """Pools of one and of two processes, for the tests that do not break them."""
    with WorkerPool(1) as one, WorkerPool(2) as two:
        for pool in (one, two):
            pool.make("faulty", {}, 2)
        yield one, two
        assert (one.failures, two.failures) == (0, 0)


@pytest.fixture(autouse=True)
def _nothing_left(pools):  # noqa: ARG001 - its processes are there before and after
    """Check that no process is left after a test, not even a zombie."""
    before = sorted(ours())
    yield
    assert sorted(ours()) == before


class Noting(RandomPolicy):
    """Random policy that records its batches, and first calls ``thinks`` with the number of batches so far."""

    def __init__(self, thinks=lambda _: None):
        self.batches = []
        self.thinks = thinks

    def act(self, views, draws):
        self.batches.append([view.prompt.text for view in views])
        self.thinks(len(self.batches))
        return super().act(views, draws)

    @property
    def sizes(self):
        return [len(batch) for batch in self.batches]


def episodes(*lengths, note=""):
    """Return episodes of the given lengths, of tasks train-0, train-1 and so on."""
    options = [{"number": number, "length": length, "note": note} for number, length in enumerate(lengths)]
    return [Episode(Task(f"train-{number}", each), seed=number) for number, each in enumerate(options)]


STAGGERED = episodes(1, 3, 2, 6, 1, 1, 4, 2, 5, 3, 1, 2)


def play(envs, to_play=STAGGERED, policy=None, seats=(), begun=()):
    layout = PromptFormat()
    return rollout(envs, to_play, policy=policy or RandomPolicy(), seats=seats, layout=layout, begun=begun)


def here(to_play=STAGGERED, **players):
    """Play one episode after the other in this process, where no episode is begun ahead."""
    return play([make_env("faulty")], to_play, **players)


@pytest.fixture
def met(tmp_path):
    """Options with which the third task's reset leaves a marker, and waits for a gate if that is the fault."""
    return {"at": 0, "task": "train-2", "marker": str(tmp_path / "begun"), "gate": str(tmp_path / "gate")}


THIRD_IN_THE_MIDDLE = episodes(1, 3, 2)
"""Episodes for two environments, of which the third begins during the second."""


def think_once_begun(met):
    """Return a policy that waits at the second step until the third task's reset has begun."""
    return Noting(lambda batch: batch != 2 or faulty.wait_until(Path(met["marker"]).exists))


# ---- the same results, wherever episodes are begun ahead --------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 5])
def test_processes_change_no_episode(slots, pools):
    kinds = [[make_env("faulty") for _ in range(slots)], *(pool.make("faulty", {}, slots) for pool in pools)]
    policies = [Noting() for _ in kinds]
    assert [play(envs, policy=policy) for envs, policy in zip(kinds, policies, strict=True)] == [here()] * 3
    assert policies[0].batches == policies[1].batches == policies[2].batches


def test_a_new_slot_sits_out_one_step():
    policy = Noting()
    play([make_env("faulty") for _ in range(2)], episodes(1, 3, 2, 1, 1), policy=policy)
    # 0 and 1; 1 alone, while 2 begins; 1 and 2, which both end; 3 and 4, without waiting for others
    assert policy.sizes == [2, 1, 2, 1, 1, 1]


def test_long_answers_that_nobody_waits_for_yet_block_nothing(pools):
    long = episodes(*[1, 2] * 16, note="x" * 30_000)
    envs = pools[0].make("faulty", {}, 16)
    assert play(envs, long, begun=begin_ahead(envs, long)) == here(long)


# ---- while players act in other episodes -----------------------------------------------------------------------------


def test_a_slow_reset_runs_beside_the_others_thinking(met):
    """Both can only go on once the other has begun."""

    def think(batch):
        if batch == 2:
            faulty.wait_until(Path(met["marker"]).exists)
            Path(met["gate"]).touch()

    policy, seats = Noting(think), reflecting(ExpertReflector())
    with WorkerPool(1) as pool:
        envs = pool.make("faulty", {"fault": "wait", **met}, 2)
        assert play(envs, THIRD_IN_THE_MIDDLE, policy, seats) == here(THIRD_IN_THE_MIDDLE, seats=seats)
    assert policy.sizes == [2, 1, 2, 1]
    assert pool.failures == 0


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor has one worker process")
def test_a_slow_reset_holds_up_no_step_in_another_process(met):
    """The reset waits for a step of the second environment, which runs in another process than the first."""
    slow, opens = {"fault": "wait", **met}, {"fault": "open", "task": "train-1", "at": 2, "gate": met["gate"]}
    slow["task"] = "train-3"
    to_play = episodes(3, 3, 1, 2)
    with WorkerPool(2) as pool:
        envs = [pool.make("faulty", options, 1)[0] for options in (slow, opens, slow)]
        assert envs[0].worker is envs[2].worker is not envs[1].worker
        assert play(envs, to_play) == here(to_play)
    assert pool.failures == 0


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "fault"), [(1, "kill"), (2, "stall"), (1, "raise")])
def test_a_reset_that_broke_ahead_is_repeated_and_nothing_shows_it(workers, fault, met):
    with WorkerPool(workers, WorkerLimits(deadline_s=1 if fault == "stall" else 60)) as pool:
        envs = pool.make("faulty", {"fault": fault, **met}, 2)
        assert play(envs, THIRD_IN_THE_MIDDLE, think_once_begun(met)) == here(THIRD_IN_THE_MIDDLE)
    assert pool.failures == 1


def test_drop_leaves_out_what_broke_ahead(met):
    to_play, policy = episodes(1, 4, 2, 1), think_once_begun(met)
    with WorkerPool(1, WorkerLimits(on_failure="drop")) as pool:
        played = play(pool.make("faulty", {"fault": "kill", **met}, 2), to_play, policy)
    assert played == [each for each in here(to_play) if each.task.id != "train-2"]
    assert policy.sizes == [2, 1, 1, 2]
    assert pool.failures == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "limits", "error", "fact", "failures"),
    [
        ("refuse", {}, InvalidInput, r"^this task is not for you; choose another\.$", 0),
        ("raise", {}, WorkFailed, "'train-2': .* 3 times", 3),  # again and again
        ("raise", {"max_failures": 0}, WorkFailed, "1 times; the limit is 0: .*'train-2'", 1),
    ],
)
def test_a_reset_that_fails_too_often_ends_the_work(fault, limits, error, fact, failures):
    options = {"fault": fault, "at": 0, "task": "train-2"}
    with WorkerPool(2, WorkerLimits(**limits)) as pool, pytest.raises(error, match=fact):
        play(pool.make("faulty", options, 2), THIRD_IN_THE_MIDDLE)
    assert pool.failures == failures


def test_an_interrupt_while_others_begin_leaves_no_answer_behind_for_the_next(met):
    def interrupted(batch):
        if batch == 2:
            faulty.wait_until(Path(met["marker"]).exists)
            Path(met["gate"]).touch()
            raise KeyboardInterrupt

    with WorkerPool(2) as pool:
        envs = pool.make("faulty", {"fault": "wait", **met}, 2)
        with pytest.raises(KeyboardInterrupt):
            play(envs, THIRD_IN_THE_MIDDLE, Noting(interrupted))
        assert play(envs) == here()
    assert pool.failures == 0


# ---- between two rollouts --------------------------------------------------------------------------------------------


def test_episodes_may_begin_between_two_rollouts(met, tmp_path):
    log = tmp_path / "log"
    with WorkerPool(2) as pool:
        envs = pool.make("faulty", {"fault": "wait", "log": str(log), **met}, 3)
        begun = begin_ahead(envs, STAGGERED)
        faulty.wait_until(Path(met["marker"]).exists)
        assert not Path(met["gate"]).exists()
        Path(met["gate"]).touch()
        assert play(envs, begun=begun) == here()
    assert sorted(log.read_text().split()) == sorted(episode.task.id for episode in STAGGERED)
    assert pool.failures == 0


@pytest.mark.slow
def test_episodes_begun_but_not_played_leave_no_trace_though_their_process_died(met):
    with WorkerPool(2) as pool:
        envs = pool.make("faulty", {"fault": "kill", **met}, 3)
        first = begin_ahead(envs, STAGGERED)
        begin_ahead(envs, STAGGERED[4:])
        assert play(envs, begun=first) == here()
        for to_play in (STAGGERED[:2], STAGGERED[:3], []):  # more environments than episodes, as many, none
            assert play(envs, to_play, begun=begin_ahead(envs, to_play)) == here(to_play)


def test_what_went_wrong_between_two_rollouts_is_reported_by_the_second(met):
    del met["marker"]
    with WorkerPool(1, WorkerLimits(max_failures=0)) as pool:
        envs = pool.make("faulty", {"fault": "kill", **met}, 3)
        begun = begin_ahead(envs, STAGGERED)
        with pytest.raises(WorkFailed):
            play(envs, begun=begun)


def test_environments_that_are_closed_have_finished_what_they_began(met, tmp_path):
    log = tmp_path / "log"
    with WorkerPool(1) as pool:
        first, *others = pool.make("faulty", {"fault": "exit", "log": str(log), **met}, 3)
        begin_ahead([first, *others], STAGGERED)
        for env in others:
            env.close()
        assert log.read_text().split() == ["train-0", "train-1", "train-2"]
        assert play([first]) == here()
        begin_ahead([first], STAGGERED)
        first.close()


def test_a_pool_that_is_closed_does_not_wait_for_what_was_begun(met):
    with WorkerPool(1) as pool:
        (env,) = pool.make("faulty", {"fault": "stall", **met}, 1)
        begun = begin_ahead([env], STAGGERED[2:])
        faulty.wait_until(Path(met["marker"]).exists)
    with pytest.raises(InvalidInput, match="used after its worker processes were closed"):
        play([env], STAGGERED[2:], begun=begun)
    env.close()
    assert pool.failures == 0


def test_resets_of_other_episodes_or_environments_are_refused():
    envs = [make_env("faulty") for _ in range(2)]
    for begun in (begin_ahead(envs, STAGGERED[1:]), begin_ahead(envs[::-1], STAGGERED)):
        with pytest.raises(InvalidInput, match="'train-0'"):
            play(envs, begun=begun)


def test_environments_of_this_process_begin_nothing_ahead():
    env = make_env("faulty")
    begin_ahead([env], STAGGERED)
    with pytest.raises(InvalidInput, match="'faulty' has not been reset yet"):
        env.observation  # noqa: B018
