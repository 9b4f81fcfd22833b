"""Pictures as keys of a memory, compared by the vision tower of an image-text model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from image_models import FAMILIES, MADE, cards, section
from remembered import HEADER, OneHot, past
from tiny import gpt2, tokenizer

from reflectrl.core import Image, InvalidInput, Observation
from reflectrl.lm.load import LanguageModel, new_model
from reflectrl.prompts.views import State, View
from reflectrl.seats.embedders import HashingEmbedder
from reflectrl.seats.experience import Experience, PicturedStep
from reflectrl.seats.memory import Memory
from reflectrl.seats.neural import VisionTower
from reflectrl.seats.retriever import Retriever, Windows
from reflectrl.seats.table import view

ONE, TWO, THREE = cards()


def loaded(family: str, folder: Path) -> LanguageModel:
    if family in MADE:
        return MADE[family]()
    FAMILIES[family](folder / family)
    return new_model(section(folder / family, compute="float32"), labels=(), seed=0)


@pytest.mark.parametrize("family", [*FAMILIES, *MADE])
def test_equal_pictures_have_equal_vectors_of_length_1_and_others_have_others(family: str, tmp_path: Path) -> None:
    tower = VisionTower(loaded(family, tmp_path))
    names = [tower.name(images) for images in ([ONE], [TWO], [ONE], [ONE, TWO], [])]
    assert (names[0], names[4]) == (ONE.sha256, "")
    vectors = tower.embed(names[:4])
    assert (vectors**2).sum(1) == pytest.approx(1)
    assert (vectors[0] == vectors[2]).all()
    assert not any((vectors[0] == vectors[other]).all() for other in (1, 3))
    assert VisionTower(loaded(family, tmp_path / "again")).embed([]).shape == (0, 32)


def test_a_model_of_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="model.images"):
        VisionTower(LanguageModel(gpt2(), tokenizer()))


def log(name: str, *pictures: Image) -> Experience:
    """Return a past episode with these pictures after its first actions."""
    shown = [*((image,) for image in pictures), ()]
    steps = tuple(PicturedStep(f"{name}{number}", "", images) for number, images in enumerate(shown))
    return replace(past("", ("x", "")), task_id=name, steps=steps)


def seeing(*images: Image) -> View:
    layout = replace(HEADER.prompt, images=("memory",))
    return view("memory", layout, State(Observation("", ("go",), images=images), ("went",)))


def test_a_memory_shows_what_was_done_where_the_same_picture_was_seen(tmp_path: Path) -> None:
    tower = VisionTower(loaded("llava", tmp_path))
    logs = [log("a", ONE, TWO), log("b", THREE)]
    memory = Memory(Retriever(logs, OneHot(), observation=Windows(1, 1), pictures=tower), key="picture")
    said = memory.say([seeing(image) for image in (TWO, THREE, ONE)], [0.0] * 3)
    assert [words.text for words in said] == [
        "Done before: > a0 > a1",
        "Done before: > b0",
        "Done before: > a0",
    ]
    with pytest.raises(InvalidInput, match="key=picture"):
        seeing()
    blind = Memory(Retriever(logs, HashingEmbedder(), action=Windows(1, 1)), key="picture")
    assert blind.say([seeing(TWO)], [0.0])[0].text == "Done before: > a0"  # ranked by task and plan, which are empty
