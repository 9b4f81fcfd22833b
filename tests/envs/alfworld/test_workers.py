from __future__ import annotations

import os
import signal

import faulty

from reflectrl.core import make_env
from reflectrl.workers.pool import WorkerPool

OPTIONS = {"count": 1, "scenes": [14]}


def play(env, killed_at=None, before=()):
    """Texts, menus and rewards of the expert's first game; its worker is killed before one step."""
    shown, ended = [env.reset(seed=0, options={"task": env.tasks("train")[0]})], False
    while not ended:
        if env.steps == killed_at:
            (process,) = set(faulty.processes(parent=os.getpid())).difference(before)
            os.kill(process, signal.SIGKILL)
        shown.append(env.step(env.expert()))
        ended = shown[-1][2] or shown[-1][3]
    return shown


def test_an_episode_survives_the_death_of_its_engine_and_leaves_no_process(capfd):
    here = make_env("alfworld", **OPTIONS)
    before = faulty.processes(parent=os.getpid())
    with WorkerPool(1) as pool:
        (env,) = pool.make("alfworld", OPTIONS, 1)
        assert play(env, killed_at=3, before=before) == play(here)
        assert pool.failures == 1
        assert env.benchmark("test", 1) == here.benchmark("test", 1) != ""
    assert sorted(faulty.processes(parent=os.getpid())) == sorted(before)
    assert capfd.readouterr() == ("", "")
