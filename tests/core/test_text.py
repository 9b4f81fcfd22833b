"""The wording of errors, and functions on texts: finding words, making dangerous characters visible."""

from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput, ReflectRLError, WorkFailed, nearest
from reflectrl.core.errors import NEAREST_NAMES
from reflectrl.core.text import holds, visible, visible_line, words


def test_errors_are_caught_as_ours_and_as_the_builtin_kind():
    for error, builtin, code in ((InvalidInput, ValueError, 2), (WorkFailed, RuntimeError, 1)):
        assert issubclass(error, ReflectRLError)
        assert issubclass(error, builtin)
        assert error.exit_code == code


def test_of_many_names_only_the_nearest_are_listed():
    said = nearest("nam99", [f"name{number}" for number in range(100)])
    assert said.startswith("did you mean 'name99'? Near it: name99, ")
    assert said.count(",") == NEAREST_NAMES - 1
    assert nearest("xyz", [f"name{number}" for number in range(100)]) == "none of the 100 known names is near it."


def test_the_nearest_name_comes_first_and_all_are_listed():
    said = nearest("dropof", ["pickup", "dropoff", "full"])
    assert "'dropoff'?" in said
    assert said.endswith("dropoff, full, pickup.")
    assert nearest("xyz", ["pickup", "full"]).endswith("full, pickup.")
    assert "?" not in nearest("xyz", ["pickup", "full"]) + nearest("xyz", [])


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
    assert words("A - b\n_c_") == " a b c "


def test_what_a_terminal_would_obey_is_made_visible():
    assert visible("a\x1b[31m\u202e\ud800\n\tb") == "a\u241b[31m\ufffd\ufffd\n\tb"
    assert visible_line("a\n\tb") == "a\u240a    b"
