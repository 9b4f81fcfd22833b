"""Walk: the text of a search and the commands that are legal in it, on real folders."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

import pytest

from reflectrl.core import WorkFailed
from reflectrl.envs.auto_explore.sandbox import Sandbox
from reflectrl.envs.auto_explore.walk import Walk


@pytest.fixture
def shop(tmp_path):
    folder = tmp_path / "shop"
    for path, text in {
        "README.md": "# the shop",
        "people/leave/athens.md": "# leave in athens\n\nSick   notes go to Wanda.",
        "people/leave/two words.md": "quoted",
        "people/pay.csv": "month,wage\n1,2\n",
        "people/.secret": "hidden",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with Sandbox(folder) as sandbox:
        yield sandbox


def walk(sandbox: Sandbox, **options) -> Walk:
    return Walk(sandbox.view(), **{"page": 20, "output": 200, "listing": True, **options})


def many(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"file{number:05d}.txt").touch()
    return folder


def test_the_text_and_the_menu_follow_the_commands(shop):
    here = walk(shop, output=30)
    assert here.text == "Folder: /\nHere: people/ README.md"
    assert walk(shop, listing=False).text == "Folder: /"
    assert here.actions == ("id README.md", "cd people", "cat README.md")
    here.run("cat README.md")
    assert here.text.endswith("\nResult: # the shop")
    assert here.actions == ("id README.md", "cd people")  # a file is read once
    here.run("cd people")
    assert here.actions == ("id pay.csv", "cd leave", "cd ..", "cat pay.csv")
    here.run("cd leave")
    assert "cat 'two words.md'" in here.actions
    here.run("cat 'two words.md'")
    assert here.result == "quoted"
    assert "cat 'two words.md'" not in here.actions
    here.run("cat athens.md")
    assert here.result == "# leave in athens Sick notes g [cut]"
    taken = []
    while here.answer is None:
        taken.append(here.step_towards(PurePosixPath("README.md")))
        here.run(taken[-1])
    assert (taken, here.answer) == (["cd ..", "cd ..", "id README.md"], "README.md")


def test_the_commands_stand_in_one_order_whatever_there_is(tmp_path):
    many(tmp_path / "shop", 3)
    many(many(tmp_path / "shop" / "large", 3) / "inner", 1)
    with Sandbox(tmp_path / "shop") as sandbox:
        here = walk(sandbox, page=2)
        assert here.actions == ("ls large..file00000.txt", "ls file00001.txt..file00002.txt")
        assert here.text == "Folder: /\nHere: large..file00000.txt file00001.txt..file00002.txt"
        for action in (here.actions[0], "cd large", "ls inner..file00000.txt"):
            here.run(action)
        assert here.actions == ("id file00000.txt", "cd inner", "cd ..", "ls", "cat file00000.txt")
        assert here.text == "Folder: /large\nHere: inner/ file00000.txt"


def test_entries_that_are_not_kept_do_not_exist(shop):
    here = walk(shop, keep=lambda path: path != PurePosixPath("people"))
    assert here.actions == ("id README.md", "cat README.md")
    assert "people" not in here.text


@pytest.mark.parametrize("count", [21, 400, 1003])
def test_a_large_folder_is_narrowed_by_ranges_within_a_logarithm(tmp_path, count):
    with Sandbox(many(tmp_path / "large", count)) as sandbox:
        here = walk(sandbox)
        target = PurePosixPath(f"file{count * 2 // 3:05d}.txt")
        steps = 0
        while not here.step_towards(target).startswith("id"):
            assert len(here.actions) <= 2 * 20 + 2
            assert all(len(action.splitlines()) == 1 for action in here.actions)
            here.run(here.step_towards(target))
            steps += 1
        assert steps <= math.ceil(math.log(count, 20))
        assert here.step_towards(target) in here.actions


def test_the_ranges_of_a_folder_hold_every_entry_once(tmp_path):
    with Sandbox(many(tmp_path / "large", 47)) as sandbox:
        seen = []
        for action in walk(sandbox).actions:
            here = walk(sandbox)
            here.run(action)
            seen += [name for name in here.actions if name.startswith("id ")]
        assert seen == [f"id file{number:05d}.txt" for number in range(47)]


def test_a_file_that_has_gone_is_a_result_and_the_way_to_it_an_error(shop):
    here = walk(shop)
    (shop.root / "README.md").unlink()
    here.run("cat README.md")
    assert "README.md" in here.result
    assert here.answer is None
    here.run("cd people")
    assert here.step_towards(PurePosixPath("README.md")) == "cd .."
    here.run("cd ..")
    with pytest.raises(WorkFailed, match=r"README\.md"):
        here.step_towards(PurePosixPath("README.md"))
    shop.close()
    with pytest.raises(WorkFailed):
        here.run("cd people")


def test_a_wrong_range_is_left_by_ls_and_by_cd(tmp_path):
    many(tmp_path / "shop", 1)
    many(tmp_path / "shop" / "large", 50)
    with Sandbox(tmp_path / "shop") as sandbox:
        here = walk(sandbox)
        here.run("cd large")
        first = here.actions[0]
        here.run(first)
        assert here.step_towards(PurePosixPath("large/file00049.txt")) == "ls"
        here.run("ls")
        assert here.actions[0] == first
        here.run(first)
        here.run("cd ..")
        assert here.cwd == PurePosixPath(".")
