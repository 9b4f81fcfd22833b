"""The episode loop, with many episodes in parallel, and evaluations, whose results do not depend on their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

from reflectrl.core import EpisodeFailed, Hints, InvalidInput, NatLangEnv, Reading, Task, Trajectory, Turn, WorkFailed
from reflectrl.core.profile import part
from reflectrl.core.registry import Env, make_envs
from reflectrl.core.seeds import derive_seed
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Policy
from reflectrl.prompts.views import State
from reflectrl.rollout.iteration import EpisodeMetrics, episode_metrics
from reflectrl.rollout.protocol import AskHints, AskReading, EpisodeRequest, PlayAction, Reset
from reflectrl.rollout.turn import Move, play_turn, rated, reads_hints
from reflectrl.rollout.worker import Local, Pending, gather, send
from reflectrl.seats.table import Seat, acting, check_roles


@dataclass(frozen=True)
class Episode:
    """An episode to be played: its task, and the seed of all its random draws."""

    task: Task
    seed: int

    @property
    def reset(self) -> Reset:
        """Reset request that starts the episode."""
        return Reset(self.task, self.seed)


class _Slot:
    """One environment with its unfinished episode; ``free`` if it has none."""

    def __init__(self, env: NatLangEnv) -> None:
        self.env = env
        self.free = True
        self.pending: Pending | Local | None = None  # request that was sent and whose result is not read yet

    def take(self, number: int, episode: Episode, begun: Pending | Local | None) -> _Slot:
        """Assign an episode, its number, and its pending reset, if that was already sent; ``begin`` starts it."""
        self.number, self.episode, self.pending = number, episode, begun
        return self

    def read(self) -> Any:
        """Wait for the pending request; return its result."""
        if self.pending is None:
            raise RuntimeError("a result was read before its request was sent")
        pending, self.pending = self.pending, None
        return pending.result()

    def begin(self) -> None:
        self.turns: list[Turn] = []
        self.carried: dict[str, str] = {}  # words of players at episode_start, shown until the end
        self.before: dict[str, str] = {}  # words of the previous step, for a memory
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
            visited=tuple(turn.observation for turn in self.turns),
            rewards=tuple(turn.reward for turn in self.turns),
            before=self.before,
            task_id=task.id,
            task_type=task.group,
        )

    def asking(self, layout: PromptFormat) -> AskHints:
        """Return the request for the expert's hints, who is told what the reflector said before, if that is carried."""
        return AskHints(self.before.get("reflector") if layout.carry else None)

    def ask(self) -> None:
        """Read the expert's hints for the current state."""
        self.hints = self.read()

    def play(self, move: Move, starting: Sequence[str]) -> None:
        """Read the result of a move's action and record the turn; the last one sets ``trajectory``.

        Words of the roles ``starting`` are shown until the end of the episode.
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
            last = self.env.observation.final
            self.trajectory = Trajectory(task, seed, turns, terminated, truncated, info["success"], last=last)


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
    """Play ``episodes`` in ``envs``; an environment whose episode ends takes the next one.

    Environments in worker processes reset while the policy acts in the others. In any case an environment pauses for
    exactly one step of the others, so which episodes are played in parallel does not depend on timing.

    Draws depend on an episode's seed, the step and the role, so the result does not depend on the number of episodes
    that are played in parallel.

    Args:
        envs: environments of one kind; their number is the batch size.
        episodes: the episodes to play.
        policy: chooses the actions.
        seats: the frozen players; without a reflector among them, prompts have no reflection.
        layout: layout of the prompts.
        bootstrap: estimate the value of the state in which an episode was truncated (``Trajectory.last_value``).
        begun: pending resets of the first ``episodes``, from ``begin_ahead``.
        on_episode: called with each finished episode, in the order in which they finish.
        on_turn: called with each step after it is played, but not with its episode; for watching a single episode.

    Returns:
        One trajectory per episode, in the order given, without dropped episodes (``EpisodeFailed``).

    Raises:
        InvalidInput: ``begun`` are resets of other environments or episodes, or two players have the same role.
        WorkFailed: a player does not give one utterance per view.
    """
    check_roles(seats)
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
    """Send the resets of the first ``episodes`` to environments in worker processes, without waiting for the results.

    Environments in this process are not reset ahead.

    Returns:
        Pending resets, for ``rollout`` with the same environments and episodes, which reports their errors. They may be
        discarded.
    """
    together = list(zip(envs, episodes, strict=False))
    return send([env for env, _ in together], [episode.reset for _, episode in together])


def _send(slots: Sequence[_Slot], requests: Sequence[EpisodeRequest]) -> None:
    """Send a request to the environment of each slot; ``_each`` reads the results."""
    with part("environments: send"):
        for slot, pending in zip(slots, send([slot.env for slot in slots], requests), strict=True):
            slot.pending = pending


def _each(read: Callable[..., None], slots: Sequence[_Slot], *arguments: Sequence[Any]) -> list[_Slot]:
    """Call ``read``, which reads the pending result, for each slot; return those whose episode was not dropped."""
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
    """Play one step in each of ``slots`` while those of ``joining`` reset; return the slots that played the step."""
    if reads_hints(policy, seats):
        _send(slots, [slot.asking(layout) for slot in slots])
        slots = _each(_Slot.ask, slots)
    unsent = [slot for slot in joining if slot.pending is None]
    _send(unsent, [slot.episode.reset for slot in unsent])  # after the hints, which would otherwise wait for the resets
    if not slots:
        return []
    moves = play_turn(
        [slot.state for slot in slots], policy=policy, seats=seats, layout=layout, read=partial(_readings, slots)
    )
    starting = [seat.role for seat in seats if seat.when == "episode_start"]
    _send(slots, [PlayAction(move.decision.action) for move in moves])
    return _each(_Slot.play, slots, moves, [starting] * len(slots))


def _readings(slots: Sequence[_Slot], thoughts: Sequence[str | None]) -> list[Reading | None]:
    """Return the environments' judgement of each thought; ``None`` without a thought or where the environment fails."""
    writing = [(slot, thought) for slot, thought in zip(slots, thoughts, strict=True) if thought is not None]
    _send([slot for slot, _ in writing], [AskReading(thought) for _, thought in writing])
    gather([slot.pending for slot, _ in writing if slot.pending is not None])
    found: dict[int, Reading] = {}
    for slot, _ in writing:
        with suppress(EpisodeFailed):
            found[slot.number] = slot.read()
    return [found.get(slot.number) for slot in slots]


def _estimate_last_values(slots: Sequence[_Slot], policy: Policy, seats: Sequence[Seat], layout: PromptFormat) -> None:
    """Set the policy's value of the state in which each episode was truncated; 0 where no action is legal."""
    truncated = [slot for slot in slots if slot.trajectory and slot.trajectory.truncated]
    cut = [slot for slot in truncated if slot.env.observation.actions or not slot.env.max_actions]
    if not cut:
        return
    if reads_hints(policy, acting(seats)):
        _send(cut, [slot.asking(layout) for slot in cut])
        cut = _each(_Slot.ask, cut)
    moves = play_turn([slot.state for slot in cut], policy=policy, seats=acting(seats), layout=layout)
    for slot, move in zip(cut, moves, strict=True):
        if slot.trajectory is not None:
            slot.trajectory = replace(slot.trajectory, last_value=move.decision.value)


def fixed_episodes(
    env: NatLangEnv,
    split: str,
    *,
    episodes: int | None,
    max_tasks: int | None,
    seed: int,
    prefixes: Sequence[str] = (),
) -> list[Episode]:
    """Return ``episodes`` episodes of the tasks of ``split`` in turn (each task once if ``None``), with fixed seeds.

    Raises:
        InvalidInput: an unknown or empty split, or one without a task whose id starts with one of ``prefixes``.
    """
    tasks = list(env.split_tasks(split))
    if prefixes:
        examples = ", ".join(repr(task.id) for task in tasks[:3])
        tasks = [task for task in tasks if task.id.startswith(tuple(prefixes))]
        if not tasks:
            raise InvalidInput(
                f"no task of split {split} has an id that starts with {' or '.join(map(repr, prefixes))}; they are "
                f"called {examples}, ..."
            )
    tasks = tasks[:max_tasks]
    count = len(tasks) if episodes is None else episodes
    return _in_turn(tasks, count, split, seed)


def play_all(
    envs: Sequence[NatLangEnv],
    episodes: Sequence[Episode],
    *,
    policy: Policy,
    seats: Sequence[Seat],
    layout: PromptFormat,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes``, as many in parallel as there are ``envs``; return their trajectories.

    Raises:
        WorkFailed: an episode was dropped, so the results would not be comparable.
    """
    played = rollout(envs, episodes, policy=policy, seats=seats, layout=layout, on_episode=on_episode)
    if len(played) < len(episodes):
        finished = {(trajectory.task.id, trajectory.seed) for trajectory in played}
        dropped = [episode.task.id for episode in episodes if (episode.task.id, episode.seed) not in finished]
        raise WorkFailed(
            f"the environment failed in {len(dropped)} of {len(episodes)} episodes, of the tasks "
            f"{', '.join(dict.fromkeys(dropped))}; an evaluation needs all: play with on_failure replay."
        )
    return played


class Players(Protocol):
    """Policy and frozen players that play together: an ``Agent``, or a ``ReflectRLTrainer`` with its current policy."""

    @property
    def policy(self) -> Policy:
        """Policy that chooses the actions."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Frozen players, with their roles."""

    @property
    def layout(self) -> PromptFormat:
        """Layout of the players' prompts."""


def evaluate(
    team: Players,
    env: Env,
    tasks: str | Sequence[Task] = "test",
    *,
    options: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    batch_size: int = 16,
    seed: int = 0,
) -> EpisodeMetrics:
    """Play tasks in turn; return success rate, return and length, with the uncertainty of the success rate.

    Args:
        team: the players, e.g. ``load_agent("runs/taxi")``.
        env: registered name of an environment, or its class, or a function that takes its options.
        tasks: name of a split, or the tasks themselves.
        options: options of the environment.
        episodes: number of episodes; each task once if absent.
        batch_size: number of episodes played in parallel.
        seed: seed of every random draw.

    Raises:
        InvalidInput: an environment, split or state that cannot be played, or there is nothing to play.
        WorkFailed: the environment or a chat endpoint failed.
    """
    envs = make_envs(env, options or {}, batch_size)
    try:
        chosen = list(envs[0].split_tasks(tasks) if isinstance(tasks, str) else tasks)
        split = tasks if isinstance(tasks, str) else "given"
        to_play = _in_turn(chosen, len(chosen) if episodes is None else episodes, split, seed)
        return episode_metrics(
            play_all(envs, to_play, policy=team.policy, seats=acting(team.seats), layout=team.layout)
        )
    finally:
        for each in envs:
            each.close()


def _in_turn(tasks: Sequence[Task], count: int, split: str, seed: int) -> list[Episode]:
    """Return ``count`` episodes of the tasks in turn, each with its own seed; raises ``InvalidInput`` if none."""
    if not tasks or count < 1:
        raise InvalidInput(
            f"there is nothing to play: {count} episodes of {len(tasks)} tasks (split {split}); expected one or more."
        )
    return [Episode(tasks[i % len(tasks)], derive_seed(seed, "eval", split, i)) for i in range(count)]
