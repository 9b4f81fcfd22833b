"""The made-up company: what a seed draws, and words by which each question has one file."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath

import pytest

from reflectrl.core import InvalidInput
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.ambiguity import content_words
from reflectrl.envs.auto_explore.company import plan_company, write_company
from reflectrl.envs.auto_explore.company.catalog import (
    CITIES,
    COASTS,
    COLLEAGUES,
    DEPARTMENTS,
    DRINKS,
    GROUPS,
    MARKDOWN,
    SCREENS,
    SERVICES,
    SIZES,
    TABLE,
)
from reflectrl.envs.auto_explore.company.texts import folder_files
from reflectrl.envs.auto_explore.dataset import ask_about
from reflectrl.envs.auto_explore.questions import write_questions

SUBJECTS = [subject for department in DEPARTMENTS for subject in (department.own, *department.topics)]
POOLS = (CITIES, DRINKS, SERVICES)
SUB_TOPICS = (GROUPS, COASTS, SCREENS)
ROOT = {"README.md", "directory.csv", "handbook.md"}


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    folder = tmp_path_factory.mktemp("companies") / "nano"
    write_company(folder)
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def words(text):
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()))


def test_the_seed_draws_the_facts_and_in_a_full_company_the_files_but_never_the_subjects(nano, tmp_path):
    for seed in (0, 1):
        write_company(tmp_path / str(seed), seed=seed)
    first, again, other = (
        {name: path.read_bytes() for name, path in files(folder).items()}
        for folder in (nano, tmp_path / "0", tmp_path / "1")
    )
    assert again == first
    assert list(other) == list(first)
    assert {name for name in first if first[name] == other[name]} == {"README.md", "handbook.md"}
    plans = [plan_company("full", seed=seed) for seed in (0, 1)]
    subjects, entities = zip(*([(f.path, f.subject), f.entities] for f in plans[0]), strict=True)
    assert subjects == tuple((folder.path, folder.subject) for folder in plans[1])
    assert entities != tuple(folder.entities for folder in plans[1])


def test_a_nano_company_has_eight_files_in_each_of_thirty_folders_and_three_in_the_root(nano):
    found = Counter(name.rpartition("/")[0] for name in files(nano))
    assert found.pop("") == 3
    assert set(found.values()) == {8}
    assert Counter(folder.count("/") + 1 for folder in found) == {1: 10, 2: 20}
    suffixes = Counter(path.suffix for path in nano.glob("*/**/*.*"))
    assert suffixes == {".md": 120, ".csv": 64, ".py": 16, ".js": 16, ".go": 8, ".java": 8, ".sql": 8}
    pools = {MARKDOWN: CITIES, TABLE: DRINKS}  # all folders of a kind hold the same entities
    assert all(set(folder.entities) == {*pools.get(folder.subject.kind, SERVICES)[:8]} for folder in plan_company())
    departments = [line.partition(",")[0] for line in (nano / "directory.csv").read_text().splitlines()[1:]]
    assert departments == [department.own.name for department in DEPARTMENTS]


def test_the_vocabulary_distinguishes_every_name_and_aspect_from_all_others():
    names = [*(subject.name for subject in SUBJECTS), *(word for pool in (*POOLS, *SUB_TOPICS) for word in pool)]
    assert [name for name in names if not re.fullmatch("[a-z]+", name)] == []
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert [len(pool) for pool in POOLS] == [60, 60, 60]
    aspects = [aspect for subject in SUBJECTS for aspect in subject.aspects]
    assert [aspect for aspect in aspects if not re.fullmatch("[a-z]+( [a-z]+){1,2}", aspect)] == []
    spoken = Counter(word for aspect in aspects for word in words(aspect) - {"the"})
    assert [word for word, times in spoken.items() if times > 1] == []
    assert set(spoken).isdisjoint({*names, *words(" ".join(COLLEAGUES))})


def check_questions(path, text, folder, entity):
    """One question an aspect, after one about the whole of code: names subject, sub-topic, aspect and entity only."""
    asked = write_questions(str(path), text)
    for (question, _), aspect in zip(asked[-3:], folder.subject.aspects, strict=True):
        named = f"{folder.subject.name} {folder.group} {entity} {aspect}"
        assert content_words(question) == content_words(named), path
        assert aspect in question.lower(), path
        assert entity.title() in question, path


def test_each_aspect_of_a_file_is_a_question(nano):
    for folder in plan_company():
        for path, text in folder_files(folder, SIZES["nano"], 0):
            assert (nano / path).read_text() == text
            check_questions(path, text, folder, path.stem)
    dataset = ask_about({"company": nano}, write_questions, per_file=9, seed=0)
    # the eight files of software/ as a whole: paths below it hold the same words
    assert dataset.left_out["questions"] == {"ambiguous": 8}
    asked = Counter(question.file for split in dataset.questions.values() for question in split if question.depth)
    assert Counter(asked.values()) == {3: 192, 4: 48}


def test_the_size_of_a_full_company():
    plan, size = plan_company("full"), SIZES["full"]
    assert Counter(len(folder.path) for folder in plan) == {1: 10, 2: 40, 3: 160}
    assert sum(len(folder.entities) for folder in plan) == 3360
    characters, entries = 0, Counter({(): len(ROOT)})
    for folder in plan:
        path, text = next(folder_files(folder, size, 0))
        characters += len(text) * len(folder.entities)
        check_questions(path, text, folder, folder.entities[0])
        entries[folder.path] += len(folder.entities)
        entries[folder.path[:-1]] += 1
    assert 11e6 < characters / 4 < 13e6
    assert max(entries.values()) <= 20  # one page of the walk


def test_what_is_no_new_company_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InvalidInput, match=folder.name):
            write_company(folder)
    with pytest.raises(InvalidInput, match="'full'"):
        write_company(tmp_path / "company", size="ful")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_questions_by_content_name_no_file():
    env = AutoExplore("company:nano", output=900)
    tasks = env.tasks("test_by_content")
    assert len(tasks) > 40
    assert {task.options["file"] for task in tasks} <= {task.options["file"] for task in env.tasks("test")}
    for task in tasks:
        path = PurePosixPath(task.options["file"])
        words = content_words(task.options["question"])
        assert not words & content_words(str(path.with_suffix("")))
        env.reset(seed=0, options={"task": task})
        while env.expert() != f"id {path.name}":
            env.step(env.expert())
        shown, *_ = env.step(f"cat {path.name}")
        assert words <= content_words(shown.partition("Result: ")[2])
