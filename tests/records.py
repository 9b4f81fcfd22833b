"""Short constructors of turns, decisions and views."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Choice, Decision, Hints, Observation, Trajectory, Turn, Utterance
from reflectrl.prompts import Menu, Prompt, PromptFormat
from reflectrl.prompts.views import MenuView, State, View
from reflectrl.rollout.turn import policy_views, states_of
from reflectrl.seats.table import menu_view, view


def chose(
    index: int,
    action: str,
    logprob: float = 0.0,
    entropy: float = 0.0,
    probabilities: tuple[float, ...] = (),
    value: float = 0.0,
) -> Decision:
    """Return the decision that chooses from the menu."""
    return Decision(action, logprob, entropy, Choice(index, probabilities), value)


def turn_of(
    observation: Observation,
    menu: tuple[str, ...],
    reflection: str | None,
    decision: Decision,
    reward: float,
    illegal: bool = False,
) -> Turn:
    """Return a turn of Reflect-RL: at most one reflection, and rewards from the environment."""
    said = {} if reflection is None else {"reflector": Utterance(reflection)}
    return Turn(observation, menu, said, decision, {"env": reward}, illegal)


def shown(prompts: Sequence[Prompt], hints: Hints | None = None) -> list[View]:
    """Return the views with which players would read these prompts."""
    here = Observation("", ())
    return [
        View(prompt, here, (), {}, hints)
        if prompt.menu is None
        else MenuView(prompt, here, (), {}, hints, menu=prompt.menu)
        for prompt in prompts
    ]


def reflector_prompt_of(layout: PromptFormat, observation: Observation, past: Sequence[str] = ()) -> Prompt:
    """Return the reflector's prompt for a state."""
    return view("reflector", layout, State(observation, tuple(past))).prompt


def policy_prompt_of(
    layout: PromptFormat, observation: Observation, past: Sequence[str], reflection: str | None, menu: Menu
) -> Prompt:
    """Return the policy's prompt for a state, with or without a reflection."""
    said = {} if reflection is None else {"reflector": reflection}
    return menu_view("policy", layout, State(observation, tuple(past), said=said), menu).prompt


def prompts_of(trajectory: Trajectory, layout: PromptFormat) -> list[tuple[Prompt, Prompt]]:
    """Return the (reflector, policy) prompts of each turn as they were shown."""
    reflector = [view("reflector", layout, state).prompt for state in states_of(trajectory)]
    return list(zip(reflector, (seen.prompt for seen in policy_views(trajectory, layout)), strict=True))
