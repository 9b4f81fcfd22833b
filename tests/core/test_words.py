from __future__ import annotations

import pytest

from reflectrl.core.words import holds, words


@pytest.mark.parametrize(
    ("text", "phrase", "held"),
    [
        ("The Exit, is near!", "exit is", True),
        ("The exit is near", "exit near", False),
        ("wire.py", "wire", True),
        ("wireless", "wire", False),
        ("rl_finetune", "RL finetune", True),
        ("Größe 2", "GRÖSSE 2", True),
        ("anything", "", False),
        ("anything", "...", False),
        ("", "word", False),
    ],
)
def test_words_are_found_one_after_the_other(text: str, phrase: str, held: bool) -> None:
    assert holds(text, phrase) is held


def test_words_stand_between_single_spaces() -> None:
    assert words("A - b\n_c_") == " a b c "
    assert words("...").strip() == ""
