"""Valid names of a new environment, and the names proposed instead of invalid ones."""

from __future__ import annotations

import pytest

from reflectrl.cli.envs import MAX_NAME_CHARS, checked_name, class_name
from reflectrl.core import InvalidInput

CLASSES = {"vault": "Vault", "treasure_map": "TreasureMap", "maze_2d": "Maze2D", "x": "X"}
BETTER = {
    **{"my-env": "my_env", "My Env": "my_env", "MyEnv": "my_env", "vault.py": "vault_py", "_vault": "vault"},
    **{"vault__two": "vault_two", "2048": "env_2048", "résumé": "resume", "../vault": "vault", "vault\n": "vault"},
    **{"class": "class_env", "match": "match_env", "str": "str_env", "test_env": "test_env_env"},
    **{"pyyaml": "pyyaml_env", "pillow": "pillow_env"},  # packages, whose modules have other names
    **{name: f"{name}_env" for name in ("random", "numpy", "reflectrl", "number_line", "task", "none", "nat_lang_env")},
    **{"x" * 10_000: "x" * MAX_NAME_CHARS, "": "my_env", "日本": "my_env"},
}
"""Names that a package, its class or its environment cannot have, with the most similar valid ones."""


@pytest.mark.slow
def test_small_words_are_names_and_for_others_the_nearest_is_proposed():
    for name, cls in CLASSES.items():
        assert (checked_name(name), class_name(name)) == (name, cls)
    for name, better in BETTER.items():
        with pytest.raises(InvalidInput, match=f"'{better}'") as refused:
            checked_name(name)
        assert len(str(refused.value)) < 400
