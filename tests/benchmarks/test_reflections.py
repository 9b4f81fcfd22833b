"""The tables on reflections: states in SFT rows or not, right and wrong reflections, and the policy's actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from records import reflector_prompt_of
from reflections import Move, accuracy, moves, without_verdict

from reflectrl.core import Choice, Decision, make_env
from reflectrl.envs.number_line.env import DOWN, UP
from reflectrl.players import ScriptedReflector, reflecting
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, rollout

LAYOUT = PromptFormat()


class Script:
    """Policy that plays given actions, one per step."""

    def __init__(self, *actions: str) -> None:
        self._actions = iter(actions)

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002
        """Return the next action."""
        action = next(self._actions)
        return [Decision(action, 0.0, 0.0, Choice(views[0].menu.actions.index(action)))]


def test_words_are_compared_with_the_expert_s_and_actions_with_its_judgement() -> None:
    env = make_env("number_line", size=8)
    tasks = [task for split in env.splits for task in env.split_tasks(split)]
    task = next(task for task in tasks if (task.options["start"], task.options["target"]) == (2, 4))
    words = iter(
        ("the  target is HIGHER.", "Mistake. The target is higher.", "Good. The target is higher.", "The target is up.")
    )
    seats = reflecting(ScriptedReflector(lambda _: next(words)))
    [played] = rollout([env], [Episode(task, 0)], policy=Script(UP, DOWN, UP, UP), seats=seats, layout=LAYOUT)
    taught = frozenset({reflector_prompt_of(LAYOUT, played.turns[0].observation).text})
    found = list(moves(make_env("number_line", size=8), LAYOUT, played, taught))
    assert [move.taught for move in found] == [True, False, False, False]
    # the reflector reports a mistake after the right action, up, and none after the wrong one, down
    assert [move.right for move in found] == [True, False, False, False]
    assert [move.standing_right for move in found] == [True, True, True, False]
    assert [move.good for move in found] == [True, False, True, True]
    assert all(move.success for move in found)


def test_judgements_of_all_environments_are_left_out() -> None:
    assert without_verdict("good. the target is lower.") == "the target is lower."
    assert without_verdict("mistake: that changed nothing. no tomato seen yet.") == "no tomato seen yet."
    assert without_verdict("taxi at row 1.") == "taxi at row 1."


def test_shares_are_of_steps_and_of_whole_episodes() -> None:
    right = Move(taught=True, right=True, standing_right=True, good=True, success=True)
    misjudged = Move(taught=False, right=False, standing_right=True, good=False, success=True)
    wrong = Move(taught=False, right=False, standing_right=False, good=False, success=False)
    assert accuracy("line", [[right, misjudged], [replace(right, success=False), wrong]])[1:] == [
        *("4", "50 (of 4)"),
        *("100 (of 2)", "0 (of 2)"),  # whole reflections
        *("100 (of 2)", "50 (of 2)"),  # without the judgement of the last action
        *("67 (of 3)", "0 (of 1)"),  # good actions
        *("100 (of 1)", "0 (of 1)"),  # episodes
    ]
