"""The tables on reflections: shares of steps and of whole episodes."""

from __future__ import annotations

from dataclasses import replace

from reflections import accuracy

from reflectrl.report.judged import JudgedStep


def test_shares_are_of_steps_and_of_whole_episodes() -> None:
    right = JudgedStep(taught=True, right=True, standing_right=True, good=True, success=True)
    misjudged = JudgedStep(taught=False, right=False, standing_right=True, good=False, success=True)
    wrong = JudgedStep(taught=False, right=False, standing_right=False, good=False, success=False)
    assert accuracy("line", [[right, misjudged], [replace(right, success=False), wrong]])[1:] == [
        *("4", "50 (of 4)"),
        *("100 (of 2)", "0 (of 2)"),  # whole reflections
        *("67 (of 3)", "0 (of 1)"),  # good actions
        *("100 (of 1)", "0 (of 1)"),  # episodes
    ]
