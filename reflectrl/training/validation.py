"""``Validator``: plays fixed validation episodes during training, and keeps the weights with the best success rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from reflectrl.config.rlft import Validation
from reflectrl.core import NatLangEnv
from reflectrl.rollout import Episode
from reflectrl.rollout.evaluate import fixed_episodes
from reflectrl.training.collector import Collector
from reflectrl.training.weights import Weights, copy_weights, load_weights

BEST_NAME = "best.safetensors"


class Validator:
    """Validations of the stages, with the best result of the current stage.

    Args:
        settings: interval and episodes of validations.
        model: model whose best weights are kept; ``None`` to keep none.
        seed: seed of every draw.
        share: rank of this process and number of processes, which share the episodes.

    """

    def __init__(self, settings: Validation, model: nn.Module | None, seed: int, share: tuple[int, int]) -> None:
        self.settings = settings
        self._model = model
        self._seed = seed
        self._share = share
        self._episodes: dict[str, Sequence[Episode]] = {}
        self._best = -1.0
        self._weights: Weights = {}
        self._since_best = 0

    def due(self, iterations: int, ended: bool) -> bool:
        """Return whether to validate after ``iterations`` iterations of a stage, which has ``ended`` or not."""
        return ended or iterations % self.settings.every == 0

    @property
    def exhausted(self) -> bool:
        """True if the last ``patience`` validations brought no new best."""
        patience = self.settings.patience
        return patience is not None and self._since_best >= patience

    def begin_stage(self, env: NatLangEnv) -> None:
        """Choose the validation episodes of a stage.

        Raises:
            InvalidInput: the environment has no validation tasks.

        """
        counts = {"success": self.settings.episodes, **({"greedy": None} if self.settings.greedy else {})}
        self._episodes = {
            mode: fixed_episodes(env, "validation", episodes=count, max_tasks=None, seed=self._seed)
            for mode, count in counts.items()
        }

    def end_stage(self) -> None:
        """Reset the best result of a stage, which may not be comparable with the next one's; the weights are kept."""
        self._best, self._since_best = -1.0, 0

    def play(self, collector: Collector, gather: Callable[..., Sequence[Sequence[float]]]) -> dict[str, Any]:
        """Play the validation; return success rates as fields of ``Iteration``. Dropped episodes count as failures.

        Args:
            collector: plays the episodes with the current policy.
            gather: exchanges numbers between processes; returns one list per process.

        """
        rank, processes = self._share
        wins: list[int] = []  # of each mode and group, on this process
        planned = {mode: Counter(each.task.group for each in episodes) for mode, episodes in self._episodes.items()}
        for mode, episodes in self._episodes.items():
            counted = collector.count_wins(episodes[rank::processes], greedy=mode == "greedy")
            wins += [counted[group] for group in planned[mode]]
        totals = iter([sum(column) for column in zip(*gather(*wins), strict=True)])
        won = {mode: {group: next(totals) for group in groups} for mode, groups in planned.items()}
        rates = {f"validation_{mode}": sum(won[mode].values()) / groups.total() for mode, groups in planned.items()}
        by_group = {
            group: won["success"][group] / played for group, played in sorted(planned["success"].items()) if group
        }
        success = rates["validation_success"]
        self._since_best += 1
        if success > self._best:
            self._since_best = 0
        if success >= self._best:  # of equal results the latest, which was trained longest
            self._best = success
            if self._model is not None:
                self._weights = copy_weights(self._model)
        return {**rates, "validation_by_group": by_group}

    def load_best(self) -> None:
        """Load the best weights into the model, if any were kept."""
        if self._model is not None and self._weights:
            load_weights(self._model, self._weights)

    def write_state(self, folder: Path) -> dict[str, Any]:
        """Save the best weights in ``folder``, in the first process, and return the rest of the state."""
        if self._weights and self._share[0] == 0:
            save_file(dict(self._weights), folder / BEST_NAME)
        return {"best": self._best, "since_best": self._since_best}

    def read_state(self, folder: Path, state: dict[str, Any]) -> None:
        """Restore the state that ``write_state`` saved."""
        self._best, self._since_best = state["best"], state["since_best"]
        if (folder / BEST_NAME).is_file():
            self._weights = load_file(folder / BEST_NAME)
