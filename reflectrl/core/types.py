"""The nouns of an episode: frozen records that pass between rooms."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "validation", "test")
OUTCOMES = ("success", "failure", "out of time")
"""Names of the ways in which an episode may end."""


@dataclass(frozen=True)
class Task:
    """One problem that an environment can be reset to."""

    id: str
    """Unique within the environment; the splits of one environment share no id."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that ``start`` needs to set the problem up, and perhaps ``group``: JSON values only."""

    @property
    def group(self) -> str:
        """Kind of task whose success is also reported by itself, from ``options["group"]``; empty for none."""
        return str(self.options.get("group", ""))


@dataclass(frozen=True)
class Image:
    """Picture of a state, as the bytes of a PNG file."""

    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Hexadecimal hash of the bytes, by which files name the picture."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Observation:
    """Part of the state that a player may read, ``p(s)`` of the paper, with the legal actions ``A(s)``."""

    text: str
    actions: tuple[str, ...]
    """The legal actions of THIS state, in words, in the environment's own order."""
    task: str = ""
    """Goal of the episode, where the environment states it in words: the same in every state, so prompts show it
    before the history, where its tokens keep their place."""
    images: tuple[Image, ...] = ()
    """Pictures of the state; players that read text see only ``text``."""
    common: tuple[str, ...] = ()
    """Actions that are legal in nearly all states of this episode, be they legal here or not: the same in every state,
    so that prompts may list them before the history (``prompt.menu=first``), where their tokens keep their place."""

    @property
    def full_text(self) -> str:
        """Task and text of the state."""
        return f"{self.task}\n{self.text}" if self.task else self.text

    @property
    def shown(self) -> tuple[str, ...]:
        """Task and text of the state, and the hash of each picture: equal where a player sees the same."""
        return (self.full_text, *(image.sha256 for image in self.images))


@dataclass(frozen=True)
class Outcome:
    """Result of an action."""

    reward: float
    ended: bool = False
    """True when the environment itself ends the episode (``terminated``); running out of time is the base's job."""
    success: bool = False
    """Declared by the environment, never guessed from the return."""
    illegal: bool = False
    """True when the action was on the menu but forbidden here, e.g. driving into a wall of DangerousTaxi."""


@dataclass(frozen=True)
class Hints:
    """Knowledge of the environment's own expert about a state; only teachers and the expert read it, never a model."""

    action: str | None = None
    """The expert's action, ``None`` where the environment has no expert."""
    reflection: str | None = None
    """The expert's reflection: was the last action good, where do things stand."""
    spoiler: str | None = None
    """Privileged facts for a teaching model, which must not repeat them."""
    mistaken: bool | None = None
    """True if the last action was worse than the expert's; ``None`` where that is not known."""
    secrets: tuple[str, ...] = ()
    """Words that a reflection may hold only where the prompt shows them."""


@dataclass(frozen=True)
class Reading:
    """Judgement of an environment on a policy's thought about the present state."""

    right: bool | None = None
    """False for a thought that misreads the state; ``None`` where the environment cannot tell."""
    action: str | None = None
    """Action that the thought calls for; ``None`` where it calls for none, or the environment cannot tell."""


@dataclass(frozen=True)
class Utterance:
    """Words of a frozen player."""

    text: str
    tokens: int = 0
    """Tokens generated for them; 0 for players that count none."""
    scores: tuple[float | None, ...] = ()
    """(T,) a rater's score of each step so far, ``None`` where it gives none; empty for every other player."""


@dataclass(frozen=True)
class Written:
    """Text that a policy wrote to reach its action: a thought, or a thought and the action in JSON."""

    text: str
    ids: tuple[int, ...]
    """(L,) generated token ids, with the one that ended the text, if any did."""
    logprobs: tuple[float, ...]
    """(L,) natural log of the probability with which each token was sampled."""
    action_start: int
    """Position in ``ids`` of the first token of the action; L where the action is none of them."""
    legal: bool = True
    """False where the text names no legal action, so that a random one was played."""

    @property
    def thought_logprob(self) -> float:
        """Natural log of the probability of the tokens before the action."""
        return sum(self.logprobs[: self.action_start])


@dataclass(frozen=True)
class Choice:
    """Action chosen from the menu: by one token, or by what the policy wrote."""

    index: int
    """Position of the action in the menu as it was shown."""
    probabilities: tuple[float, ...] = ()
    """(n,) over the menu as shown; empty when the policy has none (a chat endpoint, an action in JSON)."""
    written: Written | None = None
    """Text that came before the choice, or held it; ``None`` for a policy that answers at once."""

    @property
    def legal(self) -> bool:
        """Whether the policy chose it; false where its text named no legal action, so that a random one was played."""
        return self.written is None or self.written.legal


@dataclass(frozen=True)
class Decision:
    """One action of a policy over a menu of ``n`` actions."""

    action: str
    logprob: float
    """Natural log of the probability with which the action was sampled, after the thought, if there is one."""
    entropy: float
    """Nats, of the distribution over the menu; for an action in JSON ``-logprob``, whose mean is the entropy."""
    choice: Choice
    """Place of the action in the menu, and what led to it."""
    value: float = 0.0
    """The value head's estimate of the return from here, when the action was sampled; 0 without a value head."""

    def joint_logprob(self, thought_lambda: float) -> float:
        """Return ``lambda log p(thought) + log p(action | thought)`` (RL4VLM, equation 4.3)."""
        thought = 0.0 if self.choice.written is None else self.choice.written.thought_logprob
        return thought_lambda * thought + self.logprob


@dataclass(frozen=True)
class Turn:
    """One step of an episode, with everything that is needed to write its prompts again."""

    observation: Observation
    menu: tuple[str, ...]
    """The actions in the order in which they were shown (shuffled or not)."""
    said: Mapping[str, Utterance]
    """New words of the frozen players at this step, by role; they stay in view until the role speaks again."""
    decision: Decision
    rewards: Mapping[str, float]
    """Rewards of the step by source: ``"env"``, the roles of raters, and of a policy that writes ``"format"``, 1 where
    the text names a legal action, ``"agreement"``, 1 where the environment finds the thought right, and
    ``"consistency"``, 1 where the action is the one that the thought calls for. What is not known is absent, never
    0."""
    illegal: bool = False

    @property
    def reflection(self) -> str | None:
        """Text of the reflector; ``None`` without a reflection."""
        words = self.said.get("reflector")
        return None if words is None else words.text

    @property
    def reward(self) -> float:
        """Reward of the environment, in its own units."""
        return self.rewards["env"]


@dataclass(frozen=True)
class Trajectory:
    """One episode."""

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    success: bool
    last_value: float = 0.0
    """The value head's estimate of the return from the state in which the episode was truncated; 0 without one."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """(T,) rewards of the environment, in its own units."""
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
