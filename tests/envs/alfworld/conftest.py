from __future__ import annotations

from dataclasses import replace

import pytest


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
