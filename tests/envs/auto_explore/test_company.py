"""The made-up company: what a seed draws, and words by which each question has one file."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter, defaultdict
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
    SCREENS,
    SERVICES,
    TABLE,
)
from reflectrl.envs.auto_explore.company.plan import SIZES
from reflectrl.envs.auto_explore.company.write import folder_files

SUBJECTS = [subject for department in DEPARTMENTS for subject in (department.own, *department.topics)]
POOLS = (CITIES, DRINKS, SERVICES)
SUB_TOPICS = (GROUPS, COASTS, SCREENS)
ROOT = {"README.md", "directory.csv", "handbook.md"}
HEADINGS = {
    ".md": r"^## (.+)$",
    ".csv": r"(?<=,)([a-z][^,\n]+)",
    ".py": r'^    """(.+)\.$',
    ".js": r"^// (.+)\.\n// .+\.\nexport function \w+\(value\) \{$",
    ".go": r"^// (.+)\.\n// .+\.\nfunc \w+\(value float64\) float64 \{$",
    ".java": r"^    // (.+)\.\n    // .+\.\n    static double \w+\(double value\) \{$",
    ".sql": r"^-- (.+)\.\n-- .+\.\nCREATE FUNCTION \w+\(amount NUMERIC\) RETURNS NUMERIC AS",
}
"""Patterns of what is asked about: headings of a policy, columns of a table, what functions do."""
LINKING = {"for", "in", "of", "on", "the"}


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    folder = tmp_path_factory.mktemp("companies") / "nano"
    write_company(folder)
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def words(text):
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()))


@pytest.fixture(scope="module")
def planned(nano):
    """Planned folder, entity and written file of each file below the root's folders, by path without suffix."""
    paths = {name.rpartition(".")[0]: path for name, path in files(nano).items() if name not in ROOT}
    plan = {
        "/".join([*folder.path, entity]): (folder, entity) for folder in plan_company() for entity in folder.entities
    }
    assert sorted(paths) == sorted(plan)
    return {name: (*plan[name], paths[name]) for name in plan}


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


def test_a_nano_company_has_eight_files_in_each_of_thirty_folders_and_three_in_the_root(nano, planned):
    assert {path.name for path in nano.iterdir() if path.is_file()} == ROOT
    found = Counter(name.rpartition("/")[0] for name in planned)
    assert set(found.values()) == {8}
    assert Counter(folder.count("/") + 1 for folder in found) == {1: 10, 2: 20}
    suffixes = Counter(path.suffix for _, _, path in planned.values())
    assert suffixes == {".md": 120, ".csv": 64, ".py": 16, ".js": 16, ".go": 8, ".java": 8, ".sql": 8}
    pools = {".md": CITIES, ".csv": DRINKS}  # all folders of a kind hold the same entities
    assert all(entity in pools.get(path.suffix, SERVICES)[:8] for _, entity, path in planned.values())
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


def test_a_file_speaks_of_its_own_aspects_entity_and_folder_and_of_no_other(nano, planned):
    of_aspects = {word for subject in SUBJECTS for aspect in subject.aspects for word in words(aspect) - {"the"}}
    entities = {word for pool in POOLS for word in pool}
    topics = {subject.name for subject in SUBJECTS}.union(*SUB_TOPICS)
    holders = defaultdict(set)
    for path in files(nano).values():
        for word in words(path.read_text()):
            holders[word].add(path)
    for folder, entity, path in planned.values():
        text = path.read_text()
        own = words(" ".join(folder.subject.aspects)) - {"the"} | {entity}
        assert words(text) & (of_aspects | entities) == own, path
        assert path.suffix != ".md" or words(text) & topics == {path.parent.name}, path
        check_headings(path, text, folder, entity)
        line = text.partition("\n")[0]
        assert entity.title() in line, path
        assert folder.subject.kind == TABLE or (len(line) < 100 and folder.subject.name.title() in line), path
        for aspect in folder.subject.aspects:  # which, with the entity, stands in no other file
            assert set.intersection(*(holders[word] for word in (*words(aspect) - {"the"}, entity))) == {path}, aspect


def check_headings(path, text, folder, entity):
    """One an aspect; each names subject, sub-topic and aspect in words, the entity as a name, and nothing else."""
    headings = re.findall(HEADINGS[path.suffix], text, re.MULTILINE)
    for heading, aspect in zip(headings, folder.subject.aspects, strict=True):
        named = words(f"{folder.subject.name} {folder.group} {entity} {aspect}")
        assert words(heading) - LINKING == named - LINKING, path
        assert aspect in heading.lower(), path
        assert entity.title() in heading, path


def test_python_files_parse_and_tables_have_a_number_an_aspect_and_month(planned):
    for _, _, path in planned.values():
        if path.suffix == ".py":
            tree = ast.parse(path.read_text())
            functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            assert len(functions) == 3
            assert all(map(ast.get_docstring, (tree, *functions)))
        if path.suffix == ".csv":
            header, *rows = csv.reader(path.read_text().splitlines())
            assert header[0] == "month"
            assert len({row[0] for row in rows}) == len(rows) == 12
            assert all(len(row) == 4 and min(map(float, row[1:])) > 0 for row in rows)


def test_a_full_company_has_thousands_of_files_in_three_levels_and_about_twelve_million_tokens():
    plan, size = plan_company("full"), SIZES["full"]
    assert Counter(len(folder.path) for folder in plan) == {1: 10, 2: 40, 3: 160}
    assert sum(len(folder.entities) for folder in plan) == 3360
    characters, entries = 0, Counter({(): len(ROOT)})
    for folder in plan:
        path, text = next(folder_files(folder, size, 0))
        characters += len(text) * len(folder.entities)
        check_headings(path, text, folder, folder.entities[0])
        entries[folder.path] += len(folder.entities)
        entries[folder.path[:-1]] += 1
    assert 11e6 < characters / 4 < 13e6
    assert max(entries.values()) <= 20  # one page of the walk


def test_a_full_company_never_asks_one_question_of_a_topic_and_of_its_sub_topics():
    plan = plan_company("full")
    asked = Counter((folder.subject.name, folder.group, entity) for folder in plan for entity in folder.entities)
    assert set(asked.values()) == {1}
    of_topics = {(folder.path, entity) for folder in plan for entity in folder.entities if not folder.group}
    below = {(folder.path[:-1], entity) for folder in plan for entity in folder.entities if folder.group}
    assert of_topics.isdisjoint(below)


def test_what_is_no_new_company_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InvalidInput, match=folder.name):
            write_company(folder)
    with pytest.raises(InvalidInput, match="'full'"):
        write_company(tmp_path / "company", size="ful")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_questions_by_content_name_neither_file_nor_folder_and_whole_files_answer_them():
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
