"""The one episode loop: any policy, any reflector, many episodes side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reflectrl.core import Decision, EpisodeFailed, Hints, NatLangEnv, Observation, Task, Trajectory, Turn
from reflectrl.core.profile import part
from reflectrl.players import Policy, Reflector
from reflectrl.prompts import Menu, PromptFormat
from reflectrl.workers.pool import ask_ahead, send_ahead
from reflectrl.workers.protocol import AskHints, Reset, Step


@dataclass(frozen=True)
class Episode:
    """An episode to be played: a problem, and the seed of everything random in it."""

    task: Task
    seed: int

    @property
    def reset(self) -> Reset:
        """What begins it."""
        return Reset(self.task, self.seed)


class _Slot:
    """One environment, and the episode it is in the middle of; free before the first and after the last."""

    def __init__(self, env: NatLangEnv) -> None:
        self.env = env
        self.free = True

    def take(self, dealt: tuple[int, Episode]) -> _Slot:
        """Take an episode and its number, to begin it later."""
        self.number, self.episode = dealt
        return self

    def begin(self) -> None:
        """Begin the episode."""
        self.rng = random.Random(self.episode.seed)
        self.turns: list[Turn] = []
        self.hints: Hints | None = None
        self.trajectory: Trajectory | None = None
        self.env.reset(seed=self.episode.seed, options={"task": self.episode.task})
        self.free = False

    @property
    def past(self) -> tuple[str, ...]:
        return tuple(turn.decision.action for turn in self.turns)

    def ask(self) -> None:
        """Ask the expert about the present state."""
        self.hints = self.env.hints()

    def play(self, menu: Menu, reflection: str | None, decision: Decision) -> None:
        """Play one decision; there is a trajectory once it was the last."""
        observation: Observation = self.env.observation
        _, reward, terminated, truncated, info = self.env.step(decision.action)
        self.turns.append(Turn(observation, menu.actions, reflection, decision, reward, info["illegal"]))
        if terminated or truncated:
            task, seed, turns = self.episode.task, self.episode.seed, tuple(self.turns)
            self.trajectory = Trajectory(task, seed, turns, terminated, truncated, info["success"])


def rollout(
    envs: Sequence[NatLangEnv],
    episodes: Sequence[Episode],
    *,
    policy: Policy,
    reflector: Reflector | None,
    layout: PromptFormat,
    on_episode: Callable[[Trajectory], None] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes`` over ``envs``; a slot whose episode ends takes the next one.

    Environments in worker processes begin it while the others think. Wherever they live, a slot sits out exactly one
    step of the others for it, so who plays side by side does not depend on how long anything takes: the others wait
    only for what is left of a reset that takes longer than their step.

    Every episode draws from its own generator, in a fixed order (reflection, action, menu order), so the result does
    not depend on how many episodes are played side by side.

    Args:
        envs: environments of one kind; their number is the batch size.
        episodes: what to play.
        policy: who acts.
        reflector: who reflects; ``None`` leaves reflections out of the prompts.
        layout: how prompts are written.
        on_episode: told of each finished episode, in order of finishing.
        on_turn: told of each step once it is played, not whose it is: to watch a single episode.

    Returns:
        One trajectory an episode, in the order given, less those that were dropped (``EpisodeFailed``).

    """
    done: dict[int, Trajectory] = {}
    queue = list(enumerate(episodes))[::-1]
    slots = [_Slot(env) for env in envs[: len(queue)]]
    while queue or not all(slot.free for slot in slots):
        playing = [slot for slot in slots if not slot.free]
        joining = [slot.take(queue.pop()) for slot in slots if slot.free and queue]
        for slot in _step(playing, joining, policy, reflector, layout):
            if on_turn is not None:
                on_turn(slot.turns[-1])
            if slot.trajectory is None:
                continue
            slot.free = True
            done[slot.number] = slot.trajectory
            if on_episode is not None:
                on_episode(slot.trajectory)
        _each(_Slot.begin, joining, [slot.episode.reset for slot in joining])
    return [done[number] for number in sorted(done)]


def begin_ahead(envs: Sequence[NatLangEnv], episodes: Sequence[Episode]) -> None:
    """Have environments in worker processes begin the first of ``episodes`` while the caller does something else.

    It is for who will play the same episodes over the same environments next: ``rollout`` finds them begun, or tells
    what went wrong. Nothing has to be undone if they are not played. Environments of this process begin nothing ahead.
    """
    together = list(zip(envs, episodes, strict=False))
    send_ahead([env for env, _ in together], [episode.reset for _, episode in together])


def _each(
    method: Callable[..., None],
    slots: Sequence[_Slot],
    requests: Sequence[Reset | Step | AskHints],
    *arguments: Sequence[Any],
) -> list[_Slot]:
    """Call a method of each slot, known to make this request; returns the slots whose episode was not dropped at it."""
    left = []
    with part(f"environments: {method.__name__}"):
        ask_ahead([slot.env for slot in slots], requests)
        for slot, *given in zip(slots, *arguments, strict=True):
            try:
                method(slot, *given)
            except EpisodeFailed:
                slot.free = True
            else:
                left.append(slot)
    return left


def _step(
    slots: Sequence[_Slot],
    joining: Sequence[_Slot],
    policy: Policy,
    reflector: Reflector | None,
    layout: PromptFormat,
) -> list[_Slot]:
    """One step of every slot: reflect, act, play; returns those that played. Meanwhile others come to join them."""
    if policy.wants_hints or (reflector is not None and reflector.wants_hints):
        slots = _each(_Slot.ask, slots, [AskHints()] * len(slots))
    begin_ahead([slot.env for slot in joining], [slot.episode for slot in joining])  # hints would have waited for it
    if not slots:
        return []
    draws = [(slot.rng.random(), slot.rng.random()) for slot in slots]
    reflections: list[str | None] = [None] * len(slots)
    if reflector is not None:
        asked = [layout.reflector(s.env.observation, s.past, s.hints if reflector.wants_hints else None) for s in slots]
        with part("reflector"):
            reflections = [said.text for said in reflector.reflect(asked, [draw for draw, _ in draws])]
    menus = [layout.menu(slot.env.observation, slot.rng) for slot in slots]
    prompts = [
        layout.policy(s.env.observation, s.past, reflection, menu, s.hints if policy.wants_hints else None)
        for s, reflection, menu in zip(slots, reflections, menus, strict=True)
    ]
    with part("policy: act"):
        decisions = policy.act(prompts, [draw for _, draw in draws])
    steps = [Step(decision.action) for decision in decisions]
    return _each(_Slot.play, slots, steps, menus, reflections, decisions)
