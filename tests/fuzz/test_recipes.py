"""Recipes and overrides with any content are loaded or refused with a sentence."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutant

from reflectrl.config import check_recipe, dump_recipe, load_recipe, recipe_names
from reflectrl.core import InvalidInput

RANDOMS = st.randoms(use_true_random=False)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=9)
VALUES = st.recursive(
    PLAIN, lambda inside: st.lists(inside, max_size=4) | st.dictionaries(PLAIN.filter(bool), inside, max_size=4)
)
NAMES = st.sampled_from(("seed", "name", "env", "options", "rlft", "lessons", "0", "-1", "iterations", "eval", "x"))


@cache
def recipes() -> list[dict[str, Any]]:
    """Every tenth shipped recipe with all settings, read when a test runs, because that takes a second."""
    names = [name for name in recipe_names() if not name.startswith("alfworld/")][::10]
    return [yaml.safe_load(dump_recipe(load_recipe(name))) for name in names]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes") / "mutated.yaml"


def loads_or_is_refused(place, content: bytes, overrides=()) -> None:
    place.write_bytes(content)
    try:
        recipe = load_recipe(str(place), overrides)
        check_recipe(recipe)
    except InvalidInput as refusal:
        said = str(refusal)
    else:
        said = None
    if said is not None:
        assert 0 < len(said) < 20_000, "sentences, not the file"
        return
    place.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(str(place)) == recipe


@pytest.mark.slow
@settings(max_examples=15)
@given(rng=RANDOMS)
def test_a_shipped_recipe_with_mistakes(place, rng: random.Random):
    loads_or_is_refused(place, mutant(rng, rng.choice(recipes())).encode("utf-8", "surrogatepass"))


@given(content=st.binary() | st.text().map(str.encode) | st.text("[]{}:,-&*!|>'\" \nab<1", min_size=9).map(str.encode))
def test_a_file_that_holds_anything(place, content: bytes):
    loads_or_is_refused(place, content)


@pytest.mark.slow
@given(
    overrides=st.lists(
        st.text()
        | st.builds(lambda keys, value: f"{'.'.join(keys)}={value}", st.lists(NAMES, max_size=5), st.text(max_size=9))
        | st.builds(lambda keys, value: f"{'.'.join(keys)}={value!r}", st.lists(NAMES, max_size=5), VALUES),
        max_size=4,
    )
)
def test_overrides_that_hold_anything(place, overrides: list[str]):
    loads_or_is_refused(place, dump_recipe(load_recipe("dangerous_taxi/nano")).encode(), overrides)
