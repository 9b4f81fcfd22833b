"""``rlft.advantage``: estimators of advantages, each a record of its settings with the function that uses them.

A new estimator is such a class, named in ``Advantage``. In Python, a subclass of one of them with its own ``estimate``
can be given too, of ``GAE`` if it needs a value head.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reflectrl.core.settings import Fraction, NonNegative, Positive, settings

Floats = NDArray[np.float64]
STD_FLOOR = 0.2
"""Minimum divisor of the normalisation, which keeps it from amplifying noise if all advantages are nearly equal."""
SAME_RETURN = 1e-6
"""Standard deviation of the returns of a task's episodes up to which these count as equal."""


@dataclass(frozen=True)
class Steps:
    """The N steps of E episodes, episode by episode; those of new episodes come before those of replayed ones."""

    rewards: Sequence[Sequence[float]]
    """Rewards of each episode's steps."""
    own_rewards: Floats
    """(N,) rewards that count in the return of their own step only."""
    gamma: float
    """Discount."""
    fresh: int
    """Number of steps of new episodes."""
    values: Sequence[Sequence[float]]
    """Estimates of the value head for each episode's states."""
    last_values: Sequence[float]
    """(E,) estimates for the state after the last action of a truncated episode; 0 if it terminated."""
    tasks: Sequence[Hashable]
    """(E,) tasks of the episodes."""
    states: Sequence[Hashable]
    """(N,) what the steps' observations show, with the task."""
    prompts: Sequence[Hashable]
    """(N,) what the policy read at the steps."""

    @property
    def returns(self) -> Floats:
        """(N,) rewards-to-go."""
        return np.concatenate([rewards_to_go(each, self.gamma) for each in self.rewards]) + self.own_rewards

    @property
    def episodes(self) -> NDArray[np.int64]:
        """(N,) number of each step's episode."""
        return np.repeat(np.arange(len(self.rewards)), [len(each) for each in self.rewards])


@settings()
class Estimator:
    """Settings of every estimator."""

    normalize: bool = True
    """Divide advantages by the standard deviation of those of new episodes (at least 0.2)."""
    center: bool = False
    """Subtract the mean of new episodes' advantages first; with ``normalize`` they are then whitened."""
    compares_episodes: ClassVar[bool] = False
    """Whether an episode's advantages depend on other episodes, which then have to be of the same policy."""


@settings()
class NoBaseline(Estimator):
    """The reward-to-go itself (Algorithm 1)."""

    kind: Literal["none"] = "none"
    """This estimator."""

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        """Return the (N,) advantages, and the (N,) targets of a value head."""
        return steps.returns, steps.returns


@settings()
class BatchMean(Estimator):
    """The reward-to-go less its mean over the steps of new episodes."""

    kind: Literal["batch"] = "batch"
    """This estimator."""

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        """Return the (N,) advantages, and the (N,) targets of a value head."""
        returns = steps.returns
        return returns - returns[: steps.fresh].mean(), returns


@settings()
class LeaveOneOut(Estimator):
    """The reward-to-go less the mean return of other episodes' steps with the same prompt.

    If there are none, less that of all their steps. ``rlft.episodes_per_task`` makes equal prompts likely, but any will
    do.
    """

    kind: Literal["leave_one_out"] = "leave_one_out"
    """This estimator."""
    compares_episodes = True

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        """Return the (N,) advantages, and the (N,) targets of a value head."""
        returns = steps.returns
        return returns - leave_one_out(returns, _numbered(steps.prompts), steps.episodes), returns


@settings()
class EpisodeGroup(Estimator):
    """GRPO's advantage of whole episodes (Shao et al., 2024, section 4.1.2): the same at each step of an episode.

    It is the episode's return less the mean of its task's episodes, divided by their standard deviation: set
    ``rlft.episodes_per_task``, as it is 0 for the only episode of a task.
    """

    kind: Literal["group"] = "group"
    """This estimator."""
    normalize: bool = False
    """Divide advantages by the standard deviation of those of new episodes, too (at least 0.2)."""
    compares_episodes = True

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        """Return the (N,) advantages, and the (N,) targets of a value head."""
        totals = np.array([sum(each) for each in steps.rewards])
        return group_advantages(totals, _numbered(steps.tasks))[steps.episodes], steps.returns


@settings()
class StepGroup(Estimator):
    """GiGPO (Feng et al., 2025): an advantage among episodes of a task plus one among steps in the same state.

    The first is an episode's return less the mean of its task's episodes, the second a step's reward-to-go less the
    mean of the task's steps with the same observation.
    """

    kind: Literal["step_group"] = "step_group"
    """This estimator."""
    weight: NonNegative = 1.0
    """Weight (omega) of the second difference, between steps."""
    compares_episodes = True

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        """Return the (N,) advantages, and the (N,) targets of a value head."""
        totals, returns = np.array([sum(each) for each in steps.rewards]), steps.returns
        tasks, states = _numbered(steps.tasks), _numbered(steps.states)
        return step_grouped(totals, tasks, returns, states, steps.episodes, weight=self.weight), returns


@settings()
class ValueHead:
    """A value head, and the squared error that trains it."""

    coef: NonNegative = 0.5
    """Coefficient of the squared error in the objective."""
    clip: Positive | None = None
    """Clip range of a value's change in one iteration, in units of return, as in PPO's code; absent: no clipping."""
    trunk: bool = False
    """Let the error also train the layers below the head. Its first estimates are far off, and with true they have
    undone what these layers had learned in fine-tuning (100 % to 9 % in an iteration)."""
    learning_rate: Positive | None = 3e-3
    """Initial learning rate of the head; null: that of the policy."""


@settings()
class GAE(Estimator):
    """Generalized advantages (Schulman et al., 2016) with a value head."""

    kind: Literal["gae"] = "gae"
    """This estimator."""
    center: bool = True
    """Subtract the mean of new episodes' advantages first; with ``normalize`` they are then whitened."""
    gae_lambda: Fraction = 0.99
    """1 gives the reward-to-go minus the value (least bias), 0 the one-step TD error (least variance)."""
    bootstrap_truncated: bool = False
    """Bootstrap the return of a truncated episode with the value of its last state. Correct if the time limit is not
    part of the task (Pardo et al., 2018); if it is, and without a discount, the policy unlearns to be fast."""
    value: ValueHead = field(default_factory=ValueHead)
    """The value head."""

    def estimate(self, steps: Steps) -> tuple[Floats, Floats]:
        """Return the (N,) advantages, and the (N,) targets of the value head: advantages plus values."""
        played = zip(steps.rewards, steps.values, steps.last_values, strict=True)
        episodes = [generalized_advantages(*each, gamma=steps.gamma, gae_lambda=self.gae_lambda) for each in played]
        advantages = np.concatenate(episodes) + steps.own_rewards
        return advantages, advantages + np.concatenate([np.array(each) for each in steps.values])


Advantage = Annotated[
    GAE | NoBaseline | BatchMean | LeaveOneOut | EpisodeGroup | StepGroup, Field(discriminator="kind")
]


def rewards_to_go(rewards: Sequence[float], gamma: float) -> Floats:
    """Return the (T,) rewards-to-go ``Q_h = sum_{t>=h} gamma^(t-h) r_t`` of one episode (section 3)."""
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return np.array(returns[::-1])


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], last_value: float, *, gamma: float, gae_lambda: float
) -> Floats:
    """Return GAE(lambda) of one episode (Schulman et al., 2016).

    ``A_h = sum_{t>=h} (gamma lambda)^(t-h) (r_t + gamma V_{t+1} - V_t)``

    Args:
        rewards: (T,) rewards of one episode.
        values: (T,) estimates of the return from each state of the episode.
        last_value: estimate of the return from the state after the last action, to bootstrap a truncated episode; 0 if
            the episode terminated.
        gamma: discount.
        gae_lambda: 1 for ``Q_h - V_h`` (least bias), 0 for the one-step TD error (least variance).

    Returns:
        (T,) advantages; their sum with ``values`` is the target of the value head.
    """
    advantages, total = [], 0.0
    following = [*values[1:], last_value]
    for reward, value, next_value in reversed(list(zip(rewards, values, following, strict=True))):
        total = reward + gamma * next_value - value + gamma * gae_lambda * total
        advantages.append(total)
    return np.array(advantages[::-1])


def leave_one_out(returns: Floats, groups: NDArray[np.int64], episodes: NDArray[np.int64]) -> Floats:
    """Return leave-one-out baselines: the mean return of OTHER episodes' steps with the same prompt.

    Where no other episode has a step with that prompt, it is the mean return of all their steps. Steps of the same
    episode are left out, because their returns share rewards with the step's return, which would bias the gradient;
    RLOO leaves out whole episodes as well.

    Args:
        returns: (N,) rewards-to-go.
        groups: (N,) integers; equal for steps that read the same prompt.
        episodes: (N,) integers; equal for steps of the same episode.

    Returns:
        (N,) baselines, which do not depend on the returns of the step's episode; 0 if there is no other episode.
    """
    total, count = _of_other_episodes(returns, groups, episodes)
    all_total, all_count = _of_other_episodes(returns, np.zeros_like(groups), episodes)
    return np.where(count > 0, total / np.maximum(count, 1), all_total / np.maximum(all_count, 1))


def group_advantages(totals: Floats, tasks: NDArray[np.int64]) -> Floats:
    """Return GRPO's advantages (Shao et al., 2024, arXiv 2402.03300): ``(R - mean) / std`` within each task.

    Args:
        totals: (E,) undiscounted returns of the episodes.
        tasks: (E,) integers; equal for episodes of the same task.

    Returns:
        (E,) advantages; 0 where all episodes of a task have the same return.
    """
    above = _above_mean(totals, tasks)
    squares, count = _sums(above**2, tasks)
    deviation = np.sqrt(squares / count)
    return np.where(deviation > SAME_RETURN, above / np.maximum(deviation, SAME_RETURN), 0.0)


def step_grouped(
    totals: Floats,
    tasks: NDArray[np.int64],
    returns: Floats,
    states: NDArray[np.int64],
    episodes: NDArray[np.int64],
    *,
    weight: float,
) -> Floats:
    """Return GiGPO advantages (Feng et al., 2025, arXiv 2505.10978): an episode-level plus a step-level advantage.

    Each is the difference from the mean of its group (``F_norm = 1`` in the paper), so it is 0 in a group of one.

    Args:
        totals: (E,) undiscounted returns of the episodes.
        tasks: (E,) integers; equal for episodes of the same task.
        returns: (N,) rewards-to-go of the steps.
        states: (N,) integers; equal for steps of the same task with the same observation, the anchor state.
        episodes: (N,) index of each step's episode.
        weight: weight omega of the step-level advantage.

    Returns:
        (N,) advantages.
    """
    return _above_mean(totals, tasks)[episodes] + weight * _above_mean(returns, states)


def spread(advantages: Floats) -> float:
    """Return the standard deviation of (N,) advantages, or ``STD_FLOOR`` if that is larger."""
    return max(float(advantages.std()), STD_FLOOR)


def _numbered(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return an integer for each key; equal keys have equal integers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _above_mean(values: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return the (N,) differences of values from the mean of their group."""
    total, count = _sums(values, groups)
    above: Floats = values - total / count
    return above


def _of_other_episodes(
    returns: Floats, groups: NDArray[np.int64], episodes: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return the (N,) sums and (N,) numbers of the returns in each step's group, without those of its episode."""
    own = np.unique(np.stack([groups, episodes]), axis=1, return_inverse=True)[1].reshape(-1)
    total, count = _sums(returns, groups)
    own_total, own_count = _sums(returns, own)
    return total - own_total, count - own_count


def _sums(values: Floats, groups: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return the (N,) sums and (N,) numbers of the values in each element's group."""
    return np.bincount(groups, weights=values)[groups], np.bincount(groups)[groups]
