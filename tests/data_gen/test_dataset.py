"""Datasets that an environment's builder writes once for a recipe."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.types import SPLITS
from reflectrl.data_gen import generate
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.data_gen.generate import Spending
from reflectrl.endpoint.account import Account
from reflectrl.envs.auto_explore.dataset import Question, ask_about, read_dataset
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.pipeline import run_stages

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


def recipe(*repositories: object, env: str = "auto_explore", seed: int = 0, **dataset: object) -> Recipe:
    sections = {"dataset": {"repositories": list(map(str, repositories)), **dataset}, "data": {"samples": 20}}
    return Recipe.model_validate({"name": "test", "seed": seed, "env": {"name": env}, **sections})


def remote(endpoint: ScriptedEndpoint, *repositories: Path, per_file: int = 2, **changes: object) -> Recipe:
    limits = {"max_attempts": 1, "max_tokens": 10, "concurrency": 1}
    there = {"base_url": endpoint.url, "backoff_s": 0.01, **limits, **changes}
    return recipe(*repositories, writer="openai", per_file=per_file, endpoint=there)


def build(wanted: Recipe, run: Path) -> list[Question]:
    """Build the dataset again from the replies stored in the run folder."""
    if (run / "dataset").exists():
        (run / "dataset").rename(run.parent / f"{run.name} {time.monotonic_ns()}")
    build_dataset(wanted, run, Account())
    questions = [row for rows in read_dataset(run / "dataset").questions.values() for row in rows]
    return sorted(questions, key=lambda question: question.id)


def city(chat: Chat) -> str:
    return re.findall(r"# \w+ \w+ in (\w+)", chat[1]["content"])[0]


def good(chat: Chat) -> str:
    subject = re.findall(r"# (\w+ \w+) in", chat[1]["content"])[0]
    return (
        f"ANALYSIS: On {subject}.\nQUESTION 1: Where are {subject} in {city(chat)}?\nANSWER 1: Nobody.\n"
        f"QUESTION 2: Is {city(chat)} where nobody knows {subject}?\nANSWER 2: Yes."
    )


def asked_about(endpoint: ScriptedEndpoint) -> list[str]:
    """Return the cities in the requests since the last call."""
    cities = [city(request.chat) for request in endpoint.requests]
    endpoint.requests.clear()
    return cities


def test_the_files_own_words_become_questions_that_the_environment_plays(
    shop: Path, office: Path, tmp_path: Path
) -> None:
    expected = ask_about({"shop": shop, "office": office}, write_questions, per_file=3, seed=5)
    build_dataset(recipe(shop, office, seed=5), tmp_path / "run", Account())
    dataset = read_dataset(tmp_path / "run" / "dataset")
    assert dataset.questions == expected.questions
    assert sorted(dataset.repositories) == ["office", "shop"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["dataset"]
    shop.rename(tmp_path / "elsewhere")
    env = recipe_env(recipe(shop, office), tmp_path / "run")
    asked = [task.options["file"] for split in SPLITS for task in env.tasks(split)]
    assert sorted(asked) == sorted(2 * [f"docs/{city}.md" for city in CITIES])
    env.reset(seed=0)


def test_held_out_repositories_are_asked_about_in_a_split_of_their_own(
    shop: Path, office: Path, tmp_path: Path
) -> None:
    wanted = recipe(shop, held_out=[str(office)])
    build_dataset(wanted, tmp_path / "run", Account())
    env = recipe_env(wanted, tmp_path / "run")
    asked = {split: {task.options["repository"] for task in env.any_tasks(split)} for split in env.splits}
    assert asked == {**dict.fromkeys(SPLITS, {"shop"}), "test_by_content": set(), "unseen": {"office"}}
    assert len(env.any_tasks("unseen")) == 4
    with pytest.raises(InvalidInput, match="twice"):
        build_dataset(recipe(shop, held_out=[str(shop)]), tmp_path / "twice", Account())
    for path in office.rglob("*.md"):
        path.write_text("Nothing to ask.")
    with pytest.raises(InvalidInput, match="office"):
        build_dataset(wanted, tmp_path / "mute", Account())


def test_questions_may_be_put_in_other_words(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    verbs, nouns = ("parse", "print", "store"), ("index", "string", "record")
    for number, (verb, noun) in enumerate((verb, noun) for verb in verbs for noun in nouns):
        (tmp_path / "code" / f"m{number}.py").write_text(f'"""Always {verb} every {noun}."""\n')
    questions = build(recipe(tmp_path / "code", writer="paraphrased"), tmp_path / "run")
    assert "Always interpret every text." in {row.question.partition(" W")[0] for row in questions}
    assert not {"parse", "print", "store"} & {word for row in questions for word in row.question.lower().split()}


def test_gen_data_builds_the_dataset_first_and_once(shop: Path, tmp_path: Path) -> None:
    assert generate(recipe(shop), tmp_path / "run").samples == 20
    assert {"dataset", "data", "sft"} <= {path.name for path in (tmp_path / "run").iterdir()}
    before = {path: path.read_bytes() for path in tmp_path.joinpath("run").rglob("*") if path.is_file()}
    (shop / "docs" / "rome.md").write_text("# sick notes in Rome\n\nNobody knows.\n")
    build_dataset(recipe(shop), tmp_path / "run", Account())
    assert {path: path.read_bytes() for path in tmp_path.joinpath("run").rglob("*") if path.is_file()} == before


def test_a_dry_run_leaves_no_dataset_for_another_recipe(shop: Path, tmp_path: Path) -> None:
    run_stages(recipe(shop, per_file=3), tmp_path / "run", ("gen-data",), spending=Spending(dry_run=True))
    for folder in ("run", "other"):
        run_stages(recipe(shop, per_file=1), tmp_path / folder, ("gen-data",))
    questions = [read_dataset(tmp_path / folder / "dataset").questions for folder in ("run", "other")]
    assert questions[0] == questions[1]


def test_a_chat_model_is_asked_about_every_file_of_every_repository(
    endpoint: ScriptedEndpoint, shop: Path, office: Path, tmp_path: Path
) -> None:
    endpoint.reply = good
    counts: list[tuple[int, int]] = []
    build_dataset(
        remote(endpoint, shop, office), tmp_path / "run", Account(), lambda done, total, _: counts.append((done, total))
    )
    assert counts == [(0, 2), *((done, 8) for done in range(9))]
    questions = [row for rows in read_dataset(tmp_path / "run" / "dataset").questions.values() for row in rows]
    assert (len(endpoint.requests), len(questions)) == (8, 16)
    asked = {(row.repository, row.file, row.question, row.answer) for row in questions}
    assert ("shop", "docs/cairo.md", "Where are sick notes in Cairo?", "Nobody.") in asked
    assert ("office", "docs/cairo.md", "Is Cairo where nobody knows hourly wages?", "Yes.") in asked
    assert endpoint.requests[0].body["max_tokens"] > 200  # room for all questions, although the endpoint says 10
    asked_about(endpoint)
    few = build(recipe(shop, writer="openai", files=3, endpoint={"base_url": endpoint.url}), tmp_path / "few")
    assert len({row.file for row in few}) == len(asked_about(endpoint)) == 3


def test_paid_replies_are_asked_again_only_if_something_changed(
    endpoint: ScriptedEndpoint, shop: Path, office: Path, tmp_path: Path
) -> None:
    endpoint.reply = good
    run = tmp_path / "run"
    endpoint.faults.extend(["none"] * 6 + ["401"])
    with pytest.raises(WorkFailed, match=r"docs/cairo\.md"):
        build_dataset(remote(endpoint, shop, office), run, Account())
    assert not (run / "dataset").exists()
    assert asked_about(endpoint) == [name.title() for name in (*CITIES, *CITIES[:3])]
    build(remote(endpoint, shop, office), run)
    assert asked_about(endpoint) == ["Cairo", "Dublin"]
    build(remote(endpoint, shop, office, concurrency=3, timeout_s=5.0, max_attempts=2), run)
    assert asked_about(endpoint) == []
    (shop / "docs" / "athens.md").write_text("# sick notes in Rome\n\nNobody knows.\n")
    assert "Where are sick notes in Rome?" in {row.question for row in build(remote(endpoint, shop), run)}
    assert asked_about(endpoint) == ["Rome"]
    for changes in ({"model": "other"}, {"temperature": 0.5}, {"max_tokens": 900}, {"per_file": 3}):
        build(remote(endpoint, shop, **changes), run)
        assert len(asked_about(endpoint)) == len(CITIES)


def test_a_reply_without_a_question_is_asked_again_once_with_the_reason(
    endpoint: ScriptedEndpoint, shop: Path, tmp_path: Path
) -> None:
    endpoint.faults.extend(["500", "empty", "truncated"])  # none of them counts as such a reply
    endpoint.reply = lambda chat: "How interesting." if len(chat) == 2 or city(chat) == "Athens" else good(chat)
    for _ in range(2):
        assert len(build(remote(endpoint, shop, max_attempts=5), tmp_path / "run")) == 6
        assert len(endpoint.requests) == 3 + 8
    chat = endpoint.requests[-1].chat
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "user"]
    assert chat[2]["content"] == "How interesting."
    assert "QUESTION 1" in chat[3]["content"]
