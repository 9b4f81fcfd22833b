"""``Collector``: plays episodes in the environments of a lesson with the current policy and the frozen players.

Their rewards may depend on the training so far: ``Novelty``, a bonus for rare states; ``RewardScale``, the unit of all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reflectrl.config.training import Lesson
from reflectrl.core import Decision, InvalidInput, NatLangEnv, Observation, Trajectory
from reflectrl.core.profile import part
from reflectrl.core.registry import Env, make_envs
from reflectrl.lm.head import in_eval_mode
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.writer import LMReflector
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, begin_ahead, rollout
from reflectrl.rollout.iteration import wins_and_episodes
from reflectrl.rollout.turn import policy_views
from reflectrl.rollout.worker import Local, Pending
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.table import Seat, acting
from reflectrl.training.batch import StepSample
from reflectrl.training.learner import Weights, using
from reflectrl.training.sharding import gathered


class _Expert(ExpertPolicy):
    """Expert that notes where it says nothing, and then plays at random: an error would leave episodes unfinished."""

    silent = False

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        try:
            return super().act(views, draws)
        except InvalidInput:
            self.silent = True
            return RandomPolicy().act(views, draws)


class Collector:
    """The environments of a lesson, with the policy and the players that play in them.

    Args:
        env: registered name of an environment, or its class, or a function that takes its options.
        policy: the policy that is trained.
        model: the policy's model.
        seats: the frozen players.
        layout: layout of the prompts.
        side_by_side: number of environments, in which episodes are played in parallel.
        publish: called before the policy plays with other weights.
    """

    def __init__(
        self,
        env: Env,
        policy: LMPolicy,
        model: Any,
        seats: Sequence[Seat],
        layout: PromptFormat,
        side_by_side: int,
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        self._env = env
        self._policy = policy
        self._model = model
        self._seats = seats
        self._layout = layout
        self._side_by_side = side_by_side
        self._publish = publish
        self._begun: list[Pending | Local] = []  # pending resets of the next episodes
        self.envs: Sequence[NatLangEnv] = ()
        """Environments of the lesson; empty between lessons."""

    def open(self, options: Mapping[str, Any]) -> None:
        """Make the environments of a lesson."""
        self.envs = make_envs(self._env, options, self._side_by_side)

    def close(self) -> None:
        """Close the environments of a lesson, and discard pending resets."""
        for env in self.envs:
            env.close()
        self.envs, self._begun = (), []

    def play(self, episodes: Sequence[Episode], *, bootstrap: bool) -> list[Trajectory]:
        """Play training episodes, with the resets of ``begin_ahead``, if any; return them without dropped episodes."""
        begun, self._begun = self._begun, []
        self.forget()
        self._publish()
        with gathered(self._model):
            return rollout(
                self.envs,
                episodes,
                policy=self._policy,
                seats=self._seats,
                layout=self._layout,
                bootstrap=bootstrap,
                begun=begun,
            )

    def begin_ahead(self, episodes: Sequence[Episode]) -> None:
        """Send the resets of the next ``episodes`` to the environments, which handle them during the update."""
        self._begun = begin_ahead(self.envs, episodes)

    def validate(self, episodes: Sequence[Episode], *, greedy: bool) -> list[Trajectory]:
        """Play validation episodes; return them without dropped ones. Pending resets are discarded."""
        self._begun = []
        self.forget()
        self._publish()
        policy = self._policy.greedy() if greedy else self._policy
        with gathered(self._model):
            return rollout(self.envs, episodes, policy=policy, seats=acting(self._seats), layout=self._layout)

    def play_expert(self, episodes: Sequence[Episode]) -> list[Trajectory] | None:
        """Let the environment's expert play episodes; ``None`` where it says nothing in some state that it reached."""
        expert, played = _Expert(), list[Trajectory]()
        for some in (episodes[:1], episodes[1:]):  # without an expert, one episode tells
            played += rollout(self.envs, some, policy=expert, seats=(), layout=self._layout)
            if expert.silent:
                return None
        return played

    def success_by_group(
        self,
        lesson: Lesson,
        played: Sequence[Trajectory],
        weights: Sequence[float] | None,
        gather: Callable[..., list[list[float]]],
    ) -> dict[str, float]:
        """Return the success rate of each group of tasks that was played, over all processes.

        Args:
            lesson: the lesson that was played.
            played: the fresh episodes of this process.
            weights: weights of these episodes; equal if absent.
            gather: exchanges numbers between processes; returns one list per process.
        """
        groups = sorted({task.group for task in lesson.choose(self.envs[0]) if task.group})
        counts = [number for group in groups for number in wins_and_episodes(played, group, weights)]
        totals = [sum(column) for column in zip(*gather(*counts), strict=True)]
        counted = zip(groups, totals[::2], totals[1::2], strict=True)
        return {group: wins / episodes for group, wins, episodes in counted if episodes}

    def with_reference(self, samples: Sequence[StepSample], weights: Weights, *, max_tokens: int) -> list[StepSample]:
        """Return the samples with log-probabilities of their menus, given the written text, under other ``weights``."""
        views, decisions = [sample.view for sample in samples], [sample.decision for sample in samples]
        with part("reference"), using(self._model, weights):
            scores = self._scores(views, decisions, max_tokens)
        return [
            replace(sample, reference=menu[: len(sample.view.menu.actions)])
            for sample, (_, menu) in zip(samples, scores, strict=True)
        ]

    def valued(self, episodes: Sequence[Trajectory], *, max_tokens: int) -> list[Trajectory]:
        """Return past episodes with the values of their states recomputed by the current value head."""
        views = [view for episode in episodes for view in policy_views(episode, self._layout)]
        decisions = [turn.decision for episode in episodes for turn in episode.turns]
        with part("replay"):
            scores = self._scores(views, decisions, max_tokens)
        following = iter(replace(decision, value=value) for decision, (value, _) in zip(decisions, scores, strict=True))
        return [
            replace(episode, turns=tuple(replace(turn, decision=next(following)) for turn in episode.turns))
            for episode in episodes
        ]

    @torch.no_grad()
    def _scores(
        self, views: Sequence[MenuView], decisions: Sequence[Decision], max_tokens: int
    ) -> list[tuple[float, tuple[float, ...]]]:
        """Return for each decision the value and the log-probabilities of the menu under the model's weights."""
        found = dict[int, tuple[float, tuple[float, ...]]]()
        with in_eval_mode(self._model), gathered(self._model):
            for forward in self._policy.divide(views, decisions, max_tokens=max_tokens) if views else ():
                scores = self._policy.score(forward)
                menus = map(tuple, scores.menu_logprobs.tolist())
                found.update(zip(forward.indices, zip(scores.values.tolist(), menus, strict=True), strict=True))
        return [found[index] for index in range(len(decisions))]

    def forget(self) -> None:
        """Clear all caches of results that were computed with older weights."""
        self._policy.forget()
        for seat in self._seats:
            if isinstance(seat.player, LMReflector):
                if seat.player.speaks_with(self._model):
                    seat.player.clear()  # single player: its reflections change with the weights
                else:
                    seat.player.forget()  # so that a resumed run is equal: cached states may change a logit's last bits


CELLS = 2**18
"""Number of counters. States whose hashes fall together share one: of 10,000 states, every 26th shares its counter."""

ROUNDING = 1e-6
"""Standard deviation of equal returns as a fraction of their mean, at most: what rounding leaves of 0."""


class Novelty:
    """Count-based exploration bonus ``1 / sqrt(N(s))`` for reaching a state (Strehl & Littman, 2008).

    A state is what its observation shows, counted by hash in a table of constant size (Tang et al., 2017) over all
    tasks: where two tasks show the same, the policy cannot tell them apart, so what it learned in one holds in the
    other. ``N`` is the number of episodes that visited the state, those of the current iteration included, so that the
    order of episodes does not matter. An episode earns the bonus of a state once, and none for its first state, so that
    it cannot live on going round in a circle of rare states.
    """

    def __init__(self) -> None:
        self.counts: Tensor = torch.zeros(CELLS, dtype=torch.int64)
        """(CELLS,) number of episodes so far that visited a state of each hash, over all processes."""

    def rewarded(
        self, played: Sequence[Trajectory], faded: float, total: Callable[[Tensor], Tensor]
    ) -> list[Trajectory]:
        """Count the states of new episodes; return the episodes with the reward ``novelty`` at each step.

        Args:
            played: the new episodes of this process.
            faded: fraction of the bonus that is left, between 0 and 1.
            total: adds a tensor of counts over all processes.
        """
        visits = [_visited(trajectory) for trajectory in played]
        cells = torch.tensor([cell for each in visits for cell in {*each}], dtype=torch.int64)
        self.counts += total(torch.bincount(cells, minlength=CELLS))
        return [self._with_bonus(each, cells, faded) for each, cells in zip(played, visits, strict=True)]

    def _with_bonus(self, trajectory: Trajectory, cells: Sequence[int], faded: float) -> Trajectory:
        turns = []
        for step, (turn, reached) in enumerate(zip(trajectory.turns, cells[1:], strict=True)):
            new = reached not in cells[: step + 1]
            bonus = faded / math.sqrt(int(self.counts[reached])) if new else 0.0
            turns.append(replace(turn, rewards={**turn.rewards, "novelty": bonus}))
        return replace(trajectory, turns=tuple(turns))


def without_novelty(trajectory: Trajectory) -> Trajectory:
    """Return an episode without its reward ``novelty``, which is of the time when it was played."""
    turns = [
        replace(turn, rewards={name: reward for name, reward in turn.rewards.items() if name != "novelty"})
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=tuple(turns))


def _visited(trajectory: Trajectory) -> list[int]:
    """Return the (T + 1,) cells of the states of an episode; one left before its end counts as staying where it was."""
    seen: list[Observation] = [turn.observation for turn in trajectory.turns]
    return [_cell(each) for each in (*seen, trajectory.last or seen[-1])]


def _cell(observation: Observation) -> int:
    digest = hashlib.sha256(json.dumps(observation.shown).encode()).digest()
    return int.from_bytes(digest[:8], "big") % CELLS


class RewardScale:
    """Running standard deviation of the discounted return, which becomes the unit of rewards in updates.

    Like gymnasium's ``NormalizeReward`` and PPO's code (Engstrom et al., 2020), but of the reward-to-go of each step,
    which is what the value head estimates; those compute it from the rewards so far, because they cannot look ahead.
    The mean is not subtracted from rewards, which would change what is best.
    """

    def __init__(self) -> None:
        self.moments: tuple[float, float, float] = (0.0, 0.0, 0.0)
        """Number, mean and sum of squared differences from the mean of all returns so far, over all processes."""

    @property
    def unit(self) -> float:
        """The standard deviation, in units of the environment; as long as all returns are equal, their size, or 1."""
        count, mean, squares = self.moments
        deviation = math.sqrt(squares / count) if count else 0.0
        equal = deviation <= ROUNDING * abs(mean)
        return (abs(mean) or 1.0) if equal else deviation

    def add(self, returns: Tensor, gather: Callable[..., list[list[float]]]) -> None:
        """Add the (N,) rewards-to-go of all steps of an iteration; ``gather`` returns a list of numbers per process."""
        returns = returns.double()
        mean = float(returns.mean())
        for found in gather(len(returns), mean, float(((returns - mean) ** 2).sum())):
            self.moments = _merged(self.moments, (found[0], found[1], found[2]))


def _merged(one: tuple[float, float, float], two: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the moments of both samples together (Chan et al., 1983)."""
    (n, mean, squares), (m, other, more) = one, two
    gap = other - mean
    return n + m, mean + gap * m / (n + m), squares + more + gap * gap * n * m / (n + m)
