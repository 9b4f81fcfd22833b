"""A rater in the trainer: its scores are the rewards, and an episode that it failed to rate is not learned from."""

from __future__ import annotations

from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import config

from reflectrl.config.rlft import Stage
from reflectrl.core import Utterance
from reflectrl.envs.number_line import NumberLine
from reflectrl.players import Seat
from reflectrl.training.batch import scored
from reflectrl.training.rlft import ReflectRLTrainer


class HalfBlind:
    """Rates every second episode with 1 a step, and fails at the others."""

    asked = 0

    def say(self, views, draws):  # noqa: ARG002 - nothing is drawn
        said = []
        for view in views:
            self.asked += 1
            said.append(Utterance("", scores=(1.0,) * len(view.past) if self.asked % 2 else ()))
        return said


def test_episodes_without_a_rating_are_neither_learned_from_nor_replayed(tmp_path):
    rewards, seen = {"rater": 1.0}, []
    options = {
        "stages": [Stage("main", 2, env={"size": 6}, replay_threshold=-100.0)],
        "episodes": 6,
        "gamma": 1.0,
        "baseline": "none",
        "normalize_advantages": False,
        "rewards": rewards,
        "replay_size": 50,
    }
    trainer = ReflectRLTrainer(
        gpt2(),
        config(tmp_path, **options),
        tokenizer(),
        env=NumberLine,
        seats=[Seat("rater", HalfBlind(), "episode_end")],
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=lambda _, fresh: seen.append((list(fresh), trainer.advantages)),
    )
    trainer.train()
    for fresh, advantages in seen:
        assert {scored(episode, rewards) for episode in fresh} == {True, False}
        for episode, given in zip(fresh, advantages, strict=True):
            steps = len(episode.turns)
            assert given == (list(map(float, range(steps, 0, -1))) if scored(episode, rewards) else [])
    assert list(trainer.replay) == [episode for fresh, _ in seen for episode in fresh if scored(episode, rewards)]
