from __future__ import annotations

from dataclasses import replace

import pytest
from alfworld_games import HOUSES

from reflectrl.envs.alfworld import AlfWorld


@pytest.fixture(scope="package")
def houses():
    """An environment with a small game of each family, and commands that change nothing."""
    return AlfWorld("alfworld:all", count=6, scenes=HOUSES, noise=True)


@pytest.fixture(scope="module")
def moments():
    """Play commands from the start of a game; the state before the last of them, and after it."""
    from reflectrl.envs.alfworld.engine import Engine
    from reflectrl.envs.alfworld.reflection import Moment, Seen

    engine = Engine()

    def play(game, commands):
        reply = engine.load(game)
        before, now = None, Moment(game, engine.names, engine.snapshot(), Seen().read(reply.text))
        for command in commands:
            reply = engine.step(command)
            before, now = now, replace(now, position=engine.snapshot(), seen=now.seen.read(reply.text))
        return before, now

    return play
