"""build_dataset: questions about a recipe's repositories, written once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.types import SPLITS
from reflectrl.data_gen import generate
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.endpoint.account import Account
from reflectrl.envs.auto_explore.dataset import ask_about, read_dataset
from reflectrl.envs.auto_explore.questions import write_questions

CITIES = ("athens", "berlin", "cairo", "dublin")


def make_repository(folder: Path, subject: str) -> Path:
    (folder / "docs").mkdir(parents=True)
    for city in CITIES:
        (folder / "docs" / f"{city}.md").write_text(f"# {subject} in {city.title()}\n\nNobody knows.\n")
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "shop", "sick notes")


@pytest.fixture
def office(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "office", "hourly wages")


def recipe(*repositories: object, **dataset: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "test",
            "env": {"name": "auto_explore"},
            "dataset": {"repositories": list(map(str, repositories)), **dataset},
            "data": {"samples": 20},
        }
    )


def remote(endpoint: ScriptedEndpoint, *repositories: Path, **changes: object) -> Recipe:
    there = {"base_url": endpoint.url, "max_attempts": 1, "max_tokens": 10, "concurrency": 1, **changes}
    return recipe(*repositories, writer="openai", per_file=2, endpoint=there)


def good(chat: Chat) -> str:
    subject, city = re.findall(r"# (\w+ \w+) in (\w+)", chat[1]["content"])[0]
    return (
        f"ANALYSIS: On {subject}.\nQUESTION 1: Where are {subject} in {city}?\nANSWER 1: Nobody.\n"
        f"QUESTION 2: Is {city} where nobody knows {subject}?\nANSWER 2: Yes."
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_files_own_words_become_questions_about_two_repositories(shop: Path, office: Path, tmp_path: Path) -> None:
    build_dataset(recipe(shop, office), tmp_path / "run", Account())
    dataset = read_dataset(tmp_path / "run" / "dataset")
    expected = ask_about({"shop": shop, "office": office}, write_questions, per_file=3, seed=0)
    assert dataset.questions == expected.questions
    assert sorted(dataset.repositories) == ["office", "shop"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["dataset"]


def test_the_recipes_environment_plays_it_although_the_repositories_have_gone(shop: Path, tmp_path: Path) -> None:
    build_dataset(recipe(shop), tmp_path / "run", Account())
    shop.rename(tmp_path / "elsewhere")
    env = recipe_env(recipe(shop), tmp_path / "run")
    asked = [task.options["file"] for split in SPLITS for task in env.tasks(split)]
    assert sorted(asked) == [f"docs/{city}.md" for city in CITIES]
    env.reset(seed=0)


def test_gen_data_builds_the_dataset_first(shop: Path, tmp_path: Path) -> None:
    assert generate(recipe(shop), tmp_path / "run").samples == 20
    assert {"dataset", "data", "sft"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_it_is_built_once_and_not_again(shop: Path, tmp_path: Path) -> None:
    build_dataset(recipe(shop), tmp_path / "run", Account())
    before = contents(tmp_path / "run")
    (shop / "docs" / "rome.md").write_text("# sick notes in Rome\n\nNobody knows.\n")
    build_dataset(recipe(shop), tmp_path / "run", Account())
    assert contents(tmp_path / "run") == before


def test_the_seed_of_the_recipe_splits_the_files(shop: Path, tmp_path: Path) -> None:
    splits = set()
    for seed in range(5):
        build_dataset(recipe(shop).model_copy(update={"seed": seed}), tmp_path / str(seed), Account())
        splits.add(read_dataset(tmp_path / str(seed) / "dataset").questions["test"][0].file)
    assert len(splits) > 1


@pytest.mark.parametrize("writer", ["extractive", "openai"])
def test_as_many_files_are_asked_about_as_wanted(
    writer: str, endpoint: ScriptedEndpoint, shop: Path, tmp_path: Path
) -> None:
    endpoint.reply = good
    wanted = remote(endpoint, shop) if writer == "openai" else recipe(shop)
    section = wanted.dataset.model_copy(update={"files": 3})
    build_dataset(wanted.model_copy(update={"dataset": section}), tmp_path / "run", Account())
    dataset = read_dataset(tmp_path / "run" / "dataset")
    assert len({question.file for split in SPLITS for question in dataset.questions[split]}) == 3
    assert len(list((dataset.repositories["shop"] / "docs").iterdir())) == len(CITIES)
    assert len(endpoint.requests) == (3 if writer == "openai" else 0)


def test_an_environment_that_brings_its_own_tasks_gets_no_dataset(tmp_path: Path) -> None:
    build_dataset(Recipe.model_validate({"name": "test", "env": {"name": "number_line"}}), tmp_path / "run", Account())
    assert not (tmp_path / "run").exists()


def test_a_chat_model_is_asked_about_every_file_of_every_repository(
    endpoint: ScriptedEndpoint, shop: Path, office: Path, tmp_path: Path
) -> None:
    endpoint.reply = good
    build_dataset(remote(endpoint, shop, office), tmp_path / "run", Account())
    assert len(endpoint.requests) == 8
    questions = [row for rows in read_dataset(tmp_path / "run" / "dataset").questions.values() for row in rows]
    assert len(questions) == 16
    asked = {(row.repository, row.file, row.question, row.answer) for row in questions}
    assert ("shop", "docs/cairo.md", "Where are sick notes in Cairo?", "Nobody.") in asked
    assert ("office", "docs/cairo.md", "Is Cairo where nobody knows hourly wages?", "Yes.") in asked


def test_replies_have_room_for_all_questions(endpoint: ScriptedEndpoint, shop: Path, tmp_path: Path) -> None:
    endpoint.reply = good
    build_dataset(remote(endpoint, shop, max_tokens=10), tmp_path / "few", Account())
    build_dataset(remote(endpoint, shop, max_tokens=5000), tmp_path / "many", Account())
    limits = {max(request.body.get(name, 0) for name in request.body if "max" in name) for request in endpoint.requests}
    assert len(limits) == 2
    assert min(limits) > 200
    assert max(limits) == 5000


def kept(run: Path) -> list[str]:
    return (run / "calls" / "writer" / "replies.jsonl").read_text().splitlines()


def test_paid_replies_are_kept_and_not_asked_for_again(
    endpoint: ScriptedEndpoint, shop: Path, office: Path, tmp_path: Path
) -> None:
    endpoint.reply = good
    endpoint.faults.extend(["none"] * 6 + ["401"])
    with pytest.raises(WorkFailed, match=r"no questions about 'docs/cairo.md': .*key was refused"):
        build_dataset(remote(endpoint, shop, office), tmp_path / "run", Account())
    assert len(kept(tmp_path / "run")) == 6
    assert not (tmp_path / "run" / "dataset").exists()
    endpoint.requests.clear()
    build_dataset(remote(endpoint, shop, office), tmp_path / "run", Account())
    assert len(endpoint.requests) == 2
    assert len(kept(tmp_path / "run")) == 8
    endpoint.requests.clear()
    build_dataset(remote(endpoint, shop, office), tmp_path / "run", Account())
    assert endpoint.requests == []


def test_replies_are_kept_when_the_dataset_cannot_be_written(
    endpoint: ScriptedEndpoint, shop: Path, tmp_path: Path
) -> None:
    endpoint.reply = lambda chat: good(chat).replace("sick notes", "holidays")  # which no file mentions
    with pytest.raises(InvalidInput, match="clear questions were found for 0 files"):
        build_dataset(remote(endpoint, shop), tmp_path / "run", Account())
    assert len(kept(tmp_path / "run")) == 4


def test_without_a_key_nothing_is_written(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY is not set"):
        build_dataset(recipe(shop, writer="openai"), tmp_path / "run", Account())
    assert not (tmp_path / "run").exists()


def test_a_repository_given_twice_is_refused(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shop' was given twice; its test questions would be known: remove one"):
        build_dataset(recipe(shop, shop), tmp_path / "run", Account())
    assert not (tmp_path / "run").exists()


def test_two_repositories_of_one_name_get_two_names(shop: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other" / "shop", "hourly wages")
    build_dataset(recipe(shop, other), tmp_path / "run", Account())
    dataset = read_dataset(tmp_path / "run" / "dataset")
    assert sorted(dataset.repositories) == ["shop", "shop-2"]
    asked = {row.repository: row.question for rows in dataset.questions.values() for row in rows}
    assert ("sick notes" in asked["shop"].lower(), "hourly wages" in asked["shop-2"].lower()) == (True, True)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [("gone", "'gone' is neither a folder nor of another known form"), ("company:nan", "did you mean 'nano'")],
)
def test_what_is_no_repository_is_refused(source: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        build_dataset(recipe(source), tmp_path / "run", Account())
    assert not (tmp_path / "run").exists()
