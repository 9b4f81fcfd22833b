"""Which names a new environment may have, and what is proposed instead of those it may not."""

from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.skeleton.name import MAX_NAME_CHARS, checked_name, class_name


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("vault", "Vault"),
        ("treasure_map", "TreasureMap"),
        ("maze_2d", "Maze2D"),
        ("x", "X"),
        ("a" * MAX_NAME_CHARS, "A" + "a" * 29),
    ],
)
def test_small_words_are_names(name, cls):
    assert checked_name(name) == name
    assert class_name(name) == cls


BETTER = {
    **{"my-env": "my_env", "My Env": "my_env", "MyEnv": "my_env", "vault.py": "vault_py", "_vault": "vault"},
    **{"vault__two": "vault_two", "2048": "env_2048", "résumé": "resume", "../vault": "vault", "vault\n": "vault"},
    **{"class": "class_env", "match": "match_env", "str": "str_env"},
    **{name: f"{name}_env" for name in ("random", "numpy", "reflectrl", "number_line", "task", "none", "nat_lang_env")},
    "a" * (MAX_NAME_CHARS + 1): "a" * MAX_NAME_CHARS,
    "x" * 10_000: "x" * MAX_NAME_CHARS,
}
"""Names that a package, its class or its environment cannot have, with the nearest ones that they can."""


@pytest.mark.parametrize("name", BETTER, ids=lambda name: name[:20])
def test_what_cannot_be_a_name_gets_the_nearest_that_can(name):
    with pytest.raises(InvalidInput, match=f"'{BETTER[name]}'") as refused:
        checked_name(name)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["", "---", "日本"])
def test_where_no_name_is_near_an_example_is_given(name):
    with pytest.raises(InvalidInput, match="'my_env'"):
        checked_name(name)
