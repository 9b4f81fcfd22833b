"""``Validator``: plays fixed validation episodes during training, keeps the best weights, and ends a lesson in time."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from safetensors.torch import load_file
from torch import nn

from reflectrl.config.training import Validation
from reflectrl.core import InvalidInput, NatLangEnv, Trajectory
from reflectrl.core.jsonl import decode, encode
from reflectrl.lm.head import LogitScale
from reflectrl.rollout import Episode
from reflectrl.rollout.loop import fixed_episodes
from reflectrl.rollout.results import Validated
from reflectrl.training.collector import Collector
from reflectrl.training.learner import Weights, copy_weights, load_weights
from reflectrl.training.sharding import save_whole

BEST_NAME = "best.safetensors"
SHARE = 0.2
"""Episodes of validations as a fraction of those of training, where the recipe does not say how often to validate."""
WAY_TO_EXPERT = 0.95
"""Fraction of the way from the starting weights' return to the expert's that its level asks for besides its success: a
game that everybody wins is not over, and one that costs something a step is never played as well by chance."""
RUNNING = 2
"""Number of validations in a row at the expert's level that end a lesson."""

WON = 4
"""Patience at most where all episodes succeed and no expert tells whether they could earn more."""

_log = logging.getLogger(__name__)
Gather: TypeAlias = Callable[..., Sequence[Sequence[float]]]
"""Exchanges numbers between processes; returns one list per process."""


def iterations_between(settings: Validation, trained: int) -> int:
    """Return the number of iterations between validations; each iteration trains on ``trained`` episodes."""
    return settings.every or math.ceil(settings.episodes * (1 + settings.greedy) / (SHARE * trained))


@dataclass
class _Progress:
    """What the validations of a lesson have shown so far, which checkpoints save."""

    start: Validated | None = None
    """Result of the weights that training began with."""
    best: Validated | None = None
    last: Validated | None = None
    expert: Validated | None = None
    since_best: int = 0
    at_expert: int = 0
    """Number of the last validations in a row at the expert's level."""


class Validator:
    """Validations of the lessons, with the best result of the current lesson.

    Args:
        settings: interval and episodes of validations.
        model: model whose best weights are kept; ``None`` to keep none.
        seed: seed of every draw.
        share: rank of this process and number of processes, which share the episodes.
        trained: number of training episodes per iteration, over all processes.
    """

    def __init__(
        self, settings: Validation, model: nn.Module | None, seed: int, share: tuple[int, int], trained: int
    ) -> None:
        self.settings = settings
        self._model = model
        self._seed = seed
        self._share = share
        self._every = iterations_between(settings, trained)
        self.episodes: Sequence[Episode] = ()
        """The episodes of each validation; none where the environment has no such tasks."""
        self._weights: Weights = {}
        self._progress = _Progress()

    @property
    def kept(self) -> Validated | None:
        """Result of the weights that are kept, the best or the last ones; ``None`` if there was no validation."""
        return self._progress.last if self._model is None else self._progress.best

    def due(self, iterations: int, *, ended: bool) -> bool:
        """Return whether to validate after ``iterations`` iterations of a lesson, which has ``ended`` or not."""
        return bool(self.episodes) and (ended or iterations % self._every == 0)

    @property
    def ends(self) -> Literal["expert", "patience"] | None:
        """What ends the lesson, if it ends: the expert's level was reached, or ``patience`` was used up."""
        now, patience = self._progress, self.settings.patience
        if now.at_expert >= RUNNING:
            return "expert"
        if patience is not None and now.expert is None and now.best is not None and now.best.sampled == 1:
            patience = min(patience, WON)
        tried = patience is not None and now.since_best >= patience
        return "patience" if tried and now.best is not None and now.best.sampled > 0 else None

    def begin_lesson(self, env: NatLangEnv) -> None:
        """Choose the validation episodes of a lesson; none, with a warning, if the environment has no such tasks."""
        count = self.settings.episodes
        try:
            self.episodes = fixed_episodes(env, "validation", episodes=count, max_tasks=None, seed=self._seed)
        except InvalidInput as error:
            self.episodes = ()
            _log.warning(f"training without rlft.validation and rlft.sharpen, so its last weights are kept: {error}")

    def start(
        self, collector: Collector, gather: Gather, scale: LogitScale | None = None, factors: Sequence[float] = ()
    ) -> dict[str, Any]:
        """Forget the results of the lesson before, and validate the weights that training began with, and the expert.

        Args:
            collector: plays the episodes, with these weights.
            gather: exchanges numbers between processes.
            scale: is set to the one of ``factors`` with the highest success rate of sampled episodes.
            factors: factors of the logits that are tried.

        Returns:
            Fields of the lesson's first ``Iteration``.
        """
        self._progress, self._weights = _Progress(), {}
        if not self.episodes:
            return {}
        now = self._progress
        chosen = sampled = None
        if scale is not None:
            tried = dict[float, Sequence[Trajectory]]()
            for factor in factors:
                scale.set(factor)
                tried[factor] = collector.validate(self._own, greedy=False)
            won = {factor: sum(rank[0] for rank in gather(*_sums(played))) for factor, played in tried.items()}
            chosen = max(won, key=lambda factor: won[factor])
            scale.set(chosen)
            sampled = tried[chosen]
        now.start, _ = self._validated(collector, gather, sampled, iterations=0)
        expert = collector.play_expert(self._own)
        told = gather(*_sums(expert or ()), float(expert is None))
        if not any(silent for *_, silent in told):
            wins, returns, played = map(sum, list(zip(*told, strict=True))[:3])
            now.expert = Validated(wins / len(self.episodes), None, returns / max(1, played), len(self.episodes), 0)
        self._compare(now.start)
        return {
            "sharpened": chosen,
            "validation_start": now.start.sampled,
            "validation_start_greedy": now.start.greedy,
            "validation_expert": None if now.expert is None else now.expert.sampled,
        }

    def play(self, collector: Collector, gather: Gather, iterations: int) -> dict[str, Any]:
        """Validate the current weights after ``iterations`` iterations of all lessons; return fields of ``Iteration``.

        Dropped episodes count as failures.
        """
        done, by_group = self._validated(collector, gather, iterations=iterations)
        self._compare(done)
        return {
            "validation_success": done.sampled,
            "validation_greedy": done.greedy,
            "validation_return": done.episode_return,
            "validation_by_group": by_group,
        }

    @property
    def _own(self) -> Sequence[Episode]:
        """The episodes that this process plays."""
        rank, processes = self._share
        return self.episodes[rank::processes]

    def _validated(
        self, collector: Collector, gather: Gather, sampled: Sequence[Trajectory] | None = None, *, iterations: int
    ) -> tuple[Validated, dict[str, float]]:
        """Play the episodes that are not given; return the result, and the sampled success of each group."""
        if sampled is None:
            sampled = collector.validate(self._own, greedy=False)
        greedy = collector.validate(self._own, greedy=True) if self.settings.greedy else []
        planned = Counter(each.task.group for each in self.episodes)
        wins = Counter(each.task.group for each in sampled if each.success)
        numbers = (*_sums(sampled), sum(each.success for each in greedy), *(wins[group] for group in planned))
        won, returns, played, won_greedily, *won_of = map(sum, zip(*gather(*numbers), strict=True))
        count = len(self.episodes)
        result = Validated(
            sampled=won / count,
            greedy=won_greedily / count if self.settings.greedy else None,
            episode_return=returns / max(1, played),
            episodes=count,
            iterations=iterations,
        )
        of_groups = dict(zip(planned, won_of, strict=True))
        return result, {group: of_groups[group] / planned[group] for group in sorted(planned) if group}

    def _compare(self, done: Validated) -> None:
        now = self._progress
        now.last = done
        now.since_best += 1
        if now.best is None or done.rank > now.best.rank:
            now.since_best = 0
        if now.best is None or done.rank >= now.best.rank:  # of equal results the latest, which was trained longest
            now.best = done
            if self._model is not None:
                self._weights = copy_weights(self._model)
        now.at_expert = now.at_expert + 1 if self._is_at_expert(done) else 0

    def _is_at_expert(self, done: Validated) -> bool:
        """Return whether sampled actions, by which the policy learns, do as well as the expert."""
        start, expert = self._progress.start, self._progress.expert
        if start is None or expert is None or done.sampled < expert.sampled:
            return False
        way = expert.episode_return - start.episode_return
        return done.episode_return - start.episode_return >= WAY_TO_EXPERT * max(0.0, way)

    def load_best(self) -> None:
        """Load the best weights into the model, if any were kept."""
        if self._model is not None and self._weights:
            load_weights(self._model, self._weights)

    def write_state(self, folder: Path) -> dict[str, Any]:
        """Save the best weights in ``folder``, and return the rest of the state."""
        if self._weights:
            save_whole(self._weights, folder / BEST_NAME)
        state: dict[str, Any] = encode(self._progress)
        return state

    def read_state(self, folder: Path, state: dict[str, Any]) -> None:
        """Restore the state that ``write_state`` saved."""
        self._progress = decode(_Progress, state, f"the validation in {folder}")
        if (folder / BEST_NAME).is_file():
            self._weights = load_file(folder / BEST_NAME)


def _sums(played: Sequence[Trajectory]) -> tuple[int, float, int]:
    """Return the number of successes, the sum of the returns, and the number of episodes."""
    return sum(each.success for each in played), math.fsum(each.episode_return for each in played), len(played)
