"""What a few episodes of an environment tell before anything is trained: texts, menus, returns, need of memory."""

from __future__ import annotations

import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, mode, pstdev

import numpy as np

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.config.training import SURVEYED
from reflectrl.core import NatLangEnv, Trajectory, Turn
from reflectrl.core.check import Ambiguity, ambiguous_states
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.demonstrations import episodes_of, read_demonstrations, without_menus
from reflectrl.lm.tokenizer import train_tokenizer
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.chats import answer_text
from reflectrl.prompts.format import ActionMode
from reflectrl.prompts.players import Policy
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.turn import policy_views, states_of
from reflectrl.seats.others import CarelessExpert, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import Seat, reflecting, view

LEAST = 4
"""Least number of episodes of each kind, which is played even if it takes longer than it may."""
WORDY = 4
"""Number of episodes that are read as if they were as long as prompts can show."""
TRIES = 3
"""Number of environments that are made to see how long that takes: the first imports modules, and others may wait."""
REDRAWN, DRAWS = 16, 3
"""Number of equal steps with different outcomes that are tried for chance; of outcomes of each, and of draws."""
EXPERTISE = 0.85
"""Probability of the expert's action in its episodes, which thereby leave its path."""


@dataclass(frozen=True)
class Lengths:
    """Longest texts in tokens, and the number of different tokens."""

    prompt: int
    """Longest prompt of a player, with the expert's reflection where the policy reads one."""
    reflection: int
    written: int
    """Longest text that a policy which writes would be taught; 0 without a teacher."""
    vocabulary: int


@dataclass(frozen=True)
class Survey:
    """Episodes of training tasks: by random actions, and by a careless expert where the environment has one."""

    max_actions: int
    horizon: int
    at_random: Sequence[Trajectory]
    taught: Sequence[Trajectory]
    """Episodes with the expert's reflections; none without an expert."""
    demonstrated: Sequence[Trajectory]
    """Episodes of ``data.demonstrations``, whose last steps count as steps without a reward."""
    unclear: Ambiguity | None
    """Equal texts in which the expert acts differently; ``None`` where there are none, or no expert."""
    seconds_per_step: float
    """Seconds of the environment for a step, with the expert's hints where it has them."""
    seconds_to_make: float
    """Seconds for making an environment."""
    reflects: bool = True
    """Whether the environment's author wrote reflections."""
    carries: bool = False
    """Whether the expert's reflections build on those of the step before."""
    by_chance: float = 0.0
    """Of the steps whose action led to something else from an equal text, the fraction that other draws alone change; 0
    where the environment says that equal texts may hide different states."""

    @property
    def return_spread(self) -> float:
        """Standard deviation of the returns of all episodes."""
        return pstdev(each.episode_return for each in (*self.at_random, *self.taught))

    @property
    def largest_return(self) -> float:
        """Largest size of a return of random and demonstrated episodes, in units of the environment; 1 if all are 0."""
        return max(abs(each.episode_return) for each in (*self.at_random, *self.demonstrated)) or 1.0

    @property
    def rewards_are_dense(self) -> bool:
        """Whether most steps of random episodes have another reward than the commonest one."""
        rewards = [turn.reward for each in self.at_random for turn in each.turns]
        return 2 * rewards.count(mode(rewards)) < len(rewards)

    @property
    def characters(self) -> float:
        """Mean length of a state and the action in it, in characters."""
        played = (*self.at_random, *self.demonstrated)
        return fmean(len(turn.observation.text) + len(turn.decision.action) for each in played for turn in each.turns)

    @property
    def menus(self) -> list[list[tuple[str, ...]]]:
        """Menus of each episode."""
        played = (*self.at_random, *self.taught, *self.demonstrated)
        return [[turn.observation.actions for turn in each.turns] for each in played]

    @property
    def needs_memory(self) -> float:
        """Fraction of the states in which the past tells what to do and the text does not.

        Without an expert: fraction of the steps that random and demonstrated episodes took from a text which they saw
        more than once, in which the same action led to something else, and not by chance.
        """
        if self.taught:
            return 0.0 if self.unclear is None else self.unclear.share - self.unclear.unexplained
        again = [steps for steps in _equal_steps((*self.at_random, *self.demonstrated)) if len(steps) > 1]
        differ = sum(len(steps) for steps in again if _differ(steps))
        return (1 - self.by_chance) * differ / max(sum(map(len, again)), 1)

    def lengths(self, layout: PromptFormat, pieces: str, vocabulary: int) -> Lengths:
        """Return the longest texts in tokens of ``builtin/nano``'s tokenizer, trained on the texts seen here.

        Where prompts show past states, the episodes with the longest states are also read as if they were repeated
        until they fill what is shown: later episodes may be longer than those seen here.
        """
        played = [*self.at_random, *self.taught, *self.demonstrated]
        if layout.recent.show == "transitions":
            filled = layout.recent.steps + 1
            wordy = sorted(played, key=lambda each: max(len(turn.observation.text) for turn in each.turns))[-WORDY:]
            played += [replace(each, turns=each.turns * math.ceil(filled / len(each.turns))) for each in wordy]
        shown = [each.prompt.text for trajectory in played for each in policy_views(trajectory, layout)]
        shown += [view("reflector", layout, state).prompt.text for each in played for state in states_of(each)]
        turns = [turn for each in (*self.taught, *self.demonstrated) for turn in each.turns]
        said = [layout.completion(turn.reflection or "") for turn in turns]
        written = [_written(layout.action_mode, turn) for turn in turns] if layout.action_mode != "enumerated" else []
        names = layout.all_labels(self.max_actions)
        tokenizer = train_tokenizer(
            [*shown, *said, *written], names, pieces=pieces, vocabulary=vocabulary, max_length=sys.maxsize
        )

        def longest(texts: Sequence[str]) -> int:
            some = sorted({*texts}, key=lambda text: (-len(text), text))[:64]
            return max((len(tokenizer(text)["input_ids"]) for text in some), default=0)

        return Lengths(longest(shown), longest(said), longest(written), len(tokenizer))


def _written(mode: ActionMode, turn: Turn) -> str:
    """Return what a policy of this mode would have written for a turn, with the expert's reflection as its thought."""
    thought = turn.reflection or ""
    text = thought if mode == "thought_choice" else answer_text(mode, thought, turn.decision.action)
    return PromptFormat.completion(text)


@dataclass(frozen=True)
class _Step:
    """A step of an episode, and what it led to."""

    episode: Trajectory
    number: int
    led_to: tuple[object, float]
    """What was shown next, and the reward."""


def _equal_steps(played: Sequence[Trajectory]) -> list[list[_Step]]:
    """Return the steps in which the same was shown and the same action played, together."""
    found: dict[tuple[object, str], list[_Step]] = defaultdict(list)
    for each in played:
        shown = [*(turn.observation.shown for turn in each.turns), each.last and each.last.shown]
        for number, (turn, after) in enumerate(zip(each.turns, shown[1:], strict=True)):
            found[turn.observation.shown, turn.decision.action].append(_Step(each, number, (after, turn.reward)))
    return [*found.values()]


def _differ(steps: Sequence[_Step]) -> bool:
    return len({step.led_to for step in steps}) > 1


def _by_chance(env: NatLangEnv, played: Sequence[Trajectory], rng: random.Random, seconds: float) -> float:
    """Return the fraction of the equal steps with different outcomes that lead elsewhere by other draws alone.

    A step of each outcome is played again, as one with a rare outcome is the most likely to end otherwise. After
    ``seconds``, no more are tried.
    """
    until = time.monotonic() + seconds
    unlike = [steps for steps in _equal_steps(played) if _differ(steps)]
    tried = drawn = 0
    for steps in rng.sample(unlike, min(len(unlike), REDRAWN)):
        if tried and time.monotonic() > until:
            break
        outcomes = list({step.led_to: step for step in steps}.values())[:DRAWS]
        tried += len(steps)
        drawn += len(steps) * any(_drawn_anew(env, step, rng) != step.led_to for step in outcomes * DRAWS)
    return drawn / max(tried, 1)


def _drawn_anew(env: NatLangEnv, step: _Step, rng: random.Random) -> tuple[object, float] | None:
    """Return what a step leads to after the same steps, with other draws from ``np_random``.

    ``None``: these led elsewhere, so that the environment draws from something else than ``np_random``.
    """
    env.reset(seed=step.episode.seed, options={"task": step.episode.task})
    *before, last = step.episode.turns[: step.number + 1]
    for turn in before:
        if env.observation != turn.observation:
            return None
        env.step(turn.decision.action)
    if env.observation != last.observation:
        return None
    env.np_random = np.random.default_rng(rng.getrandbits(32))
    _, reward, *_ = env.step(last.decision.action)
    return env.observation.shown, reward


def _seconds_to_make(recipe: Recipe, folder: Path) -> float:
    began = time.monotonic()
    with closing(recipe_env(recipe, folder)):
        return time.monotonic() - began


def survey(recipe: Recipe, folder: Path, seconds: float) -> Survey:
    """Play episodes of training tasks in this process, random ones first, then the expert's.

    After ``seconds``, no more episodes of a kind are played, if there are ``LEAST`` of them.

    Raises:
        EnvFailed: the environment raised, or returned what the protocol forbids.
    """
    made = min(_seconds_to_make(recipe, folder) for _ in range(TRIES))
    with closing(recipe_env(recipe, folder)) as env:
        layout, tasks = recipe.layout(env.instructions), env.split_tasks("train")
        layout = replace(layout, carry=env.carries)  # reflections are then as long as they can be
        rng = random.Random(derive_seed(recipe.seed, "survey"))
        episodes = [Episode(rng.choice(tasks), rng.getrandbits(32)) for _ in range(SURVEYED)]
        began = time.monotonic()

        def played(policy: Policy, seats: Sequence[Seat]) -> list[Trajectory]:
            done, start = list[Trajectory](), time.monotonic()
            for episode in episodes:
                if len(done) < LEAST or time.monotonic() < start + seconds:
                    done += rollout([env], [episode], policy=policy, seats=seats, layout=layout)
            return done

        at_random = played(RandomPolicy(), ())
        env.reset(seed=0, options={"task": tasks[0]})
        hints = env.hints()
        taught: list[Trajectory] = []
        unclear = None
        if hints.action is not None and hints.reflection is not None:
            taught = played(CarelessExpert(EXPERTISE), reflecting(ExpertReflector()))
        steps = sum(len(each.turns) for each in (*at_random, *taught))
        pace = (time.monotonic() - began) / max(steps, 1)
        if taught:
            unclear = ambiguous_states(env, episodes=min(len(at_random), len(taught)), seed=recipe.seed)
        shown = [each.sample for each in read_demonstrations(recipe)]
        demonstrated = episodes_of(shown if env.max_actions else map(without_menus, shown))
        chance = 0.0 if taught or not env.observable else _by_chance(env, at_random, rng, seconds)
        return Survey(
            env.max_actions,
            env.horizon,
            at_random,
            taught,
            demonstrated,
            unclear,
            pace,
            made,
            reflects=env.reflects,
            carries=env.carries,
            by_chance=chance,
        )
