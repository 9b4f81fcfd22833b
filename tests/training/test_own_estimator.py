"""An estimator of advantages is one class with one function; without arguments, the trainer has the measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import config
from transformers import PreTrainedModel

from reflectrl.config.advantage import GAE, Advantage, Floats, NoBaseline, Steps, ValueHead, generalized_advantages
from reflectrl.core import Trajectory
from reflectrl.core.settings import settings
from reflectrl.envs.number_line import NumberLine
from reflectrl.training.rlft import ReflectRLTrainer


@settings()
class Late(NoBaseline):
    """What an episode is worth after a number of steps, and nothing before."""

    steps: int = 1

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        kept = [np.arange(len(each)) >= self.steps for each in steps.rewards]
        return steps.returns * np.concatenate(kept), steps.returns


class Halved(GAE):
    """GAE with half the values of the head."""

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        found = [
            generalized_advantages(rewards, [0.5 * each for each in values], 0.0, gamma=steps.gamma, gae_lambda=1.0)
            for rewards, values in zip(steps.rewards, steps.values, strict=True)
        ]
        return np.concatenate(found), steps.returns


def trained(folder: Path, estimator: Advantage) -> tuple[PreTrainedModel, list[tuple[Trajectory, list[float]]]]:
    """Return a model that was trained with an estimator, and the episodes of both iterations with their advantages."""
    model, found = gpt2(spread=0.1), list[tuple[Trajectory, list[float]]]()

    def note(_: object, fresh: Sequence[Trajectory]) -> None:
        found.extend(zip(fresh, trainer.advantages, strict=True))

    trainer = ReflectRLTrainer(
        model,
        config(folder, advantage=estimator, gamma=1.0),
        tokenizer(),
        env=NumberLine,
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=note,
    )
    trainer.train()
    return model, found


def to_come(episode: Trajectory) -> list[float]:
    return [sum(episode.rewards[at:]) for at in range(len(episode.rewards))]


def test_a_policy_learns_from_an_estimator_that_a_user_defines(tmp_path: Path) -> None:
    model, played = trained(tmp_path, Late(steps=2, normalize=False))
    for episode, given in played:
        assert given == pytest.approx([0.0, 0.0, *to_come(episode)[2:]][: len(given)])
    assert any(len(given) > 2 for _, given in played)
    before = gpt2(spread=0.1).state_dict()
    assert not all(weight.equal(before[name]) for name, weight in model.state_dict().items())


def test_an_estimator_that_a_user_defines_may_have_a_value_head(tmp_path: Path) -> None:
    _, played = trained(tmp_path, Halved(normalize=False, center=False, value=ValueHead(learning_rate=0.1)))
    values = [[turn.decision.value for turn in episode.turns] for episode, _ in played]
    assert any(map(any, values))  # it has learned after the first iteration
    for (episode, given), estimated in zip(played, values, strict=True):
        assert given == pytest.approx([one - other / 2 for one, other in zip(to_come(episode), estimated, strict=True)])
