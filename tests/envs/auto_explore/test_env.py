"""AutoExplore: rewards, ends, expert and hints, on real folders."""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.dataset import ask_about, write_dataset
from reflectrl.envs.auto_explore.libraries import open_library
from reflectrl.envs.auto_explore.questions import write_questions

SUBJECTS = {"": "opening hours", "people": "hourly wages", "people/leave": "sick notes"}
CITIES = ("athens", "berlin", "cairo", "dublin")


def make_shop(folder: Path) -> Path:
    """Three folders, one in the other, each with a file for each city."""
    for where, subject in SUBJECTS.items():
        (folder / where).mkdir(parents=True, exist_ok=True)
        for city in CITIES:
            (folder / where / f"{city}.md").write_text(f"# {subject} in {city.title()}\n\nNobody knows.\n")
    return folder


@pytest.fixture
def shop(tmp_path):
    return make_shop(tmp_path / "shop")


def every_task(env):
    return [task for split in SPLITS for task in env.tasks(split)]


def begin(env, file, **options):
    """Start a task about ``file``, of which the splits need not have one."""
    task = Task("t", {"repository": "shop", "question": "Where are sick notes?", "file": file, **options})
    return env.reset(seed=0, options={"task": task})


def play(env, *actions):
    """The last step of ``actions``, and what is reflected on each of them."""
    said = []
    for action in actions:
        done = env.step(action)
        said.append(env.reflection())
    return done, said


def play_expert(env):
    """The actions that the expert takes from here."""
    actions, over = [], False
    while not over:
        actions.append(env.expert())
        _, _, terminated, truncated, info = env.step(actions[-1])
        over = terminated or truncated
    assert info["success"]
    return actions


def commands_to(file):
    return [*(f"cd {folder}" for folder in Path(file).parent.parts), f"id {Path(file).name}"]


# ---- it is an environment --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"page": 3, "listing": False, "output": 7, "leave_out": 0.3}], ids=str)
def test_it_passes_our_checks(shop, options):
    check_env(AutoExplore(str(shop), **options), episodes=9)
    check_env(AutoExplore(**options), episodes=2)


@pytest.mark.parametrize(
    ("option", "value", "fact"),
    [
        ("page", 1, "page"),
        ("output", 0, "output"),
        *(("leave_out", value, "leave_out") for value in (1.0, float("nan"))),
        ("tools", ["find"], "search"),
        ("dataset", "", "''"),
        ("dataset", "company:nan", "'company:nan'"),
    ],
)
def test_a_bad_option_is_refused(shop, option, value, fact):
    with pytest.raises(InvalidInput, match=fact):
        make_env("auto_explore", **{"dataset": str(shop), option: value})


# ---- tasks -----------------------------------------------------------------------------------------------------------


NOT_THERE = ("rome.md", "people", "./cairo.md", "people//cairo.md", "/cairo.md", "../shop/cairo.md", "", "\n")


def test_a_foreign_task_is_refused(shop):
    asked = {"question": "Where?"}
    for options, fact in (
        *((options, "'t'") for options in ({}, {"question": " \n"}, {"question": 3})),
        (asked, "'None'.*shop"),
        ({**asked, "repository": "shp"}, "'shp'.*'shop'"),
        *(({**asked, "repository": "shop", "file": file}, "'shop'") for file in NOT_THERE),
    ):
        with pytest.raises(InvalidInput, match=fact):
            AutoExplore(str(shop)).reset(options={"task": Task("t", options)})


def test_a_dataset_that_was_written_is_played_and_a_torn_one_refused(shop, tmp_path):
    dataset = ask_about({"shop": shop, "other": make_shop(tmp_path / "2")}, write_questions, per_file=1, seed=3)
    write_dataset(tmp_path / "data", dataset)
    shutil.copytree(tmp_path / "data", tmp_path / "torn")
    (shop / "train.jsonl").write_text('{"loss": 1}\n')  # no repository becomes a dataset by that
    assert len(AutoExplore(str(shop)).tasks("train")) == 6
    shutil.rmtree(shop)
    env = AutoExplore(dataset=str(tmp_path / "data"))
    for split, rows in dataset.questions.items():
        for task, row in zip(env.tasks(split), rows, strict=True):
            assert task.id == row.id
            text, _ = env.reset(options={"task": task})
            assert text.startswith(f"Question: {row.question}\nFolder: /\n")
            assert tuple(play_expert(env)) == row.commands
    (tmp_path / "torn" / "train.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"train\.jsonl"):
        AutoExplore(str(tmp_path / "torn"))


def test_a_source_is_asked_about_once_however_it_is_spelled(shop, tmp_path, monkeypatch):
    sections = (
        f"## {topic} for cairo\n\nUnknown.\n\n" for topic in ("fire drills", "ear plugs", "tip jars", "lost keys")
    )
    (shop / "cairo.md").write_text("".join(sections))
    library = open_library(str(shop))
    asked = Counter(task.options["file"] for split in SPLITS for task in library.tasks[split])
    assert asked == {
        str(path.relative_to(shop)): 3 if path.parent == shop and path.stem == "cairo" else 1
        for path in shop.rglob("*.md")
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for spelled in (f"{shop}/people/..", "shop", "~/shop"):
        assert open_library(spelled) is library
    shutil.copytree(shop, tmp_path / "far" / "shop")
    monkeypatch.chdir(tmp_path / "far")
    assert open_library("shop") is not library
    company, other = open_library("company:nano"), open_library("company:nano:1")
    assert open_library("company:nano") is company
    first, second = (one.sandbox("company-nano").run("cat directory.csv").output for one in (company, other))
    assert first != second


# ---- rewards and ends ------------------------------------------------------------------------------------------------


def test_rewards_by_hand(shop):
    env = AutoExplore(str(shop), horizon=30)
    for where, city in itertools.product(SUBJECTS, CITIES):
        begin(env, "people/cairo.md")
        path = PurePosixPath(where, f"{city}.md")
        *way, name = commands_to(path)
        assert [env.step(action)[1:4] for action in way] == [(-1 / 30, False, False)] * len(way)
        _, reward, terminated, truncated, info = env.step(name)
        assert (terminated, truncated, env.answer, env.expert()) == (True, False, str(path), None)
        assert info["success"] == (str(path) == "people/cairo.md")
        assert reward == (14 if info["success"] else -16) / 30


def test_the_horizon_truncates_and_costs_fifteen(shop):
    env = AutoExplore(str(shop), horizon=2)
    begin(env, "people/cairo.md")
    assert env.step("cd people")[1] == -1 / 2
    _, reward, terminated, truncated, info = env.step("cd leave")
    assert (reward, terminated, truncated, info["success"], env.answer) == (-16 / 2, False, True, False, None)
    for city, reward in (("cairo", 14 / 2), ("athens", -16 / 2)):
        begin(env, "people/cairo.md")
        done, _ = play(env, "cd people", f"id {city}.md")
        assert done[1:4] == (reward, True, False)


def test_without_a_known_answer_there_is_no_bonus(shop):
    env = AutoExplore(str(shop), horizon=3)
    for file in ({"file": None}, {}):
        env.reset(options={"task": Task("t", {"repository": "shop", "question": "Where?", **file})})
        assert (env.answer, env.expert(), env.reflection(), env.spoiler()) == (None, None, None, None)
        done, said = play(env, "cd people", "id cairo.md")
        assert said == [None, None]
        assert done[1:4] == (-1 / 3, True, False)
        assert (done[4]["success"], env.answer) == (False, "people/cairo.md")
    begin(env, None)
    done, _ = play(env, "cd people", "cd ..", "cd people")
    assert (*done[1:4], env.answer) == (-1 / 3, False, True, None)


# ---- expert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [2, 20])
@pytest.mark.parametrize("file", ["people/leave/athens.md", "berlin.md"])
def test_the_expert_is_shortest_and_reflections_name_no_command(shop, page, file):
    env = AutoExplore(str(shop), page=page, horizon=1000)

    def expert_steps(at):
        env.restore(at)
        steps = 0
        while (action := env.expert()) is not None:
            assert not re.search(rf"\b{re.escape(action)}\b", env.reflection())
            assert len(env.observation.actions) <= env.max_actions == 2 * page + 2
            env.step(action)
            assert env.mistaken() is False
            steps += 1
        assert env.answer == file
        return steps

    begin(env, file)
    assert env.mistaken() is None
    waiting, states = [env.snapshot()], set()
    while waiting:
        at = waiting.pop()
        env.restore(at)
        if env.observation.text in states:
            continue
        states.add(env.observation.text)
        steps = expert_steps(at)
        env.restore(at)
        for action in [action for action in env.observation.actions if not action.startswith("cat ")]:
            env.restore(at)
            _, _, terminated, _, info = env.step(action)
            if terminated:
                assert steps == 1 or not info["success"]
            else:
                waiting.append(env.snapshot())
                assert steps <= 1 + expert_steps(waiting[-1])
    assert len(states) == 3 if page == 20 else len(states) > 10


# ---- hints -----------------------------------------------------------------------------------------------------------


def test_reflections_by_hand(shop):
    env = AutoExplore(str(shop))
    begin(env, "people/cairo.md")
    first, (_, said) = env.reflection(), play(env, "cat dublin.md", "cd people", "cd leave", "cat cairo.md", "cd ..")
    assert [first, *said, *play(env, "cat cairo.md", "id dublin.md")[1]] == [
        "cairo is further down.",
        "Mistake. cairo is further down.",
        "Good. cairo is in this folder.",
        "Mistake. The file is not here.",
        "Mistake. The file is not here.",
        "Good. cairo is in this folder.",
        "Good. cairo is in this folder.",
        "Mistake. cairo is in this folder.",
    ]
    begin(env, "people/cairo.md")  # only the last command of this episode counts
    assert env.reflection() == "cairo is further down."
    assert env.spoiler() == "The best next action is: cd people. The file is /people/cairo.md."
    play(env, "cd people", "id cairo.md")
    assert env.spoiler() == "The file is /people/cairo.md."
    env = AutoExplore(str(shop), page=2)
    begin(env, "cairo.md")
    _, said = play(env, "ls people..athens.md", "ls", "ls berlin.md..dublin.md", "ls berlin.md..berlin.md", "ls")
    assert [words.partition(".")[0] for words in said] == ["Mistake", "Good", "Good", "Mistake", "Good"]


@pytest.mark.parametrize("listing", [True, False])
def test_the_file_s_name_is_said_only_where_the_text_shows_it(shop, listing):
    (shop / "people" / "zurich.md").write_text("# Swiss holidays\n")
    env = AutoExplore(str(shop), listing=listing)
    begin(env, "people/zurich.md")
    here = f"Good. {'zurich' if listing else 'The file'} is in this folder."
    assert env.reflection() == "The file is further down."
    _, said = play(env, "cd people", "cd leave", "cd ..", "cat zurich.md")
    assert said == [here, "Mistake. The file is not here.", here, here]


def test_the_names_on_the_way_are_secret(shop):
    env = AutoExplore(str(shop))
    begin(env, "people/leave/cairo.md")
    assert env.secrets() == ["people", "leave", "cairo"]
    (shop / "people" / "folder").mkdir()
    (shop / "people" / "folder" / "file.md").write_text("# Files\n")
    env = AutoExplore(str(shop))
    begin(env, "people/folder/file.md")
    assert env.secrets() == ["people"]


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_the_text_and_the_menu_follow_the_commands(shop):
    (shop / "people" / "two words.md").write_text("# Sick   notes\n\ngo to Wanda.\n")
    (shop / "people" / ".secret").write_text("hidden")
    env = AutoExplore(str(shop), output=20)
    text, info = begin(env, "cairo.md", question="Where  are\nsick notes?")
    assert text == f"{env.observation.task}\n{env.observation.text}"
    assert text == "Question: Where are sick notes?\nFolder: /\nHere: people/ athens.md berlin.md cairo.md dublin.md"
    names, read = ([f"{verb} {city}.md" for city in CITIES] for verb in ("id", "cat"))
    assert info["actions"] == (*names, "cd people", *read)
    play(env, "cat cairo.md")
    assert env.observation.text.endswith("\nResult: # opening hours in C [cut]")
    assert env.observation.actions == (*names, "cd people", *(name for name in read if name != "cat cairo.md"))
    play(env, "cd people", "cat 'two words.md'")
    assert env.observation.text == (
        "Folder: /people\nHere: leave/ athens.md berlin.md cairo.md dublin.md 'two words.md'\n"
        "Result: # Sick notes go to W [cut]"
    )
    assert env.observation.actions == (*names, "id 'two words.md'", "cd leave", "cd ..", *read)


def test_a_large_folder_is_shown_as_ranges_that_cd_and_ls_leave(shop):
    env = AutoExplore(str(shop), page=2)
    ranges = ("ls people..athens.md", "ls berlin.md..dublin.md")
    text, info = begin(env, "cairo.md")
    assert text.endswith("Here: people..athens.md berlin.md..dublin.md")
    assert info["actions"] == ranges
    play(env, ranges[0])
    assert env.observation.actions == ("id athens.md", "cd people", "ls", "cat athens.md")
    play(env, "ls")
    assert env.observation.actions == ranges
    play(env, ranges[0], "cd people", "ls leave..athens.md", "cd ..")
    assert env.observation.actions == ranges


@pytest.mark.parametrize("count", [21, 405])
def test_the_ranges_of_a_folder_hold_every_entry_once(shop, count):
    (shop / "many").mkdir()
    for number in range(count):
        (shop / "many" / f"file{number:03d}.txt").touch()
    env = AutoExplore(str(shop))

    def files(*actions):
        begin(env, "many/file000.txt")
        play(env, "cd many", *actions)
        menu = env.observation.actions
        assert len(menu) <= 2 * 20 + 2
        inner = [action for action in menu if action.startswith("ls ")]
        assert len(actions) + bool(inner) <= math.ceil(math.log(count, 20))
        found = [action for action in menu if action.startswith("id ")]
        return found + [file for action in inner for file in files(*actions, action)]

    assert files() == [f"id file{number:03d}.txt" for number in range(count)]


# ---- distractor leave-out --------------------------------------------------------------------------------------------


def test_leave_out_spares_the_way_to_the_answer(shop):
    env = AutoExplore(str(shop), leave_out=0.99)
    for task in every_task(env):
        env.reset(seed=0, options={"task": task})
        assert play_expert(env) == commands_to(task.options["file"])
    assert len(begin(env, None)[1]["actions"]) == 9
    env = AutoExplore(str(shop), leave_out=0.5)
    first = begin(env, "people/leave/cairo.md")[1]["actions"]
    play(env, "cd people", "cd leave", "cd ..", "cd ..")
    assert env.observation.actions == first
    assert len(first) < 9
