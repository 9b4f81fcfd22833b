"""Words of frozen players in the prompts of SFT rows: a player that acts with a memory is trained with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reflectrl.core import Hints, Trajectory
from reflectrl.core.seeds import draw
from reflectrl.data_gen.samples import Sample
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import State
from reflectrl.seats.table import Seat, view

Words = Mapping[str, str]
"""Words by role."""


def words_in_view(
    samples: Sequence[Sample], seats: Sequence[Seat], layout: PromptFormat, taught: Sequence[Trajectory]
) -> tuple[list[Words], list[Words]]:
    """Ask the frozen players about the state of each sample, as they are asked at play.

    Args:
        samples: the taught steps; their reflections are the reflector's words.
        seats: the frozen players in the order in which they speak; the reflector's seat only marks its position.
        layout: layout of the prompts.
        taught: the teacher's episodes; samples of other episodes, from demonstrations, get no plan.

    Returns:
        For each sample, the words in view of its reflector, and those in view of its policy.

    """
    episodes = {(each.task.id, each.seed): each for each in taught}
    states = [
        replace(
            each.state,
            before={**each.state.before, **_before(each, episodes.get((each.task.id, each.seed)), layout)},
            task_id=each.task.id,
            task_type=each.task.group,
        )
        for each in samples
    ]
    heard: list[Words] = [{} for _ in states]
    for seat in seats:
        if seat.role == "reflector":
            heard = [state.said for state in states]
            said: list[str | None] = [sample.reflection for sample in samples]
        elif seat.when == "episode_start":
            said = _plans(seat, states, layout, taught)
        else:
            said = list(_say(seat, states, layout))
        states = [
            state if words is None else replace(state, said={**state.said, seat.role: words})
            for state, words in zip(states, said, strict=True)
        ]
    return heard, [state.said for state in states]


def _before(sample: Sample, episode: Trajectory | None, layout: PromptFormat) -> Words:
    """Return the thought of the step before, which a memory may take as its key: there, the teacher's reflection.

    A policy that writes no thoughts has none at play either.
    """
    step = len(sample.past) - 1
    if layout.action_mode == "enumerated" or episode is None or not 0 <= step < len(episode.turns):
        return {}
    return {"policy": episode.turns[step].reflection or ""}


def _plans(seat: Seat, states: Sequence[State], layout: PromptFormat, taught: Sequence[Trajectory]) -> list[str | None]:
    """Return the plan of each state's episode, made in its first state; ``None`` for an episode not ``taught``.

    The expert's plan is the teacher's reflection in that state.
    """
    starts = {(each.task.id, each.seed): each.turns[0] for each in taught if each.turns}
    first: dict[tuple[str, int], State] = {}
    for state in states:
        if (turn := starts.get((state.task_id, state.seed))) is not None:
            hints = Hints(reflection=turn.reflection)
            key = state.task_id, state.seed
            first[key] = replace(state, observation=turn.observation, past=(), visited=(), rewards=(), hints=hints)
    plans = dict(zip(first, _say(seat, list(first.values()), layout), strict=True))
    return [plans.get((state.task_id, state.seed)) for state in states]


def _say(seat: Seat, states: Sequence[State], layout: PromptFormat) -> list[str]:
    privileged = isinstance(seat.player, ReadsHints)
    views = [view(seat.role, layout, state, hints=privileged) for state in states]
    draws = [draw(state.seed, len(state.past), seat.role) for state in states]
    return [utterance.text for utterance in seat.player.say(views, draws)]
