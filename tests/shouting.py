"""A user's own map between OpenEnv's messages and texts: states are shouted, and so are actions."""

from __future__ import annotations

from reflectrl.envs.openenv_game import TextMap


class Shouting(TextMap):
    def text(self, seen, before):
        return super().text(seen, before).upper()

    def action(self, text):
        if not text.isupper():
            raise ValueError("it is not shouted")
        return super().action(text.lower())
