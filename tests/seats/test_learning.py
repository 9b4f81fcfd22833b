"""RLFT on ratings only: a policy learns from a mostly right rater, but not from ratings of other episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import EXPERT, config, ppo, value_head

from reflectrl.config.training import EntropyBonus, Stage, Terms
from reflectrl.core import Utterance
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts.players import Player
from reflectrl.prompts.rating import Scale, level_of
from reflectrl.prompts.views import View
from reflectrl.seats.rater import RuleRater
from reflectrl.seats.table import Seat
from reflectrl.training.rlft import ReflectRLTrainer


def rule(accuracy: float) -> RuleRater:
    return RuleRater([NumberLine(size=8)], Scale(), accuracy)


class Shuffled:
    """Rater that gives each episode the right rating of a random one of those so far."""

    def __init__(self) -> None:
        self.right = rule(1.0)
        self.levels: list[int | None] = []

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        said = []
        for view, draw, words in zip(views, draws, self.right.say(views, draws), strict=True):
            self.levels.append(level_of(words.text))
            said.append(Scale().rated(self.levels[int(draw * len(self.levels))], len(view.past), ""))
        return said


def learned(folder: Path, rater: Player) -> tuple[float, float]:
    """Return the success in the first and last iterations of a training without the environment's rewards."""
    successes: list[float] = []
    trainer = ReflectRLTrainer(
        gpt2(spread=0.1),
        config(
            folder,
            stages=[Stage("main", 16, env={"size": 8})],
            episodes=48,
            rewards={"rater": 1.0, "env": 0.0},
            gamma=1.0,
            advantage=value_head(),
            update=ppo(num_iterations=3, num_minibatches=2),
            terms=Terms(entropy=EntropyBonus(0.05, 1.0)),
            learning_rate=5e-3,
            learning_rate_end=0.2,
        ),
        tokenizer(),
        env=NumberLine,
        seats=[Seat("reflector", EXPERT), Seat("rater", rater)],
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=lambda done, _: successes.append(done.success),
    )
    trainer.train()
    return fmean(successes[:2]), fmean(successes[-3:])


@pytest.mark.slow
def test_ratings_that_are_mostly_right_teach_the_task_and_the_same_of_other_episodes_do_not(tmp_path: Path) -> None:
    first, last = learned(tmp_path / "right", rule(0.9))
    assert last > max(0.8, first + 0.15)
    first, last = learned(tmp_path / "shuffled", Shuffled())
    assert last < min(0.75, first + 0.1)
