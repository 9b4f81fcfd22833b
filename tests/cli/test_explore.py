"""``reflectrl explore`` as a user runs it: on a folder, with every kind of player."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Done, reflectrl
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import SHORT, play_stages

from reflectrl.config import load_recipe
from reflectrl.pipeline import STAGES

QUESTION = "Who opens the office?"
ESCAPE = "\x1b[2J"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "office"
    (folder / "people" / "berlin").mkdir(parents=True)
    (folder / "README.md").write_text(f"The office.\n{ESCAPE}Ask people.\n")
    (folder / "people" / "berlin" / "who is who.md").write_text("Ada opens the office.\n")
    (folder / f"odd{ESCAPE}.md").write_text("a name that a terminal would obey\n")
    for number in range(6):
        (folder / "people" / f"note-{number}.md").write_text("nothing\n")
    return folder


@pytest.fixture(autouse=True)
def _no_explorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no trained explorer of this machine answer."""
    monkeypatch.setenv("REFLECTRL_EXPLORER", "")


def bytes_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def explore(*arguments: object, typed: str = "") -> Done:
    return reflectrl("explore", *arguments, typed=typed)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, which must be empty at the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("temporary")
def test_the_expert_shows_the_way_step_by_step(repository: Path) -> None:
    before, file = bytes_of(repository), "people/berlin/who is who.md"
    done = explore(repository, QUESTION, "--expert", file)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"Question: {QUESTION}\n"
        f"Players: the expert, given {file}\n"
        "\n"
        "Step 1\n"
        "  Folder: /\n"
        "  Reflection: The file is further down.\n"
        "  Menu:\n"
        "    100%  cd people\n"
        "      0%  id README.md\n"
        "      0%  cat README.md\n"
        "  Command: cd people\n"
        "\n"
        "Step 2\n"
        "  Folder: /people\n"
        "  Reflection: Good. The file is further down.\n"
        "  Menu:\n"
        "    100%  cd berlin\n"
        "      0%  id note-0.md\n"
        "      0%  id note-1.md\n"
        "      0%  id note-2.md\n"
        "      0%  id note-3.md\n"
        "    and 9 more\n"
        "  Command: cd berlin\n"
        "\n"
        "Step 3\n"
        "  Folder: /people/berlin\n"
        "  Reflection: Good. who is who is in this folder.\n"
        "  Menu:\n"
        "    100%  id 'who is who.md'\n"
        "      0%  cd ..\n"
        "      0%  cat 'who is who.md'\n"
        "  Command: id 'who is who.md'\n"
        f"answer: {file}\n"
    )
    assert bytes_of(repository) == before


@pytest.mark.usefixtures("temporary")
def test_a_person_sees_each_menu_once(repository: Path) -> None:
    before = bytes_of(repository)
    done = explore(repository, QUESTION, typed="cat README.md\nnonsense\ncd people\n0\n")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("You explore a repository") == 1
    assert done.out.count("0. id README.md\n") == 2
    assert "  Command: cat README.md\n" in done.out
    assert "Result: The office. \ufffd[2JAsk people.\n" in done.out
    assert "'nonsense' is not a label or action here" in done.out
    assert done.out.endswith("  Command: id note-0.md\nanswer: people/note-0.md\n")
    assert "\x1b" not in done.out
    assert bytes_of(repository) == before


@pytest.mark.parametrize("typed", ["quit\n", "cd people\n"], ids=["quit", "the input ends"])
def test_a_person_may_leave(typed: str, repository: Path) -> None:
    done = explore(repository, QUESTION, typed=typed)
    assert (done.code, done.err) == (130, "\nstopped; no file was named.\n")
    assert "answer:" not in done.out


@pytest.mark.slow
def test_a_signal_leaves_nothing_behind(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "reflectrl", "explore", str(repository), QUESTION],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as playing:
        assert playing.stdout is not None
        while playing.stdout.readline() != "Action:\n":
            assert playing.poll() is None
        assert list((tmp_path / "tmp").iterdir())
        playing.terminate()
        _, said = playing.communicate(timeout=300)
    assert playing.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said
    assert list((tmp_path / "tmp").iterdir()) == []


def label(chat: Chat, command: str) -> str:
    """Return the label of ``command`` in the menu of a chat."""
    found = re.search(rf"^(\d+)\. {re.escape(command)}$", chat[-1]["content"], re.MULTILINE)
    assert found, chat[-1]["content"]
    return found[1]


def test_a_chat_model_reflects_and_answers_in_its_own_ways(
    endpoint: ScriptedEndpoint, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    commands = iter(["cat README.md", "cd people", "cd berlin", "id 'who is who.md'"])
    forms = iter(["{label}", "{label}. {command}", "**{label}**", "`{label}`."])

    def reply(chat: Chat) -> str:
        if "advise" in chat[0]["content"]:
            return f"I would\n{ESCAPE}look further."
        command = next(commands)
        return next(forms).format(label=label(chat, command), command=command)

    endpoint.reply = reply
    done = explore(repository, QUESTION, "--model", "scripted", "--base-url", endpoint.url, "--api-key-env", "MY_KEY")
    assert done.code == 0, done.err
    assert done.out.startswith(f"Question: {QUESTION}\nPlayers: model 'scripted' at {endpoint.url}\n")
    assert done.out.count("  Reflection: I would \u241b[2Jlook further.\n") == 4
    assert "  Folder: /\n  Result: The office. \ufffd[2JAsk people.\n" in done.out
    assert "  Menu:\n    id README.md\n    cd people\n    cat README.md\n  Command: cat README.md\n" in done.out
    assert done.out.endswith("answer: people/berlin/who is who.md\n")
    assert "\x1b" not in done.out
    assert "sk-very-secret" not in done.out + done.err
    assert len(endpoint.requests) == 8  # no call was made twice
    assert {request.body["model"] for request in endpoint.requests} == {"scripted"}
    assert {request.headers["authorization"] for request in endpoint.requests} == {"Bearer sk-very-secret"}
    last = endpoint.requests[-1].chat[1]["content"]
    for part in ("You explore a repository", f"Question: {QUESTION}", "Past: cat README.md\nPast: cd people\n"):
        assert part in last


@pytest.mark.parametrize(("fault", "fact"), [("none", "--steps"), ("401", "401")])
def test_no_answer_is_a_sentence_with_exit_code_1(
    endpoint: ScriptedEndpoint, repository: Path, fault: str, fact: str
) -> None:
    endpoint.reply = lambda chat: "1"  # noqa: ARG005 - a folder in the root, and in it a file to read
    endpoint.faults.append(fault)
    done = explore(repository, QUESTION, "--model", "m", "--base-url", endpoint.url, "--steps", 1)
    assert (done.code, done.err.startswith("error: "), "answer:" in done.out) == (1, True, False)
    assert fact in done.err


@pytest.mark.slow
def test_a_trained_explorer_answers_where_no_other_player_is_chosen(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "explorer"
    quick = (
        "players.reflector.player=none",
        "data.samples=60",
        "rlft.lessons.0.iterations=1",
        "rlft.validation=null",
        "rlft.keep=last",
    )
    play_stages(load_recipe("auto_explore/nano_search", [*SHORT, *quick]), run, *STAGES[:3])
    monkeypatch.setenv("REFLECTRL_EXPLORER", str(run))
    done = explore(repository, QUESTION, "--steps", 3)
    assert f"Players: policy of {run}\n" in done.out
    assert explore(repository, QUESTION, "--run", run, "--steps", 3) == done
    assert explore(repository, QUESTION, "--expert", "README.md").out.endswith("answer: README.md\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "smollm2-explorer").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REFLECTRL_EXPLORER")
    assert "Players: policy of runs/smollm2-explorer\n" in explore(repository, QUESTION, "--steps", 3).out
    monkeypatch.setenv("REFLECTRL_EXPLORER", str(tmp_path))
    done = explore(repository, QUESTION)
    assert done.code == 2
    assert done.err.startswith(f"error: REFLECTRL_EXPLORER={tmp_path} holds no trained policy")
