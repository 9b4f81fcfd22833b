"""Which names a new environment may have, and what is proposed instead of those it may not."""

from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.skeleton.name import LONGEST, checked_name, class_name


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("vault", "Vault"),
        ("treasure_map", "TreasureMap"),
        ("maze_2d", "Maze2D"),
        ("x", "X"),
        ("a" * LONGEST, "A" + "a" * 29),
    ],
)
def test_small_words_are_names(name, cls):
    assert checked_name(name) == name
    assert class_name(name) == cls


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("my-env", "my_env"),
        ("My Env", "my_env"),
        ("MyEnv", "my_env"),
        ("vault.py", "vault_py"),
        ("_vault", "vault"),
        ("vault__two", "vault_two"),
        ("2048", "env_2048"),
        ("résumé", "resume"),
        ("../vault", "vault"),
        ("vault\n", "vault"),
    ],
)
def test_what_is_no_word_gets_the_nearest_that_is(name, better):
    with pytest.raises(InvalidInput, match=f"expected small letters.*; try '{better}'"):
        checked_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("class", "a word of Python's own; try 'class_env'"),
        ("match", "a word of Python's own; try 'match_env'"),
        ("str", "a word of Python's own; try 'str_env'"),
        ("random", "a module of that name is installed already.*; try 'random_env'"),
        ("numpy", "a module of that name is installed already.*; try 'numpy_env'"),
        ("reflectrl", "a module of that name is installed already.*; try 'reflectrl_env'"),
        ("number_line", "an environment of that name is known already.*; try 'number_line_env'"),
        ("task", "its class would be called Task.*; try 'task_env'"),
        ("none", "its class would be called None.*; try 'none_env'"),
        ("nat_lang_env", "its class would be called NatLangEnv.*; try 'nat_lang_env_env'"),
        ("a" * (LONGEST + 1), f"it has 31 characters, expected 30 at most; try '{'a' * LONGEST}'"),
    ],
)
def test_a_name_that_stands_for_something_else_is_refused(name, why):
    with pytest.raises(InvalidInput, match=why):
        checked_name(name)


@pytest.mark.parametrize("name", ["", "---", "日本"])
def test_where_no_name_is_near_an_example_is_given(name):
    with pytest.raises(InvalidInput, match="choose another name, such as 'my_env'"):
        checked_name(name)


def test_a_long_name_is_not_repeated_at_length():
    with pytest.raises(InvalidInput) as refused:
        checked_name("x" * 10_000)
    assert len(str(refused.value)) < 400
