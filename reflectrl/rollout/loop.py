"""The one episode loop: any policy, any seats, many episodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from reflectrl.core import EpisodeFailed, Hints, InvalidInput, NatLangEnv, Reading, Task, Trajectory, Turn
from reflectrl.core.profile import part
from reflectrl.players import Policy, Seat
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import State
from reflectrl.rollout.turn import Move, play_turn, rated, reads_hints
from reflectrl.workers.env import Local, Pending, gather, send
from reflectrl.workers.protocol import AskHints, AskReading, EpisodeRequest, Reset, Step


@dataclass(frozen=True)
class Episode:
    """An episode to be played: a problem, and the seed of everything random in it."""

    task: Task
    seed: int

    @property
    def reset(self) -> Reset:
        """Request that begins the episode."""
        return Reset(self.task, self.seed)


class _Slot:
    """One environment and its unfinished episode; free before the first and after the last."""

    def __init__(self, env: NatLangEnv) -> None:
        self.env = env
        self.free = True
        self.pending: Pending | Local | None = None  # a request that was sent, until its result is read

    def take(self, number: int, episode: Episode, begun: Pending | Local | None) -> _Slot:
        """Take an episode and its number, to begin it later, and its reset if that was sent before."""
        self.number, self.episode, self.pending = number, episode, begun
        return self

    def read(self) -> Any:
        """Return the result of the pending request, once it has come."""
        if self.pending is None:
            raise RuntimeError("a result was read before its request was sent")
        pending, self.pending = self.pending, None
        return pending.result()

    def begin(self) -> None:
        """Begin the episode, whose reset was sent."""
        self.turns: list[Turn] = []
        self.carried: dict[str, str] = {}  # words of episode_start, in view until the end
        self.before: dict[str, str] = {}  # words of the step before, for a memory
        self.hints: Hints | None = None
        self.trajectory: Trajectory | None = None
        self.read()
        self.free = False

    @property
    def state(self) -> State:
        past = tuple(turn.decision.action for turn in self.turns)
        task = self.episode.task
        return State(
            self.env.observation,
            past,
            self.episode.seed,
            self.carried,
            self.hints,
            before=self.before,
            task_id=task.id,
            task_type=task.group,
        )

    def ask(self) -> None:
        """Take in what the expert was asked about the present state."""
        self.hints = self.read()

    def play(self, move: Move, starting: Sequence[str]) -> None:
        """Play one move, whose action was sent; there is a trajectory once it was the last.

        Words of the roles ``starting`` are carried.
        """
        observation = self.env.observation
        _, reward, terminated, truncated, info = self.read()
        self.carried = {**self.carried, **{role: move.said[role].text for role in starting if role in move.said}}
        self.before = {role: words.text for role, words in move.said.items()}
        if move.thought is not None:
            self.before["policy"] = move.thought
        rewards = {"env": reward, **move.thought_rewards}
        self.turns.append(Turn(observation, move.menu.actions, move.said, move.decision, rewards, info["illegal"]))
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
    begun: Sequence[Pending | Local] = (),
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
        episodes: the episodes to play.
        policy: chooses the actions.
        seats: the frozen players; without a reflector among them, prompts have no reflection.
        layout: layout of the prompts.
        bootstrap: estimate the value of the state in which an episode was truncated (``Trajectory.last_value``).
        begun: pending resets of the first of ``episodes``, from ``begin_ahead``.
        on_episode: called with each finished episode, in order of finishing.
        on_turn: called with each step once it is played, without its episode: to watch a single one.

    Returns:
        One trajectory an episode, in the order given, less those that were dropped (``EpisodeFailed``).

    Raises:
        InvalidInput: ``begun`` are resets of other environments or episodes.

    """
    for env, episode, reset in zip(envs, episodes, begun, strict=False):
        if reset.env is not env or reset.request != episode.reset:
            raise InvalidInput(
                f"the reset of task {episode.task.id!r} was given as begun, but another one was sent to its "
                "environment; pass begin_ahead and rollout the same environments and episodes."
            )
    done: dict[int, Trajectory] = {}
    queue = list(zip_longest(range(len(episodes)), episodes, begun[: len(episodes)]))[::-1]
    slots = [_Slot(env) for env in envs[: len(queue)]]
    while queue or not all(slot.free for slot in slots):
        playing = [slot for slot in slots if not slot.free]
        joining = [slot.take(*queue.pop()) for slot in slots if slot.free and queue]
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
        _each(_Slot.begin, joining)
    return [done[number] for number in sorted(done)]


def begin_ahead(envs: Sequence[NatLangEnv], episodes: Sequence[Episode]) -> list[Pending | Local]:
    """Have environments in worker processes begin the first of ``episodes`` while the caller does something else.

    Environments of this process begin nothing ahead.

    Returns:
        Pending resets, for ``rollout`` over the same environments and episodes, which reports what went wrong. Nothing
        has to be undone if they are not played.

    """
    together = list(zip(envs, episodes, strict=False))
    return send([env for env, _ in together], [episode.reset for _, episode in together])


def _send(slots: Sequence[_Slot], requests: Sequence[EpisodeRequest]) -> None:
    """Send a request to the environment of each slot; ``_each`` reads the results."""
    with part("environments: send"):
        for slot, pending in zip(slots, send([slot.env for slot in slots], requests), strict=True):
            slot.pending = pending


def _each(read: Callable[..., None], slots: Sequence[_Slot], *arguments: Sequence[Any]) -> list[_Slot]:
    """Have each slot read the result of its pending request; returns those whose episode was not dropped at it."""
    left = []
    with part(f"environments: {read.__name__}"):
        gather([slot.pending for slot in slots if slot.pending is not None])
        for slot, *given in zip(slots, *arguments, strict=True):
            try:
                read(slot, *given)
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
    """Play one step in every slot, while those of ``joining`` begin; return the slots that played it."""
    if reads_hints(policy, seats):
        _send(slots, [AskHints()] * len(slots))
        slots = _each(_Slot.ask, slots)
    unsent = [slot for slot in joining if slot.pending is None]
    _send(unsent, [slot.episode.reset for slot in unsent])  # after the hints, which would have waited for it
    if not slots:
        return []
    moves = play_turn(
        [slot.state for slot in slots], policy=policy, seats=seats, layout=layout, read=partial(_readings, slots)
    )
    starting = [seat.role for seat in seats if seat.when == "episode_start"]
    _send(slots, [Step(move.decision.action) for move in moves])
    return _each(_Slot.play, slots, moves, [starting] * len(slots))


def _readings(slots: Sequence[_Slot], thoughts: Sequence[str | None]) -> list[Reading | None]:
    """Return what the environments make of thoughts; nothing is known from one that fails at it."""
    writing = [(slot, thought) for slot, thought in zip(slots, thoughts, strict=True) if thought is not None]
    _send([slot for slot, _ in writing], [AskReading(thought) for _, thought in writing])
    gather([slot.pending for slot, _ in writing if slot.pending is not None])
    found: dict[int, Reading] = {}
    for slot, _ in writing:
        with suppress(EpisodeFailed):
            found[slot.number] = slot.read()
    return [found.get(slot.number) for slot in slots]


def _estimate_last_values(slots: Sequence[_Slot], policy: Policy, seats: Sequence[Seat], layout: PromptFormat) -> None:
    """Have the policy estimate the states in which episodes were truncated; one without legal actions is worth 0."""
    cut = [slot for slot in slots if slot.trajectory and slot.trajectory.truncated and slot.env.observation.actions]
    if not cut:
        return
    if reads_hints(policy, seats):
        for slot in cut:
            slot.hints = slot.env.hints()
    read = [seat for seat in seats if seat.when != "after_act"]  # nothing is done with what a corrector would say
    moves = play_turn([slot.state for slot in cut], policy=policy, seats=read, layout=layout)
    for slot, move in zip(cut, moves, strict=True):
        if slot.trajectory is not None:
            slot.trajectory = replace(slot.trajectory, last_value=move.decision.value)
