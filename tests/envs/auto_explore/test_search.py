"""Searching: the ranking, the commands it adds, what they show, and the expert's use of them."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from reflectrl.core import Task, check_env
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import Dataset
from reflectrl.envs.auto_explore.libraries import Library
from reflectrl.envs.auto_explore.search import MAX_FOUND

FILES = {
    "README.md": "# The shop\n\nWelcome.\nOpen daily.\n",
    "people/pay.md": "# Wages\n\nWages are paid monthly, says Wanda.\n",
    "people/leave/notes.md": "# Absence\n\nWhoever is ill writes to Wanda.\n\nHer kettle sings at noon.\n",
    "stock/beans.md": "# Beans\n\nGreen beans are roasted.\n",
    "stock/kettles.csv": "kettle,price\nred,3\nblue,4\n",
    **{f"stock/old/{name}.md": f"# Old {name}\n\nThis is an old price of {name}.\n" for name in "abcdef"},
}
QUESTION = "Whose kettle sings, and what is the price? Wanda knows its wages; xylophone!"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / name).write_text(text)
    return tmp_path / "shop"


def begin(shop: Path, file: str | None, question: str = QUESTION, **options) -> AutoExplore:
    settings = {"tools": ["search"], "listing": False, "output": 60, **options}
    env = AutoExplore(Library(Dataset({}, {"shop": shop})), **settings)
    env.reset(seed=0, options={"task": Task("t", {"repository": "shop", "question": question, "file": file})})
    return env


def menu(env: AutoExplore, verb: str) -> list[str]:
    return [action.removeprefix(f"{verb} ") for action in env.observation.actions if action.startswith(f"{verb} ")]


# ---- ranking ---------------------------------------------------------------------------------------------------------


def test_okapi_by_hand():
    texts = {"b": "tea", "a": "tea", "long": "tea and many more words than that", "people/sick_notes.md": "milk"}
    assert BM25(texts).ranking({"tea"}) == ["a", "b", "long", "people/sick_notes.md"]
    assert BM25(texts).ranking({"sick", "notes"})[0] == "people/sick_notes.md"
    equally_long = {"x1": "beans tea milk", "x2": "roast roast roast", "x3": "water water water"}
    assert BM25(equally_long).ranking({"beans", "roast"}) == ["x2", "x1", "x3"]  # 3 / 4.2 against 1 / 2.2


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_words_of_the_question_can_be_searched_for(shop):
    env = begin(shop, None)
    assert menu(env, "search for") == ["all words", "sings", "wages", "kettle", "wanda", "price"]
    assert env.observation.text == "Folder: /"
    env.step("search for wanda")
    assert menu(env, "search for") == ["all words", "sings", "wages", "kettle", "price"]
    env.step("search for all words")
    assert menu(env, "search for") == []
    assert "Found by wanda sings wages kettle price:" in env.observation.text
    many = " ".join(word for text in FILES.values() for word in text.split())
    assert len(menu(begin(shop, None, many), "search for")) == 1 + 8


def test_a_search_shows_a_line_of_each_file(shop):
    env = begin(shop, None)
    env.step("search for kettle")
    assert env.observation.text == (
        "Folder: /\nFound by kettle:\n/people/leave/notes.md: Her kettle sings at noon.\n"
        "/stock/kettles.csv: kettle,price"
    )
    assert env.observation.actions[:2] == ("id /people/leave/notes.md", "id /stock/kettles.csv")
    env.step("search for wanda")
    assert env.observation.text.splitlines()[1:3] == [
        "Found by kettle wanda:",
        "/people/leave/notes.md: Her kettle sings at noon.",
    ]
    env.step("search for price")
    assert len(menu(env, "id")) - 1 == MAX_FOUND  # README.md lies here
    env.step("id /people/leave/notes.md")
    assert env.answer == "people/leave/notes.md"


def test_the_line_with_most_words_of_the_question_is_shown(shop):
    (shop / "shop.txt").write_text("kettle\nwhat is the price\nthe kettle and its price\nprice\n")
    env = begin(shop, None)
    env.step("search for kettle")
    assert "/shop.txt: the kettle and its price" in env.observation.text
    env.step("search for price")
    assert "/shop.txt: the kettle and its price" in env.observation.text


def test_files_rank_by_their_best_line_and_then_by_bm25(shop):
    """BM25 prefers the short file and the one that repeats words; the question's sentence is a line of the long one."""
    (shop / "often.md").write_text("tea tea tea\nsteep steep\n")
    (shop / "long.md").write_text(f"How long to steep the tea is said here.\n{'So it goes on. ' * 200}\n")
    env = begin(shop, None, "How long do I steep the tea?")
    assert BM25({path.name: path.read_text() for path in shop.glob("*.md")}).holding(["steep", "tea"])[0] == "often.md"
    env.step("search for steep")
    assert env.observation.text.splitlines()[2:] == [
        "/long.md: How long to steep the tea is said here.",
        "/often.md: steep steep",
    ]
    (shop / "aa.md").write_text("steep, tea")
    (shop / "zz.md").write_text("steep tea, steep tea")
    env = begin(shop, None, "How do I steep the tea?")
    env.step("search for all words")
    assert menu(env, "id")[:4] == ["/long.md", "/zz.md", "/aa.md", "/often.md"]


def test_what_was_found_is_read_from_anywhere_once(shop):
    env = begin(shop, None, tools=["search", "head"])
    for action in ("search for sings", "cd people", "cd leave"):
        env.step(action)
    assert menu(env, "id") == menu(env, "head") == menu(env, "open") == ["/people/leave/notes.md"]
    assert menu(env, "cat") == []
    env.step("head /people/leave/notes.md")
    assert env.observation.text.endswith("Result: # Absence Whoever is ill writes to Wanda.")  # three lines
    assert menu(env, "head") == []
    env.step("open /people/leave/notes.md")
    assert env.observation.text.endswith("Result: # Absence Whoever is ill writes to Wanda. Her kettle sings a [cut]")
    assert menu(env, "open") == []
    env.step("cd ..")
    assert menu(env, "head") == menu(env, "cat") == ["pay.md"]
    env.step("cat pay.md")
    assert menu(env, "head") == []


def test_links_out_are_not_found_and_odd_files_by_their_text(shop, tmp_path):
    (tmp_path / "secret.md").write_text("zebra")
    (shop / "link.md").symlink_to(tmp_path / "secret.md")
    (shop / "up").symlink_to(tmp_path)
    (shop / ".hidden.md").write_text("zebra")
    (shop / "zebra.bin").write_bytes(b"\0tiger")
    (shop / "huge.txt").write_bytes(b"lion\n" + b"x" * (1 << 20) + b" tiger")
    env = begin(shop, None, "Zebra, tiger, lion?")
    assert menu(env, "search for") == ["all words", "zebra", "lion"]
    env.step("search for zebra")
    env.step("search for lion")
    assert env.observation.text.splitlines()[2:] == ["/huge.txt: lion", "/zebra.bin"]
    env.step("open /zebra.bin")
    assert env.observation.text.endswith("Result: /zebra.bin is binary, 6 bytes")


@pytest.mark.slow
@pytest.mark.parametrize("tools", [["head"], ["search", "head"]], ids=str)
def test_it_passes_our_checks_with_tools(tools):
    env = AutoExplore(tools=tools, page=3, output=30, leave_out=0.3)
    check_env(env, episodes=2)
    rng, longest = random.Random(0), 0
    for task in env.tasks("train")[:20]:
        env.reset(seed=1, options={"task": task})
        for _ in range(6):
            longest = max(longest, len(env.observation.actions))
            env.step(rng.choice([action for action in env.observation.actions if not action.startswith("id ")]))
    assert 2 * 3 + 2 < longest <= env.max_actions


# ---- the expert ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["people/leave/notes.md", "stock/beans.md", "README.md"])
def test_the_experts_way_is_a_shortest_one(shop, file):
    env = begin(shop, file)
    while (action := env.expert()) is not None:
        left = shortest(env, 3)
        for other in env.observation.actions:
            at = env.snapshot()
            env.step(other)
            reads = other.startswith(("open ", "cat ")) and other.endswith(file.rpartition("/")[2])
            if not other.startswith("id "):
                assert env.mistaken() == (not reads and shortest(env, left) >= left), other
            env.restore(at)
        env.step(action)
        assert env.mistaken() is False
        assert env.answer == file if left == 1 else shortest(env, left) == left - 1


def shortest(env: AutoExplore, limit: int) -> int:
    """Length of a shortest way from here, by trying all commands; ``limit`` if there is none below."""
    here = env.snapshot()
    found = next((length for length in range(1, limit) if reaches(env, length)), limit)
    env.restore(here)
    return found


def reaches(env: AutoExplore, length: int) -> bool:
    """Return whether some way of ``length`` commands names the file."""
    here = env.snapshot()
    for action in env.observation.actions:
        env.restore(here)
        _, _, _, _, info = env.step(action)
        if info["success"] or (length > 1 and env.answer is None and reaches(env, length - 1)):
            return True
    return False


def test_reflections_by_hand(shop):
    env = begin(shop, "people/leave/notes.md", tools=["search", "head"])
    assert env.expert() == "search for sings"
    said = [env.reflection()]
    for action in ("search for price", "search for sings", "head /people/leave/notes.md", "cd people"):
        env.step(action)
        said.append(env.reflection())
    assert said == [
        "Not found yet: it tells of sings.",
        "Mistake. Not found yet: it tells of sings.",
        "Good. /people/leave/notes.md fits: kettle, sings.",
        "Good. /people/leave/notes.md fits: kettle, sings, wanda.",
        "Mistake. /people/leave/notes.md fits: kettle, sings.",
    ]
    assert begin(shop, "README.md").reflection() == "The file is in this folder."  # where a search is not shorter


def test_distractors_that_are_left_out_are_not_found(shop):
    env = begin(shop, "people/leave/notes.md", leave_out=0.99)
    env.step("search for price")
    assert env.observation.text.endswith("Found by price: nothing")
    env.step("search for kettle")
    assert menu(env, "id")[0] == "/people/leave/notes.md"
    assert not any("stock" in action for action in env.observation.actions)


def test_instructions_tell_of_the_tools_there_are():
    plain, search, head = (AutoExplore(tools=tools).instructions for tools in ([], ["search"], ["head"]))
    assert plain == AutoExplore.instructions
    assert "search for" in search.removeprefix(plain)
    assert "head" in head.removeprefix(plain)


# ---- without tools ---------------------------------------------------------------------------------------------------


def test_without_tools_texts_and_menus_are_pinned():
    digest = hashlib.sha256()
    for options in ({"output": 40, "listing": False}, {"page": 3, "leave_out": 0.3}):
        env, rng = AutoExplore(**options), random.Random(0)
        digest.update(f"{env.instructions} {env.max_actions}".encode())
        for number, task in enumerate(env.tasks("train")[:60]):
            env.reset(seed=number, options={"task": task})
            over = False
            while not over:
                shown = env.observation
                digest.update(f"{shown.full_text} {shown.actions} {env.hints()}".encode())
                _, reward, *ends, _ = env.step(rng.choice([env.expert(), *shown.actions]))
                over = any(ends)
                digest.update(f"{reward} {env.mistaken()}".encode())
    assert digest.hexdigest() == "ab6b36a60810c8d563e09659dbba5215360909e1cb0875ba369900f401f1fe46"
