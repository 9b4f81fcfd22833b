"""Records of an episode (task, observation, decision, turn, trajectory), frozen and shared by all packages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar


class Drawn:
    """Base class of values that are drawn by a room above those in which they are made."""

    as_html: ClassVar[Callable[[Any], str]]
    """Draws a value; set by the package root."""

    def _repr_html_(self) -> str:
        return Drawn.as_html(self)


SPLITS = ("train", "validation", "test")
NO_MENU = -1
"""``Choice.index`` of an action in an environment without menus."""
OUTCOMES = ("success", "failure", "out of time")


@dataclass(frozen=True)
class Task:
    """One problem that an environment can be reset to."""

    id: str
    """Identifier, unique within the environment; the splits of one environment share no id."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """JSON values from which ``start`` sets up the problem, and optionally ``group``."""

    @property
    def group(self) -> str:
        """Group of the task from ``options["group"]``, whose success is also reported separately; empty for none."""
        return str(self.options.get("group", ""))


@cache
def seed_tasks(split: str, splits: tuple[str, ...] = SPLITS, train: int = 10_000) -> tuple[Task, ...]:
    """Return the tasks of a split where a task is a seed, such as ``Task("seed-7", {"seed": 7})``.

    Args:
        split: one of ``splits``.
        splits: all splits; the first is for training.
        train: number of tasks for training; each other split has 200, or as many if these are fewer.
    """
    held_out, number = 200, splits.index(split)
    if number:
        first, count = (number - 1) * held_out, min(train, held_out)
    else:
        first, count = (len(splits) - 1) * held_out, train
    return tuple(Task(f"seed-{seed}", {"seed": seed}) for seed in range(first, first + count))


@dataclass(frozen=True)
class Image:
    """Picture of a state, as the bytes of a PNG file."""

    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the bytes, which names the picture in files."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Observation:
    """Part of the state that a player may read, ``p(s)`` of the paper, with the legal actions ``A(s)``."""

    text: str
    actions: tuple[str, ...] = ()
    """Legal actions of THIS state, in words, in the environment's order; none in an environment that takes any
    text (``NatLangEnv.max_actions`` of 0)."""
    task: str = ""
    """Goal of the episode, where the environment states it in words; it is the same in every state, so prompts show it
    before the history, where its tokens keep their position."""
    images: tuple[Image, ...] = ()
    """Pictures of the state; players that read text see only ``text``."""
    common: tuple[str, ...] = ()
    """Actions that are legal in nearly all states of this episode, not necessarily in this one. They are the same in
    every state, so prompts may list them before the history (``prompt.menu=first``), where their tokens keep their
    position."""
    short: str = ""
    """Short form of the text, which prompts show of a past state (``prompt.history.show=transitions``); empty: the
    text itself."""

    @property
    def final(self) -> Observation:
        """The observation without its actions, as recorded at the end of an episode."""
        return replace(self, actions=(), common=())

    @property
    def tries(self) -> tuple[str, ...]:
        """Actions that random play draws from: the legal ones or, where any text will do, the words of the text."""
        return self.actions or tuple(dict.fromkeys(self.text.split())) or ("",)

    @property
    def full_text(self) -> str:
        """Task and text of the state."""
        return f"{self.task}\n{self.text}" if self.task else self.text

    @property
    def shown(self) -> tuple[str, ...]:
        """Task and text of the state and the hash of each picture; equal for states that look the same to a player."""
        return (self.full_text, *(image.sha256 for image in self.images))


@dataclass(frozen=True)
class Outcome:
    """Result of an action."""

    reward: float
    ended: bool = False
    """True if the environment ends the episode (``terminated``); truncation is done by the base class."""
    success: bool = False
    """True if the episode succeeded, as declared by the environment and never inferred from the return."""
    illegal: bool = False
    """True if the action was on the menu but is forbidden in this state, e.g. driving into a wall of DangerousTaxi."""


@dataclass(frozen=True)
class Hints:
    """Knowledge of the environment's expert about a state; only teachers and the expert read it, never a model."""

    action: str | None = None
    """The expert's action; ``None`` where the environment has no expert."""
    reflection: str | None = None
    """The expert's reflection on the last action and the current state."""
    spoiler: str | None = None
    """Privileged facts for a teaching model, which must not repeat them."""
    mistaken: bool | None = None
    """True if the last action was worse than the expert's; ``None`` where that is not known."""
    secrets: tuple[str, ...] = ()
    """Phrases that a reflection may contain only if the prompt shows them."""


@dataclass(frozen=True)
class Reading:
    """Judgement of an environment on a policy's thought about the current state."""

    right: bool | None = None
    """False for a thought that misreads the state; ``None`` where the environment cannot tell."""
    action: str | None = None
    """Action that the thought calls for; ``None`` where it calls for none, or the environment cannot tell."""


@dataclass(frozen=True)
class Utterance:
    """Words that a frozen player said at one step."""

    text: str
    tokens: int = 0
    """Number of tokens generated for the text; 0 for players that do not count tokens."""
    scores: tuple[float | None, ...] = ()
    """(T,) a rater's score of each step so far, ``None`` where it gives none; empty for every other player."""


@dataclass(frozen=True)
class Written:
    """Text that a policy wrote to reach its action: a thought, or a thought and the action in JSON."""

    text: str
    ids: tuple[int, ...]
    """(L,) generated token ids, including the token that ended the text, if any."""
    logprobs: tuple[float, ...]
    """(L,) log-probability with which each token was sampled, in nats."""
    action_start: int
    """Position in ``ids`` of the first token of the action; L if the tokens contain no action."""
    legal: bool = True
    """False if the text names no legal action, so that a random one was played."""

    @property
    def thought_logprob(self) -> float:
        """Log-probability of the tokens before the action, in nats."""
        return sum(self.logprobs[: self.action_start])


@dataclass(frozen=True)
class Choice:
    """Action chosen from the menu, by one token or by a text that names it."""

    index: int
    """Position of the action in the menu as it was shown; ``NO_MENU`` in an environment without menus."""
    probabilities: tuple[float, ...] = ()
    """(n,) probabilities of the menu's actions as shown; empty where they are unknown (chat endpoint, JSON action)."""
    written: Written | None = None
    """Text that precedes or contains the choice; ``None`` for a policy that answers with a label only."""

    @property
    def legal(self) -> bool:
        """Whether the policy chose the action; false if its text named no legal action and a random one was played."""
        return self.written is None or self.written.legal


@dataclass(frozen=True)
class Decision:
    """One action of a policy over a menu of ``n`` actions."""

    action: str
    logprob: float
    """Log-probability with which the action was sampled, in nats, given the thought, if there is one."""
    entropy: float
    """Entropy of the distribution over the menu, in nats; for a written action its estimate,
    ``-logprob``, which in plain text is divided by the number of tokens."""
    choice: Choice
    """Position of the action in the menu, with the probabilities and the text of the choice."""
    value: float = 0.0
    """The value head's estimate of the return from this state at sampling time; 0 without a value head."""

    def joint_logprob(self, thought_lambda: float) -> float:
        """Return ``lambda log p(thought) + log p(action | thought)`` (RL4VLM, equation 4.3)."""
        thought = 0.0 if self.choice.written is None else self.choice.written.thought_logprob
        return thought_lambda * thought + self.logprob


@dataclass(frozen=True)
class Turn:
    """One step of an episode, with everything that is needed to write its prompts again."""

    observation: Observation
    menu: tuple[str, ...]
    """Legal actions in the order in which they were shown (shuffled or not)."""
    said: Mapping[str, Utterance]
    """New words of the frozen players at this step, by role; later prompts show them until the role speaks again."""
    decision: Decision
    rewards: Mapping[str, float]
    """Rewards of the step by source: ``"env"``; the roles of raters; and for a policy that writes a text, ``"format"``
    (1 if the text names a legal action), ``"agreement"`` (1 if the environment finds the thought right) and
    ``"consistency"`` (1 if the action is the one that the thought calls for), each 0 otherwise. An unknown reward is
    absent, never 0."""
    illegal: bool = False

    @property
    def reflection(self) -> str | None:
        """Text of the reflector; ``None`` without a reflection."""
        words = self.said.get("reflector")
        return None if words is None else words.text

    @property
    def reward(self) -> float:
        """Reward of the environment, unscaled."""
        return self.rewards["env"]


@dataclass(frozen=True)
class Trajectory(Drawn):
    """One episode."""

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    success: bool
    last_value: float = 0.0
    """The value head's estimate of the return from the state in which the episode was truncated; 0 without a head."""
    last: Observation | None = None
    """Observation after the last action, without actions; ``None`` for an episode that was left before its
    end. Raters and memories see it, policies and reflectors never do."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """(T,) rewards of the environment, unscaled."""
        return tuple(turn.reward for turn in self.turns)

    @property
    def actions(self) -> tuple[str, ...]:
        """(T,) actions taken."""
        return tuple(turn.decision.action for turn in self.turns)

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the environment's rewards."""
        return float(sum(self.rewards))

    @property
    def outcome(self) -> str:
        """Outcome of the episode, one of ``OUTCOMES``."""
        return OUTCOMES[0 if self.success else 2 if self.truncated else 1]
