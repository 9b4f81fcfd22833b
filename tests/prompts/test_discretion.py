from __future__ import annotations

import pytest

from reflectrl.prompts.discretion import claims, leaks


@pytest.mark.parametrize(
    ("reflection", "found"),
    [
        ("That was suboptimal.", ["suboptimal"]),
        ("The optimal, even OPTIMALLY chosen way", ["optimal", "optimally"]),
        ("East is the best next\nmove; the best\u00a0action.", ["best next move", "best action"]),
        ("Three steps at best.", ["at best"]),
        ("5 actions are left.", ["5 actions are left"]),
        ("I know the right answer", ["i know the right answer"]),
        ("We already know the solution", ["we already know the solution"]),
        ("the hidden information, some private facts", ["hidden information", "private facts"]),
        ("As your note said. A spoiler!", ["your note", "spoiler"]),
        ("I was told to go east", ["was told"]),
        ("according to the oracle", ["according to the oracle"]),
    ],
)
def test_claims_to_know_more_than_a_player(reflection: str, found: list[str]) -> None:
    assert list(claims(reflection, "A hall.")) == found


@pytest.mark.parametrize(
    "reflection",
    [
        "I am optimistic. The bestseller is in the notebook.",
        "Note that the taxi is two steps left of the passenger.",
        "I know the passenger waits in the north; the best I can do is to go there.",
        "The answer may be in the docs folder.",
    ],
)
def test_plain_reasoning_is_no_claim(reflection: str) -> None:
    assert claims(reflection, "A hall.") == ()


def test_what_the_prompt_says_may_be_said() -> None:
    assert claims("The optimal dose is in the note.", "Question: What is the OPTIMAL dose? Here: the-note.md") == ()


@pytest.mark.parametrize(
    ("secret", "reflection", "shown", "leaked"),
    [
        ("wire", "Wire is further down.", "Folder: /", True),
        ("wire", "Wire is further down.", "Question: what goes over the WIRE?", False),
        ("wire", "The wireless set is further down.", "Folder: /", False),
        ("rl_finetune", "rl finetune is here", "Folder: /", True),
        ("rl_finetune", "finetune is here", "Folder: /", False),
        ("tomato 1", "tomato 1 is in fridge 1", "tomato 12, tomato 3", True),
        ("tomato 1", "tomato 1 is in fridge 1", "> open fridge 1\nyou see a tomato 1.", False),
        ("!", "Good!", "", False),
    ],
)
def test_secrets_are_compared_word_by_word(secret: str, reflection: str, shown: str, leaked: bool) -> None:
    assert leaks(reflection, shown, [secret]) == ((secret,) if leaked else ())
