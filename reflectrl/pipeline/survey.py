"""``Survey``: what random and expert episodes of a recipe's environment show before anything is trained."""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import Trajectory
from reflectrl.core.ambiguous import Ambiguity, ambiguous_states
from reflectrl.core.seeds import derive_seed
from reflectrl.models.tokenizer import train_tokenizer
from reflectrl.prompts import PromptFormat, labels
from reflectrl.prompts.players import Policy
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.turn import policy_views, states_of
from reflectrl.seats.policy import CarelessExpert, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import Seat, reflecting, view

EPISODES, LEAST = 48, 4
"""Number of episodes of each kind, and the least, which is played even if it takes longer than it may."""
EXPERTISE = 0.85
"""Probability of the expert's action in its episodes, which thereby leave its path."""


@dataclass(frozen=True)
class Lengths:
    """Longest texts in tokens, and the number of different tokens."""

    prompt: int
    """Longest prompt of a player, with the expert's reflection where the policy reads one."""
    reflection: int
    vocabulary: int


@dataclass(frozen=True)
class Survey:
    """Episodes of training tasks: by random actions, and by a careless expert where the environment has one."""

    max_actions: int
    """Length of the longest menu."""
    horizon: int
    at_random: Sequence[Trajectory]
    taught: Sequence[Trajectory]
    """Episodes with the expert's reflections; none without an expert."""
    unclear: Ambiguity | None
    """Equal texts in which the expert acts differently; ``None`` where there are none, or no expert."""
    seconds_per_step: float
    """Seconds of the environment for a step, with the expert's hints where it has them."""

    @property
    def return_spread(self) -> float:
        """Standard deviation of the returns of all episodes."""
        return pstdev(each.episode_return for each in (*self.at_random, *self.taught))

    @property
    def characters(self) -> float:
        """Mean length of a state and the action in it, in characters."""
        return fmean(
            len(turn.observation.text) + len(turn.decision.action) for each in self.at_random for turn in each.turns
        )

    @property
    def needs_memory(self) -> float:
        """Fraction of the states in which the past tells what to do and the text does not.

        Without an expert: fraction of the steps that random episodes took from a text which they saw more than once, in
        which the same action led to something else; chance in the environment counts as well.
        """
        if self.taught:
            return 0.0 if self.unclear is None else self.unclear.share - self.unclear.unexplained
        led: dict[tuple[object, str], list[object]] = defaultdict(list)
        for each in self.at_random:
            shown = [*(turn.observation.shown for turn in each.turns), each.last and each.last.shown]
            for turn, after in zip(each.turns, shown[1:], strict=True):
                led[turn.observation.shown, turn.decision.action].append((after, turn.reward))
        again = [found for found in led.values() if len(found) > 1]
        return sum(len(f) for f in again if len({*f}) > 1) / max(sum(map(len, again)), 1)

    def lengths(self, layout: PromptFormat, pieces: str, vocabulary: int) -> Lengths:
        """Return the longest texts in tokens of ``builtin/nano``'s tokenizer, trained on the texts seen here."""
        played = (*self.at_random, *self.taught)
        shown = [each.prompt.text for trajectory in played for each in policy_views(trajectory, layout)]
        shown += [view("reflector", layout, state).prompt.text for each in played for state in states_of(each)]
        said = [layout.completion(turn.reflection or "") for each in self.taught for turn in each.turns]
        names = labels(layout.labels, self.max_actions)
        tokenizer = train_tokenizer(
            [*shown, *said], names, pieces=pieces, vocabulary=vocabulary, max_length=sys.maxsize
        )

        def longest(texts: Sequence[str]) -> int:
            some = sorted({*texts}, key=lambda text: (-len(text), text))[:64]
            return max((len(tokenizer(text)["input_ids"]) for text in some), default=0)

        return Lengths(longest(shown), longest(said), len(tokenizer))


def survey(recipe: Recipe, folder: Path, seconds: float) -> Survey:
    """Play episodes of training tasks in this process, random ones first, then the expert's.

    Args:
        recipe: the recipe; its seed draws tasks and episodes.
        folder: the run folder, with the dataset that the recipe may need.
        seconds: time after which no more episodes of a kind are played, if there are ``LEAST`` of them.

    Raises:
        EnvFailed: the environment raised, or returned what the protocol forbids.

    """
    with closing(recipe_env(recipe, folder)) as env:
        layout, tasks = recipe.layout(env.instructions), env.split_tasks("train")
        rng = random.Random(derive_seed(recipe.seed, "survey"))
        episodes = [Episode(rng.choice(tasks), rng.getrandbits(32)) for _ in range(EPISODES)]
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
        return Survey(env.max_actions, env.horizon, at_random, taught, unclear, pace)
