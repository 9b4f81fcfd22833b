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


def walk(sandbox: Sandbox, *actions: str, **options) -> Walk:
    """A walk after ``actions``."""
    made = Walk(sandbox.view(), **{"page": 20, "output": 200, "listing": True, **options})
    for action in actions:
        made.run(action)
    return made


def many(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"file{number:03d}.txt").touch()
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
    kept = walk(shop, keep=lambda path: path != PurePosixPath("people"))
    assert (kept.actions, kept.text) == (("id README.md", "cat README.md"), "Folder: /\nHere: README.md")


def test_a_large_folder_is_shown_as_ranges_that_cd_and_ls_leave(tmp_path):
    many(tmp_path / "shop" / "large" / "inner", 1)
    for folder in (tmp_path / "shop", tmp_path / "shop" / "large"):
        for number in range(3):
            (folder / f"{number}.txt").touch()
    with Sandbox(tmp_path / "shop") as sandbox:
        first, second = ranges = ("ls large..0.txt", "ls 1.txt..2.txt")
        here = walk(sandbox, page=2)
        assert here.actions == ranges
        assert here.text == "Folder: /\nHere: large..0.txt 1.txt..2.txt"
        file = PurePosixPath("large/inner/file000.txt")
        assert [walk(sandbox, *at, page=2).step_towards(file) for at in ((), [first], [second])] == [
            first,
            "cd large",
            "ls",
        ]
        here = walk(sandbox, first, "cd large", "ls inner..0.txt", page=2)
        assert here.actions == ("id 0.txt", "cd inner", "cd ..", "ls", "cat 0.txt")
        assert here.text == "Folder: /large\nHere: inner/ 0.txt"
        assert walk(sandbox, first, "cd large", "ls inner..0.txt", "cd ..", page=2).actions == ranges


@pytest.mark.parametrize("count", [21, 405])
def test_the_ranges_of_a_folder_hold_every_entry_once_and_narrow_it_within_a_logarithm(tmp_path, count):
    def files(*actions):
        here = walk(sandbox, *actions)
        assert len(here.actions) <= 2 * 20 + 2
        inner = [action for action in here.actions if action.startswith("ls ")]
        assert len(actions) + bool(inner) <= math.ceil(math.log(count, 20))
        found = [action for action in here.actions if action.startswith("id ")]
        return found + [file for action in inner for file in files(*actions, action)]

    with Sandbox(many(tmp_path / "large", count)) as sandbox:
        assert files() == [f"id file{number:03d}.txt" for number in range(count)]


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
