"""The one episode loop: any policy, any reflector, many episodes side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reflectrl.core import Decision, Hints, NatLangEnv, Observation, Task, Trajectory, Turn
from reflectrl.players import Policy, Reflector
from reflectrl.prompts import Menu, PromptFormat


@dataclass(frozen=True)
class Episode:
    """An episode to be played: a problem, and the seed of everything random in it."""

    task: Task
    seed: int


class _Slot:
    """One environment, and the episode it is in the middle of."""

    def __init__(self, env: NatLangEnv, number: int, episode: Episode) -> None:
        self.env = env
        self.number = number
        self.episode = episode
        self.rng = random.Random(episode.seed)
        self.turns: list[Turn] = []
        env.reset(seed=episode.seed, options={"task": episode.task})

    @property
    def past(self) -> tuple[str, ...]:
        return tuple(turn.decision.action for turn in self.turns)

    def play(self, menu: Menu, reflection: str | None, decision: Decision) -> Trajectory | None:
        """Play one decision; the finished trajectory, or ``None`` while the episode goes on."""
        observation: Observation = self.env.observation
        _, reward, terminated, truncated, info = self.env.step(decision.action)
        self.turns.append(Turn(observation, menu.actions, reflection, decision, reward, info["illegal"]))
        if not (terminated or truncated):
            return None
        episode = self.episode
        return Trajectory(episode.task, episode.seed, tuple(self.turns), terminated, truncated, info["success"])


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
        One trajectory an episode, in the order given.

    """
    done: dict[int, Trajectory] = {}
    queue = list(enumerate(episodes))[::-1]
    slots = [_Slot(env, *queue.pop()) for env in envs[: len(queue)]]
    while slots:
        active: list[_Slot] = []
        for slot, trajectory in zip(slots, _step(slots, policy, reflector, layout), strict=True):
            if on_turn is not None:
                on_turn(slot.turns[-1])
            if trajectory is None:
                active.append(slot)
                continue
            done[slot.number] = trajectory
            if on_episode is not None:
                on_episode(trajectory)
            if queue:
                active.append(_Slot(slot.env, *queue.pop()))
        slots = active
    return [done[number] for number in range(len(episodes))]


def _hints(slot: _Slot, player: Policy | Reflector) -> Hints | None:
    return slot.env.hints() if player.wants_hints else None


def _step(
    slots: Sequence[_Slot], policy: Policy, reflector: Reflector | None, layout: PromptFormat
) -> list[Trajectory | None]:
    """One step of every slot: reflect, act, play."""
    draws = [(slot.rng.random(), slot.rng.random()) for slot in slots]
    reflections: list[str | None] = [None] * len(slots)
    if reflector is not None:
        asked = [layout.reflector(s.env.observation, s.past, _hints(s, reflector)) for s in slots]
        reflections = [said.text for said in reflector.reflect(asked, [draw for draw, _ in draws])]
    menus = [layout.menu(slot.env.observation, slot.rng) for slot in slots]
    prompts = [
        layout.policy(slot.env.observation, slot.past, reflection, menu, _hints(slot, policy))
        for slot, reflection, menu in zip(slots, reflections, menus, strict=True)
    ]
    decisions = policy.act(prompts, [draw for _, draw in draws])
    return [
        slot.play(menu, reflection, decision)
        for slot, menu, reflection, decision in zip(slots, menus, reflections, decisions, strict=True)
    ]
