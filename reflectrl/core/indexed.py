"""``IndexedActions``: actions as numbers, for libraries of reinforcement learning that do not act in words."""

from __future__ import annotations

from typing import Any, SupportsInt, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils import RecordConstructorArgs

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import InvalidInput

MASK = "action_mask"
"""Key of ``info`` for the mask; gymnasium's own environments use it, too."""


class IndexedActions(gymnasium.Wrapper[str, SupportsInt, str, str], RecordConstructorArgs):
    """Take the number of an action in place of its words; observations stay texts.

    The common actions of an environment (``Observation.common``) have the first numbers, in every state the same ones,
    whether they are legal in it or not; the other legal actions follow in the order of the menu. ``info`` holds an
    ``action_mask`` with 1 for each number that can be played, as ``action_space.sample(mask)`` takes it, and
    ``action_masks()`` returns it for ``MaskablePPO``.

    A number that cannot be played is a wasted step: the state stays as it is, ``info["illegal"]`` is true, and the step
    counts towards the horizon.

    Args:
        env: an environment of this library, which may be wrapped already.
        illegal_reward: reward of a wasted step.

    Raises:
        InvalidInput: another environment, or one without menus.
    """

    def __init__(self, env: gymnasium.Env[str, str], illegal_reward: float = 0.0) -> None:
        RecordConstructorArgs.__init__(self, illegal_reward=illegal_reward)
        # gymnasium's annotation has it that a wrapper takes the actions of what it wraps
        gymnasium.Wrapper.__init__(self, cast("gymnasium.Env[str, SupportsInt]", env))
        inner = env.unwrapped
        if not isinstance(inner, NatLangEnv):
            raise InvalidInput(
                f"IndexedActions was given an environment of class {type(inner).__name__}; expected one of this "
                "library: those of gymnasium take numbers already."
            )
        if not inner.max_actions:
            raise InvalidInput(
                f"IndexedActions was given {inner.name!r}, which has no menus (max_actions is 0) and takes any text; "
                "expected an environment that lists its actions."
            )
        self._worded = env
        self._inner = inner
        self._illegal_reward = illegal_reward
        self._last: dict[str, Any] = {}
        self._wasted = 0
        self._over = False
        self.action_space = Discrete(inner.max_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode as the environment does; raise as ``NatLangEnv.reset`` does."""
        self._wasted, self._over = 0, False
        text, self._last = self._worded.reset(seed=seed, options=options)
        return text, self._with_mask(self._last)

    def step(self, action: SupportsInt) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the action with a number.

        Raises:
            InvalidInput: the episode is over.
            EnvFailed: as ``NatLangEnv.step``.
        """
        if self._over:
            raise InvalidInput(f"step of {self._inner.name!r} was called after the episode's end; call reset.")
        numbered, inner, number = self.numbered, self._inner, int(action)
        if 0 <= number < len(numbered) and numbered[number] in inner.observation.actions:
            text, reward, terminated, truncated, self._last = self._worded.step(numbered[number])
            reward = float(reward)
        else:
            self._wasted += 1
            text, reward, terminated, truncated = inner.render(), self._illegal_reward, False, False
            self._last = {**self._last, "illegal": True}
        truncated = truncated or (not terminated and inner.steps + self._wasted >= inner.horizon)
        self._over = terminated or truncated
        return text, reward, terminated, truncated, self._with_mask(self._last)

    @property
    def numbered(self) -> tuple[str, ...]:
        """The actions by their numbers, the common ones first."""
        observation = self._inner.observation
        return tuple(dict.fromkeys((*observation.common, *observation.actions)))

    def action_masks(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return, (max_actions,), whether each number can be played in this state."""
        legal = self._inner.observation.actions
        mask = np.zeros(self._inner.max_actions, dtype=np.bool_)
        mask[: len(self.numbered)] = [action in legal for action in self.numbered]
        return mask

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, MASK: self.action_masks().astype(np.int8)}
