"""``play_turn``: the one function that plays a step: frozen players speak, the menu is shown, the policy acts.

The rollout, a loaded agent, the server and the teacher's episodes all call it. Draws depend only on the episode's seed,
the step and the role, so all of them play the same step in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from reflectrl.core import Decision, Reading, Trajectory, Utterance, WorkFailed
from reflectrl.core.profile import part
from reflectrl.core.seeds import draw
from reflectrl.core.text import shortened
from reflectrl.prompts import Menu, PromptFormat
from reflectrl.prompts.chats import named_action, thought_of
from reflectrl.prompts.players import Policy, ReadsHints
from reflectrl.prompts.views import MenuView, State, View
from reflectrl.seats.table import Seat, menu_view, view


@dataclass(frozen=True)
class Move:
    """Result of one turn, before the environment's step."""

    menu: Menu
    said: dict[str, Utterance]
    """New words of the frozen players in this turn, by role."""
    decision: Decision
    reflection: str | None
    """Reflection that the policy read, new or given; ``None`` without a reflection."""
    reading: Reading | None = None
    """Judgement of the environment on the policy's thought; ``None`` without a thought or an environment to ask."""
    thought: str | None = None
    """Thought of the policy; ``None`` for a policy that writes no text."""

    @property
    def thought_rewards(self) -> dict[str, float]:
        """Rewards of the policy's text, see ``Turn.rewards``; empty without a text."""
        if self.decision.choice.written is None:
            return {}
        rewards, reading = {"format": float(self.decision.choice.legal)}, self.reading or Reading()
        if reading.right is not None:
            rewards["agreement"] = float(reading.right)
        if reading.action is not None and self.decision.choice.legal:
            rewards["consistency"] = float(reading.action == self.decision.action)
        return rewards


def play_turn(
    states: Sequence[State],
    *,
    policy: Policy,
    seats: Sequence[Seat],
    layout: PromptFormat,
    read: Callable[[Sequence[str | None]], Sequence[Reading | None]] | None = None,
) -> list[Move]:
    """Play one step in each of ``states``: frozen players speak, the menu is shown, the policy acts, correctors speak.

    A role whose words are already in ``State.said`` is not asked.

    Args:
        states: current states of the episodes, none of which has ended.
        policy: chooses the actions.
        seats: frozen players, asked in this order.
        layout: layout of the prompts.
        read: returns the environments' judgement of the policy's thoughts, one per state, ``None`` without a text.

    Raises:
        InvalidInput: a state cannot be shown to a player, or is too long for its model.
        WorkFailed: a chat endpoint failed.
    """
    if not states:
        return []
    said: list[dict[str, Utterance]] = [{} for _ in states]
    now = list(states)
    for seat in seats:
        if seat.when in ("episode_start", "before_act"):
            _speak(seat, now, said, layout)
    menus = [menu_of(state, layout) for state in now]
    privileged = isinstance(policy, ReadsHints)
    views = [menu_view("policy", layout, state, menu, hints=privileged) for state, menu in zip(now, menus, strict=True)]
    with part("policy: act"):
        decisions = policy.act(views, _draws(now, "policy"))
    now = [_after(state, decision, layout) for state, decision in zip(now, decisions, strict=True)]
    thinks = layout.action_mode != "text" and any(decision.choice.written for decision in decisions)
    if read is not None and thinks:
        readings = read([state.said.get("policy") for state in now])
        now = [_read(state, menu, each) for state, menu, each in zip(now, menus, readings, strict=True)]
    for seat in seats:
        if seat.when == "after_act":
            _speak(seat, now, said, layout, menus, decisions)
    return [
        Move(menu, words, decision, state.said.get("reflector"), state.reading, state.said.get("policy"))
        for menu, words, decision, state in zip(menus, said, decisions, now, strict=True)
    ]


def _after(state: State, decision: Decision, layout: PromptFormat) -> State:
    """Return the state with the policy's thought among the words said, if the policy wrote a text."""
    written = decision.choice.written
    if written is None:
        return state
    return replace(state, said={**state.said, "policy": thought_of(written, layout.action_mode)})


def _read(state: State, menu: Menu, reading: Reading | None) -> State:
    """Return the state with the judgement of its thought, whose action, if absent, is the one the thought names."""
    if reading is not None and reading.action is None:
        named = named_action(state.said["policy"], menu)
        reading = reading if named is None else replace(reading, action=menu.actions[named])
    return replace(state, reading=reading)


def menu_of(state: State, layout: PromptFormat) -> Menu:
    """Return the menu that is shown in ``state``."""
    return layout.menu_of(state.observation, state.seed, len(state.past))


def reads_hints(policy: Policy, seats: Sequence[Seat]) -> bool:
    """Return whether the policy or any player is given the expert's hints."""
    return any(isinstance(player, ReadsHints) for player in (policy, *(seat.player for seat in seats)))


def _speak(
    seat: Seat,
    states: list[State],
    said: list[dict[str, Utterance]],
    layout: PromptFormat,
    menus: Sequence[Menu] = (),
    decisions: Sequence[Decision] = (),
) -> None:
    """Ask a seat's player about the states that lack its words, and add them to ``said`` and ``states``, in place.

    Correctors are not asked about texts that name no legal action.
    """
    asked = [
        number
        for number, state in enumerate(states)
        if seat.role not in state.said and (not decisions or decisions[number].choice.legal)
    ]
    if not asked:
        return
    privileged = isinstance(seat.player, ReadsHints)
    views: list[View] = [
        menu_view(seat.role, layout, states[n], menus[n], action=decisions[n].action, hints=privileged)
        if decisions
        else view(seat.role, layout, states[n], hints=privileged)
        for n in asked
    ]
    words = _words(seat, views, [states[n] for n in asked])
    for number, utterance in zip(asked, words, strict=True):
        said[number][seat.role] = utterance
        states[number] = replace(states[number], said={**states[number].said, seat.role: utterance.text})


def _words(seat: Seat, views: Sequence[View], states: Sequence[State]) -> Sequence[Utterance]:
    """Return the words of a seat's player, one utterance per view.

    Raises:
        WorkFailed: the player returned anything else.
    """
    with part(seat.role):
        words = seat.player.say(views, _draws(states, seat.role))
    if not isinstance(words, Sequence) or [isinstance(each, Utterance) for each in words] != [True] * len(views):
        raise WorkFailed(
            f"the {seat.role}'s player {type(seat.player).__name__} returned {shortened(repr(words), 100)} for "
            f"{len(views)} views; expected a list with one Utterance per view: fix its method say."
        )
    return words


def _draws(states: Sequence[State], role: str) -> list[float]:
    return [draw(state.seed, len(state.past), role) for state in states]


def rated(trajectories: Sequence[Trajectory], seats: Sequence[Seat], layout: PromptFormat) -> list[Trajectory]:
    """Ask the players at ``episode_end`` to rate finished episodes; add their scores to the steps' rewards, by role.

    A step without a score has no reward of that role: a failed rating is absent, never 0. An episode without steps is
    returned unchanged.
    """
    played = [trajectory for trajectory in trajectories if trajectory.turns]
    for seat in (seat for seat in seats if seat.when == "episode_end" and played):
        ends = [end_of(trajectory) for trajectory in played]
        words = _words(seat, [view(seat.role, layout, state) for state in ends], ends)
        played = [_with_scores(each, seat.role, said) for each, said in zip(played, words, strict=True)]
    scored = iter(played)
    return [next(scored) if each.turns else each for each in trajectories]


def end_of(trajectory: Trajectory) -> State:
    """Return the last state in which an action was chosen, with all actions and observations of the episode."""
    visited = tuple(turn.observation for turn in trajectory.turns)
    return State(
        visited[-1],
        trajectory.actions,
        trajectory.seed,
        visited=visited,
        rewards=trajectory.rewards,
        last=trajectory.last,
    )


def _with_scores(trajectory: Trajectory, role: str, words: Utterance) -> Trajectory:
    scores = words.scores or (None,) * len(trajectory.turns)
    if len(scores) != len(trajectory.turns):
        raise WorkFailed(
            f"the {role} gave {len(scores)} scores to an episode; expected {len(trajectory.turns)}, one a step, None "
            "where it has none, or no scores at all: fix the player."
        )
    turns = [
        turn if score is None else replace(turn, rewards={**turn.rewards, role: score})
        for turn, score in zip(trajectory.turns, scores, strict=True)
    ]
    last = replace(turns[-1], said={**turns[-1].said, role: words})
    return replace(trajectory, turns=(*turns[:-1], last))


def states_of(trajectory: Trajectory) -> Iterator[State]:
    """Yield the state of each turn as the policy saw it, from the record alone, without asking any player."""
    said: dict[str, str] = {}
    before: dict[str, str] = {}
    task, actions, rewards = trajectory.task, trajectory.actions, trajectory.rewards
    visited = tuple(turn.observation for turn in trajectory.turns)
    for step, turn in enumerate(trajectory.turns):
        said |= {role: words.text for role, words in turn.said.items()}
        yield State(
            turn.observation,
            actions[:step],
            trajectory.seed,
            dict(said),
            visited=visited[:step],
            rewards=rewards[:step],
            before=before,
            task_id=task.id,
            task_type=task.group,
        )
        before = {role: words.text for role, words in turn.said.items()}


def policy_views(trajectory: Trajectory, layout: PromptFormat) -> list[MenuView]:
    """Return the policy's view at each turn, as it was when the policy acted."""
    return [
        menu_view("policy", layout, state, layout.relabelled(turn.menu, turn.observation, state.seed))
        for state, turn in zip(states_of(trajectory), trajectory.turns, strict=True)
    ]
