"""RLFT on ratings alone: a rater that is mostly right teaches the task, and one that says nothing does not."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import EXPERT, config

from reflectrl.config.rlft import Stage
from reflectrl.envs.number_line import NumberLine
from reflectrl.players import Seat
from reflectrl.raters import RuleRater, Scale
from reflectrl.training.rlft import ReflectRLTrainer


def learned(folder: Path, accuracy: float) -> float:
    """Success of the last iterations of a policy that never sees the environment's rewards."""
    successes: list[float] = []
    rater = RuleRater([NumberLine(size=8)], Scale(), accuracy)
    trainer = ReflectRLTrainer(
        gpt2(spread=0.1),
        config(
            folder,
            stages=[Stage("main", 16, env={"size": 8})],
            episodes=48,
            rewards={"rater": 1.0, "env": 0.0},
            gamma=1.0,
            baseline="value",
            num_iterations=3,
            num_minibatches=2,
            epsilon=0.2,
            entropy=0.05,
            learning_rate=5e-3,
            learning_rate_end=0.2,
        ),
        tokenizer(),
        env=NumberLine,
        seats=[Seat("reflector", EXPERT), Seat("rater", rater, when="episode_end")],
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=lambda done, _: successes.append(done.success),
    )
    trainer.train()
    return fmean(successes[-3:])


@pytest.mark.slow
def test_ratings_that_are_mostly_right_teach_the_task_and_those_that_say_nothing_do_not(tmp_path: Path) -> None:
    assert learned(tmp_path / "right", 0.9) > 0.75
    assert learned(tmp_path / "uninformative", 0.5) < 0.68
