"""A policy for tests of thoughts, which writes the same text before each random action."""

from __future__ import annotations

from dataclasses import replace

from reflectrl.core import Written
from reflectrl.seats.others import RandomPolicy


class Thinks(RandomPolicy):
    """Policy that acts at random after a fixed thought, which names a legal action or not."""

    def __init__(self, text, legal=True):
        self.written = Written(text, (1,), (0.0,), 1, legal)

    def act(self, views, draws):
        decisions = super().act(views, draws)
        return [replace(each, choice=replace(each.choice, written=self.written)) for each in decisions]
