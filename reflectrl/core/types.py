"""The nouns of an episode: frozen records that pass between rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "validation", "test")
OUTCOMES = ("success", "failure", "out of time")
"""How an episode may end, in words."""


@dataclass(frozen=True)
class Task:
    """One problem that an environment can be reset to."""

    id: str
    """Unique within the environment; the splits of one environment share no id."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What ``start`` needs to set the problem up: JSON values only."""


@dataclass(frozen=True)
class Observation:
    """What a player may read of the state, ``p(s)`` of the paper, with the legal actions ``A(s)``."""

    text: str
    actions: tuple[str, ...]
    """The legal actions of THIS state, in words, in the environment's own order."""
    task: str = ""
    """What an episode is about, where the environment says so in words: the same in every state, so prompts show it
    before the history, where its tokens keep their place."""

    @property
    def full_text(self) -> str:
        """Task and text."""
        return f"{self.task}\n{self.text}" if self.task else self.text


@dataclass(frozen=True)
class Outcome:
    """What an action did."""

    reward: float
    ended: bool = False
    """True when the environment itself ends the episode (``terminated``); running out of time is the base's job."""
    success: bool = False
    """Declared by the environment, never guessed from the return."""
    illegal: bool = False
    """True when the action was on the menu but forbidden here, e.g. driving into a wall of DangerousTaxi."""


@dataclass(frozen=True)
class Hints:
    """What the environment's own expert knows of a state. Only teachers and the expert read it; never a model."""

    action: str | None = None
    """The expert's action, ``None`` where the environment has no expert."""
    reflection: str | None = None
    """The expert's reflection: was the last action good, where do things stand."""
    spoiler: str | None = None
    """Privileged facts for a teaching model, which must not repeat them."""
    mistaken: bool | None = None
    """Whether the last action was worse than the expert's; ``None`` where that is not known."""
    secrets: tuple[str, ...] = ()
    """Words that a reflection may hold only where the prompt shows them."""


@dataclass(frozen=True)
class Utterance:
    """What a reflector said, and what it cost to say."""

    text: str
    tokens: int = 0
    cached: bool = False


@dataclass(frozen=True)
class Decision:
    """One action of a policy over a menu of ``n`` actions."""

    index: int
    """Position of the action in the menu as it was shown."""
    action: str
    logprob: float
    """Natural log of the probability with which the action was sampled."""
    entropy: float
    """In nats, of the distribution over the menu."""
    probabilities: tuple[float, ...] = ()
    """(n,) over the menu as shown; empty when the policy has none (a chat endpoint)."""
    value: float = 0.0
    """The value head's estimate of the return from here, when the action was sampled; 0 without a value head."""


@dataclass(frozen=True)
class Turn:
    """One step of an episode, with everything that is needed to write its prompts again."""

    observation: Observation
    menu: tuple[str, ...]
    """The actions in the order in which they were shown (shuffled or not)."""
    reflection: str | None
    decision: Decision
    reward: float
    illegal: bool = False


@dataclass(frozen=True)
class Trajectory:
    """One episode."""

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    success: bool

    @property
    def rewards(self) -> tuple[float, ...]:
        """(T,) rewards, in the environment's units."""
        return tuple(turn.reward for turn in self.turns)

    @property
    def actions(self) -> tuple[str, ...]:
        """(T,) actions taken."""
        return tuple(turn.decision.action for turn in self.turns)

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of rewards."""
        return float(sum(self.rewards))

    @property
    def outcome(self) -> str:
        """One of ``OUTCOMES``."""
        return OUTCOMES[0 if self.success else 2 if self.truncated else 1]
