"""Errors' wording, and what is done to texts: words found, dangerous characters made visible."""

from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput, ReflectRLError, WorkFailed, nearest
from reflectrl.core.text import holds, visible, visible_line, words


@pytest.mark.parametrize(("error", "builtin", "code"), [(InvalidInput, ValueError, 2), (WorkFailed, RuntimeError, 1)])
def test_errors_are_caught_as_ours_and_as_the_builtin_kind(error, builtin, code):
    assert issubclass(error, ReflectRLError)
    assert issubclass(error, builtin)
    assert error.exit_code == code


@pytest.mark.parametrize(
    ("given", "known", "said"),
    [
        ("dropof", ["pickup", "dropoff", "full"], "did you mean 'dropoff'? Known: dropoff, full, pickup."),
        ("xyz", ["pickup", "full"], "Known: full, pickup."),
        ("xyz", [], "Known: none."),
    ],
)
def test_the_nearest_name_comes_first_and_all_are_listed(given, known, said):
    assert nearest(given, known) == said


@pytest.mark.parametrize(
    ("text", "phrase", "held"),
    [
        ("The Exit, is near!", "exit is", True),
        ("The exit is near", "exit near", False),
        ("wireless", "wire", False),
        ("rl_finetune", "RL finetune", True),
        ("Größe 2", "GRÖSSE 2", True),
        ("anything", "...", False),
        ("", "word", False),
    ],
)
def test_words_are_found_one_after_the_other(text, phrase, held):
    assert holds(text, phrase) is held


def test_words_stand_between_single_spaces():
    assert words("A - b\n_c_") == " a b c "
    assert words("...").strip() == ""


def test_what_a_terminal_would_obey_is_made_visible():
    assert visible("a\x1b[31m\u202e\ud800\n\tb") == "a\u241b[31m\ufffd\ufffd\n\tb"
    assert visible_line("a\n\tb") == "a\u240a    b"
