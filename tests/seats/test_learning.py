"""RLFT on ratings only: a policy learns from a mostly right rater.

That it learns less from a rater that is often wrong is published: ``raters_line`` of ``benchmarks/siblings.py``.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import EXPERT, config, ppo, value_head

from reflectrl.config.training import EntropyBonus, Lesson, Terms
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts.rating import Scale
from reflectrl.seats.rater import RuleRater
from reflectrl.seats.table import Seat
from reflectrl.training.rlft import ReflectRLTrainer


@pytest.mark.slow
def test_mostly_right_ratings_teach_the_task(tmp_path: Path) -> None:
    successes: list[float] = []
    args = config(
        tmp_path,
        lessons=[Lesson("main", 16, env={"size": 8})],
        episodes=48,
        rewards={"rater": 1.0, "env": 0.0},
        gamma=1.0,
        advantage=value_head(),
        update=ppo(num_iterations=3, num_minibatches=2),
        terms=Terms(entropy=EntropyBonus(0.05, 1.0)),
        learning_rate=5e-3,
        learning_rate_end=0.2,
    )
    rater = RuleRater([NumberLine(size=8)], Scale(), accuracy=0.9)
    ReflectRLTrainer(
        gpt2(spread=0.1),
        args,
        tokenizer(),
        env=NumberLine,
        seats=[Seat("reflector", EXPERT), Seat("rater", rater)],
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=lambda done, _: successes.append(done.success),
    ).train()
    assert fmean(successes[-3:]) > max(0.8, fmean(successes[:2]) + 0.15)
