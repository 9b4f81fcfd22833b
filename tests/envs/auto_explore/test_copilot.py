"""A whole task on a repository: typed by a person or a chat model, played in a copy, and written back if asked to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from bubblewrap import NEEDED, programs_work
from scripted_endpoint import ScriptedEndpoint
from typer.testing import CliRunner, Result

from reflectrl.cli.app import app
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.extras import Work
from reflectrl.core.messages import BadReply, Messages
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.copilot import RepositoryCopilot, read_command
from reflectrl.envs.auto_explore.sandbox import EXECUTABLE

pytestmark = pytest.mark.skipif(not programs_work(), reason=NEEDED)
COPILOT = RepositoryCopilot(AutoExplore)
T = TypeVar("T")
EDIT = "edit shop.py\n<<<<<<< OLD\n    return 3\n=======\n    return 4\n>>>>>>> NEW\n"
CHECK = "python -\nimport shop\nprint('it is', shop.price())\n"
NOTES = "write notes.md\nThe price\n\x1b[2Jis `4`.\n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "docs").mkdir(parents=True)
    (folder / "shop.py").write_text("def price():\n    return 3\n")
    (folder / "shop.py").chmod(0o750)
    (folder / "docs" / "old.md").write_text("old\n")
    (folder / "link").symlink_to("docs")
    return folder


class Typed:
    """A model that types what it was given, and keeps what it was shown."""

    def __init__(self, *commands: str | Callable[[], str]) -> None:
        self._commands = list(commands)
        self.shown: list[str] = []

    def __call__(self, chat: Messages, read: Callable[[str], T], /) -> T:
        self.shown.append(chat[-1]["content"])
        command = self._commands.pop(0)
        typed = command if isinstance(command, str) else command()
        return read(f"```\n{typed}\n```")


def work(folder: Path | str, *commands: str | Callable[[], str], apply: bool = True, steps: int = 9) -> Work:
    return COPILOT.work_on(str(folder), "Raise the price.", Typed(*commands), steps=steps, apply=apply)


def bytes_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def command_line(*arguments: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["explore", *map(str, arguments), "--programs"], input=typed)


def test_a_person_edits_runs_and_keeps_what_was_changed(shop: Path) -> None:
    typed = f"{EDIT}END\n{CHECK}END\n{NOTES}END\npython -c \"import os; os.remove('docs/old.md')\"\nexit\n"
    before = bytes_of(shop)
    shown = command_line(shop, "Raise the price.", typed=typed)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert bytes_of(shop) == before
    done = command_line(shop, "Raise the price.", "--apply", typed=typed)
    assert (done.exit_code, done.stderr) == (0, "")
    changes = (
        "--- a/docs/old.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
        "--- /dev/null\n+++ b/notes.md\n@@ -0,0 +1,2 @@\n+The price\n+\u241b[2Jis `4`.\n"
        "--- a/shop.py\n+++ b/shop.py\n@@ -1,2 +1,2 @@\n def price():\n-    return 3\n+    return 4\n"
        "changed: 3 files"
    )
    assert shown.stdout.endswith(f"{changes}; nothing is written, add --apply for that\n")
    assert done.stdout.endswith(f"{changes}\n")
    assert "  it is 4\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert (shop / "shop.py").read_text() == "def price():\n    return 4\n"
    assert (shop / "shop.py").stat().st_mode & 0o777 == 0o750
    assert (shop / "notes.md").read_text() == "The price\n\x1b[2Jis `4`.\n"
    assert sorted(path.name for path in shop.rglob("*")) == ["docs", "link", "notes.md", "shop.py"]


def test_a_chat_model_does_the_task_in_its_own_words(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    replies = iter(
        [
            "Let me look.\n```\ncat shop.py\n```",
            "I forgot the block: cat shop.py",
            f"Now I change it.\n```text\n{EDIT}```\n",
            f"And check:\n\n```\n{CHECK}```",
            "A file with a fence:\n```\nwrite a.md\n```\ncode\n```\n```",
            "Done.\n```\nid shop.py\n```",
        ]
    )
    with ScriptedEndpoint() as endpoint:
        endpoint.reply = lambda _: next(replies)
        where = ("--model", "scripted", "--base-url", endpoint.url, "--api-key-env", "MY_KEY")
        done = command_line(shop, "Raise the price.", *where, "--apply")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "  > cat shop.py\n  def price():\n      return 3\n" in done.stdout
    assert "\n  it is 4\n" in done.stdout
    assert done.stdout.endswith("answer: shop.py\nchanged: 2 files\n")
    assert (shop / "shop.py").read_text().endswith("return 4\n")
    assert (shop / "a.md").read_text() == "```\ncode\n```\n"
    assert "sk-very-secret" not in done.stdout
    chat = endpoint.requests[-1].chat
    assert [message["role"] for message in chat] == ["system", *["user", "assistant"] * 4, "user"]
    last = "\n".join(message["content"] for message in chat)
    for part in ("Task: Raise the price.", "Here: docs/, link/, shop.py", "    return 3", "it is 4"):
        assert part in last


@pytest.mark.parametrize(
    "command", ['"write" a.txt', "\\edit shop.py", "python -\nprint('\0')", f"python -c {'x' * 2**17}"]
)
def test_commands_in_odd_forms_are_answered_and_the_work_goes_on(shop: Path, command: str) -> None:
    model = Typed(command, "exit")
    COPILOT.work_on(str(shop), "Raise the price.", model)
    assert len(model.shown) == 2


def test_mistakes_are_shown_and_the_work_goes_on(shop: Path) -> None:
    mistakes = {
        "write ../out\nx\n": "../out",
        "edit shop.py\nno block\n": "<<<<<<< OLD",
        "edit gone.py\nx\n": "gone.py",
        "nonsense": "'nonsense'",
        "ls\nls": r"'\n'",
        "python -\nwhile True: pass\n": "0.5 seconds",
    }
    typist = Typed(*mistakes, "exit")
    done = COPILOT.work_on(str(shop), "Try.", typist, apply=True, seconds=0.5)
    assert done.changed == ()
    for shown, fact in zip(typist.shown[1:], mistakes.values(), strict=True):
        assert fact in shown
    assert "34 commands are left." in typist.shown[-1]


@pytest.mark.parametrize("name", ["shop.py", "notes.md"])
def test_a_repository_that_has_changed_meanwhile_is_left_alone(shop: Path, name: str) -> None:
    def meanwhile() -> str:
        (shop / name).write_text("other work\n")
        return "exit"

    with pytest.raises(WorkFailed, match=name):
        work(shop, EDIT, NOTES, meanwhile)
    assert (shop / name).read_text() == "other work\n"
    assert name == "shop.py" or (shop / "shop.py").read_text().endswith("return 3\n")


@pytest.mark.parametrize("reply", ["", "exit", "```\n```", "```exit```"])
def test_a_reply_without_a_block_holds_no_command(reply: str) -> None:
    with pytest.raises(BadReply, match="```"):
        read_command(reply)


def test_work_that_is_not_ended_or_cannot_begin_changes_nothing(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_of(shop)
    with pytest.raises(WorkFailed, match="2 commands"):
        work(shop, EDIT, CHECK, "exit", steps=2)
    left = command_line(shop, "Raise the price.", "--apply", typed=f"{EDIT}END\n")
    assert (left.exit_code, left.stderr) == (130, "\nstopped; nothing was kept.\n")
    with pytest.raises(InvalidInput, match="'company:nano'"):
        work("company:nano")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="bubblewrap"):
        work(shop)
    assert bytes_of(shop) == before


@pytest.mark.parametrize("program", ["os.link('shop.py', 'other.py')", "os.link('docs/old.md', 'old.md')"])
def test_hard_links_are_not_taken_for_removed_files(shop: Path, program: str) -> None:
    before = bytes_of(shop)
    with pytest.raises(WorkFailed, match="hard link"):
        work(shop, f"python -\nimport os\n{program}\n", "exit")
    assert bytes_of(shop) == before


def test_work_goes_on_where_a_program_removed_the_working_folder(shop: Path) -> None:
    model = Typed(EDIT, "cd docs", "python -\nimport shutil\nshutil.rmtree('/repository/docs')\n", "exit")
    done = COPILOT.work_on(str(shop), "Raise the price.", model)
    assert done.changed == ("docs/old.md", "shop.py")
    assert "Folder: /\nHere: " in model.shown[-1]


def test_files_are_written_into_new_folders_but_not_through_a_link(shop: Path) -> None:
    umask = os.umask(0o027)
    try:
        work(shop, "python -\nimport os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('c')\n", "exit")
    finally:
        os.umask(umask)
    assert (shop / "a" / "b" / "c").read_text() == "c"
    assert (shop / "a" / "b" / "c").stat().st_mode & 0o777 == 0o640
    (shop / "link").unlink()
    (shop / "link").symlink_to("../outside")
    (shop.parent / "outside").mkdir()
    with pytest.raises(WorkFailed, match="link/x"):
        work(shop, "python -\nimport os\nos.mkdir('link')\nopen('link/x', 'w').write('x')\n", "exit")
    assert list((shop.parent / "outside").iterdir()) == []


@pytest.mark.parametrize("program", ["os.symlink('docs/old.md', 'shop.py')", "os.mkfifo('shop.py')"])
def test_links_and_pipes_in_the_place_of_files_are_not_kept(shop: Path, program: str) -> None:
    before = bytes_of(shop)
    done = work(shop, f"python -\nimport os\nos.remove('shop.py')\n{program}\n", "exit")
    assert (done.changed, done.diff) == ((), ())
    assert done.left_out == ("links, pipes and sockets in the place of files, which stay: shop.py",)
    assert bytes_of(shop) == before


def test_the_command_says_what_is_not_kept(shop: Path) -> None:
    program = "python -c \"import os; os.chmod('shop.py', 0o600); open('.cache', 'w')\""
    done = command_line(shop, "Raise the price.", "--apply", typed=f"{EDIT}END\n{program}\nexit\n")
    assert (done.exit_code, done.stderr) == (0, "")
    *_, first, second, last = done.stdout.splitlines()
    assert {first, second} == {"not kept: hidden names: .cache", f"not kept: {EXECUTABLE}: shop.py"}
    assert last == "changed: 1 file"
    assert (shop / "shop.py").stat().st_mode & 0o777 == 0o750


def test_a_file_replaces_no_folder_and_no_link(shop: Path) -> None:
    work(shop, "python -\nimport os\nos.remove('shop.py')\nos.mkdir('shop.py')\nopen('shop.py/x', 'w')\n", "exit")
    assert (shop / "shop.py" / "x").read_bytes() == b""
    before = bytes_of(shop)
    for name, kind in (("docs", "folder"), ("link", "link")):
        code = f"import os, shutil\nos.unlink('link')\nshutil.rmtree('docs')\nopen({name!r}, 'w')\n"
        with pytest.raises(WorkFailed, match=f"{name} is a {kind}"):
            work(shop, f"python -\n{code}", "exit")
        assert bytes_of(shop) == before


def test_names_as_long_as_names_can_be_are_written(shop: Path) -> None:
    name = "n" * 255
    for text in ("new\n", "newer\n"):
        work(shop, f"write {name}\n{text}".rstrip(), "exit")
        assert (shop / name).read_text() == text


def test_files_without_end_are_neither_read_nor_compared(shop: Path) -> None:
    sparse = "python -\nfor n in range(31): open(f'{n}', 'wb').truncate(60 << 20)\n"
    with pytest.raises(WorkFailed, match="134,217,728 bytes"):
        work(shop, sparse, "exit", apply=False)
    done = work(shop, "python -\nopen('lines', 'wb').write(b'\\n' * 60_000_000)\n", "exit", apply=False)
    assert done.diff == ("Large file lines: 0 bytes before, 60,000,000 now",)


# ---- as root, who may write everything -------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")


def test_permissions_are_kept_and_special_bits_are_dropped(shop: Path) -> None:
    tool = shop / "shop.py"
    if os.geteuid() == 0:
        os.chown(tool, -1, 12345)
    tool.chmod(0o7754)
    group = tool.stat().st_gid
    work(shop, EDIT, "exit")
    assert tool.read_text().endswith("return 4\n")
    assert (tool.stat().st_mode & 0o7777, tool.stat().st_gid) == (0o754, group)


@as_root
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(EDIT, id="edited"),
        pytest.param("python -\nimport os\nos.remove('shop.py')\n", id="removed"),
        pytest.param("python -\nimport os\nos.makedirs('docs/x/y')\nopen('docs/x/y/z', 'w')\n", id="added"),
    ],
)
def test_files_of_another_user_are_left_alone(shop: Path, change: str) -> None:
    for theirs in (shop / "shop.py", shop / "docs"):
        os.chown(theirs, 12345, 12345)
    (shop / "shop.py").chmod(0o4755)
    before, status = bytes_of(shop), (shop / "shop.py").stat()
    with pytest.raises(WorkFailed, match="is not yours .*12345.* nothing was written"):
        work(shop, "write a.md\nfirst in order\n", change, "exit")
    assert bytes_of(shop) == before
    assert (shop / "shop.py").stat() == status
    assert work(shop, change, "exit", apply=False).changed  # it may be shown


@as_root
def test_a_folder_of_another_user_is_refused_before_any_work(shop: Path) -> None:
    os.chown(shop, 12345, 12345)
    with pytest.raises(InvalidInput, match="12345"):
        work(shop)
