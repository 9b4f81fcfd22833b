"""``ambiguous_states``: whether an environment's texts need a memory, found by playing it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from reflectrl.core.env import NatLangEnv
from reflectrl.core.text import shortened
from reflectrl.core.types import Task

Key = tuple[str, ...]


@dataclass(frozen=True)
class Ambiguity:
    """Two states with equal texts and menus, different pasts, and different actions of the expert."""

    text: str
    """What both states show."""
    tasks: tuple[str, str]
    """Ids of their tasks."""
    pasts: tuple[tuple[str, ...], tuple[str, ...]]
    """Actions that led to them."""
    actions: tuple[str, str]
    """The expert's actions in them."""
    share: float
    """Fraction of the states played, from 0 to 1, whose text also needs another action."""
    unexplained: float
    """Fraction in which even equal texts and actions since the start do, so that a memory would not help."""

    def __str__(self) -> str:
        """Return a remark for the author of the environment: the finding, an example, and what to do."""
        first, second = (
            f"{action!r} in task {task!r} after {list(past)}"
            for task, past, action in zip(self.tasks, self.pasts, self.actions, strict=True)
        )
        known = (
            f" In {self.unexplained:.0%}, equal pasts do too: there the expert knows what no player can."
            if self.unexplained
            else ""
        )
        return (
            f"Equal texts need different actions in {self.share:.0%} of the states played, such as "
            f"{shortened(self.text, 80)!r}: the expert plays {first}, and {second}. Show past states "
            "(prompt.history.show=transitions), let the reflector carry notes (players.reflector.carry=true), or put "
            f"what is needed into the text.{known}"
        )


@dataclass(frozen=True)
class _Visit:
    task: Task
    past: tuple[str, ...]
    text: str
    shown: tuple[Key, Key]
    """What the state shows, and its menu."""
    history: tuple[Key, ...]
    """What the states before it showed, and the actions chosen in them."""
    action: str
    """The expert's."""


def ambiguous_states(env: NatLangEnv, *, episodes: int, seed: int) -> Ambiguity | None:
    """Play ``env`` and look for states that show the same after different pasts, but need different actions.

    Args:
        env: an environment with an expert; its episode is replaced.
        episodes: number of training tasks, drawn with ``seed``, each played by the expert, at random, and by both in
            turns.
        seed: seed of tasks, episodes and random actions.

    Returns:
        An example and how frequent such states are; ``None`` if there is none, or no expert.

    Raises:
        EnvFailed: the environment failed.

    """
    rng = random.Random(f"{seed} ambiguous states")
    tasks = list(env.split_tasks("train"))
    visits = [
        visit
        for task in rng.sample(tasks, min(episodes, len(tasks)))
        for noise in (0.0, 0.5, 1.0)
        for visit in _played(env, task, rng, noise)
    ]
    groups: dict[tuple[Key, Key], list[_Visit]] = defaultdict(list)
    for visit in visits:
        groups[visit.shown].append(visit)
    found, unclear, unexplained = None, 0, 0
    for group in groups.values():
        if len({visit.action for visit in group}) == 1:
            continue
        unclear += len(group)
        actions: dict[tuple[Key, ...], set[str]] = defaultdict(set)
        for visit in group:
            actions[visit.history].add(visit.action)
        unexplained += sum(len(actions[visit.history]) > 1 for visit in group)
        told = [visit for visit in group if len(actions[visit.history]) == 1]
        other = next((visit for visit in told if visit.action != told[0].action), None)
        found = found or (None if other is None else (told[0], other))
    if found is None:
        return None
    one, two = found
    return Ambiguity(
        one.text,
        (one.task.id, two.task.id),
        (one.past, two.past),
        (one.action, two.action),
        unclear / len(visits),
        unexplained / len(visits),
    )


def _played(env: NatLangEnv, task: Task, rng: random.Random, noise: float) -> Iterator[_Visit]:
    """Play an episode with random actions at the rate ``noise``, up to a state in which the expert says nothing."""
    env.reset(seed=rng.randrange(2**31), options={"task": task})
    past: tuple[str, ...] = ()
    history: tuple[Key, ...] = ()
    over = False
    while not over and (action := env.hints().action) is not None:
        here = env.observation
        yield _Visit(task, past, here.full_text, (here.shown, here.actions), history, action)
        played = rng.choice(here.actions) if rng.random() < noise else action
        _, _, terminated, truncated, _ = env.step(played)
        past, history, over = (*past, played), (*history, here.shown, (played,)), terminated or truncated
