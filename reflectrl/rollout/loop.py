"""The one episode loop: any policy, any seats, many episodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reflectrl.core import EpisodeFailed, Hints, NatLangEnv, Task, Trajectory, Turn
from reflectrl.core.profile import part
from reflectrl.players import Policy, Seat
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import State
from reflectrl.rollout.turn import Move, play_turn, rated, reads_hints
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
        self.turns: list[Turn] = []
        self.carried: dict[str, str] = {}  # words of episode_start, in view until the end
        self.hints: Hints | None = None
        self.trajectory: Trajectory | None = None
        self.env.reset(seed=self.episode.seed, options={"task": self.episode.task})
        self.free = False

    @property
    def state(self) -> State:
        past = tuple(turn.decision.action for turn in self.turns)
        return State(self.env.observation, past, self.episode.seed, self.carried, self.hints)

    def ask(self) -> None:
        """Ask the expert about the present state."""
        self.hints = self.env.hints()

    def play(self, move: Move, starting: Sequence[str]) -> None:
        """Play one move; there is a trajectory once it was the last. Words of the roles ``starting`` are carried."""
        observation = self.env.observation
        _, reward, terminated, truncated, info = self.env.step(move.decision.action)
        self.carried = {**self.carried, **{role: move.said[role].text for role in starting if role in move.said}}
        self.turns.append(
            Turn(observation, move.menu.actions, move.said, move.decision, {"env": reward}, info["illegal"])
        )
        if terminated or truncated:
            task, seed, turns = self.episode.task, self.episode.seed, tuple(self.turns)
            self.trajectory = Trajectory(task, seed, turns, terminated, truncated, info["success"])


def rollout(
    envs: Sequence[NatLangEnv],
    episodes: Sequence[Episode],
    *,
    policy: Policy,
    seats: Sequence[Seat],
    layout: PromptFormat,
    bootstrap: bool = False,
    on_episode: Callable[[Trajectory], None] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes`` over ``envs``; a slot whose episode ends takes the next one.

    Environments in worker processes begin it while the others think. Wherever they live, a slot pauses for exactly one
    step of the others meanwhile, so which episodes are played side by side does not depend on how long anything takes.

    What is drawn depends on an episode's seed, the step and the role, so the result does not depend on how many
    episodes are played side by side.

    Args:
        envs: environments of one kind; their number is the batch size.
        episodes: what to play.
        policy: chooses the actions.
        seats: the frozen players; without a reflector among them, prompts have no reflection.
        layout: how prompts are written.
        bootstrap: estimate the value of the state in which an episode was truncated (``Trajectory.last_value``).
        on_episode: called with each finished episode, in order of finishing.
        on_turn: called with each step once it is played, without its episode: to watch a single one.

    Returns:
        One trajectory an episode, in the order given, less those that were dropped (``EpisodeFailed``).

    """
    done: dict[int, Trajectory] = {}
    queue = list(enumerate(episodes))[::-1]
    slots = [_Slot(env) for env in envs[: len(queue)]]
    while queue or not all(slot.free for slot in slots):
        playing = [slot for slot in slots if not slot.free]
        joining = [slot.take(queue.pop()) for slot in slots if slot.free and queue]
        played = _step(playing, joining, policy, seats, layout)
        if on_turn is not None:
            for slot in played:
                on_turn(slot.turns[-1])
        ended = [slot for slot in played if slot.trajectory is not None]
        if bootstrap:
            _estimate_last_values(ended, policy, seats, layout)
        finished = rated([slot.trajectory for slot in ended if slot.trajectory is not None], seats, layout)
        for slot, trajectory in zip(ended, finished, strict=True):
            slot.free = True
            done[slot.number] = trajectory
            if on_episode is not None:
                on_episode(trajectory)
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
    seats: Sequence[Seat],
    layout: PromptFormat,
) -> list[_Slot]:
    """One step of every slot; returns those that played it. Meanwhile others come to join them."""
    if reads_hints(policy, seats):
        slots = _each(_Slot.ask, slots, [AskHints()] * len(slots))
    begin_ahead([slot.env for slot in joining], [slot.episode for slot in joining])  # hints would have waited for it
    if not slots:
        return []
    moves = play_turn([slot.state for slot in slots], policy=policy, seats=seats, layout=layout)
    starting = [seat.role for seat in seats if seat.when == "episode_start"]
    steps = [Step(move.decision.action) for move in moves]
    return _each(_Slot.play, slots, steps, moves, [starting] * len(slots))


def _estimate_last_values(slots: Sequence[_Slot], policy: Policy, seats: Sequence[Seat], layout: PromptFormat) -> None:
    """Have the policy look at the states in which episodes ran out of time; one without legal actions is worth 0."""
    cut = [slot for slot in slots if slot.trajectory and slot.trajectory.truncated and slot.env.observation.actions]
    if not cut:
        return
    if reads_hints(policy, seats):
        for slot in cut:
            slot.ask()
    moves = play_turn([slot.state for slot in cut], policy=policy, seats=seats, layout=layout)
    for slot, move in zip(cut, moves, strict=True):
        if slot.trajectory is not None:
            slot.trajectory = replace(slot.trajectory, last_value=move.decision.value)
