"""``reflectrl explore`` as a user runs it: on a folder, with every kind of player."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint
from typer.testing import CliRunner, Result

from reflectrl.cli.app import app
from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, WorkFailed

ROOT = Path(__file__).parents[2]
QUESTION = "Who opens the office?"
ESCAPE = "\x1b[2J"
# a process started in the background may inherit a SIGINT that is ignored
CODE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom reflectrl.cli import main; main()"


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


def bytes_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def process(*arguments: str, temporary: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """A real process, whose temporary files lie in ``temporary``."""
    temporary.mkdir()
    command = [sys.executable, "-c", CODE, "explore", *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run(command, input=typed, env=environment, capture_output=True, text=True, check=False)


def explore(*arguments: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["explore", *map(str, arguments)], input=typed)


def refused(*arguments: object) -> str:
    done = explore(*arguments)
    assert isinstance(done.exception, InvalidInput), done.output
    assert done.stdout == ""
    return str(done.exception)


def failed(done: Result) -> str:
    assert isinstance(done.exception, WorkFailed), done.output
    return str(done.exception)


def test_the_expert_shows_the_way_step_by_step(repository: Path, tmp_path: Path) -> None:
    before, file = bytes_of(repository), "people/berlin/who is who.md"
    done = process(str(repository), QUESTION, "--expert", file, temporary=tmp_path / "tmp")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"Question: {QUESTION}\n"
        f"Players: the expert, told {file}\n"
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
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_person_plays_through_a_pipe_and_sees_each_menu_once(repository: Path, tmp_path: Path) -> None:
    before = bytes_of(repository)
    typed = "cat README.md\nnonsense\ncd people\n0\n"
    done = process(str(repository), QUESTION, typed=typed, temporary=tmp_path / "tmp")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("You explore a repository") == 1
    assert done.stdout.count("0. id README.md\n") == 2
    assert "  Command: cat README.md\n" in done.stdout
    assert "Result: The office. \ufffd[2JAsk people.\n" in done.stdout
    assert "'nonsense' is no label or action here" in done.stdout
    assert done.stdout.endswith("  Command: id note-0.md\nanswer: people/note-0.md\n")
    assert "\x1b" not in done.stdout
    assert bytes_of(repository) == before
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("typed", ["", "quit\n", "cd people\n"], ids=["nothing", "quit", "the input ends"])
def test_a_person_may_leave(typed: str, repository: Path) -> None:
    done = explore(repository, QUESTION, typed=typed)
    assert (done.exit_code, done.stderr) == (130, "\nstopped; no file was named.\n")
    assert "answer:" not in done.stdout


@pytest.mark.parametrize(
    ("stopped_by", "expected"),
    [(signal.SIGINT, (130, "\nstopped; no file was named.\n")), (signal.SIGTERM, (143, ""))],
)
def test_a_signal_leaves_nothing_behind(
    stopped_by: signal.Signals, expected: tuple[int, str], repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "explore", str(repository), QUESTION],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as playing:
        assert playing.stdout is not None
        while playing.stdout.readline() != "Action:\n":
            assert playing.poll() is None
        assert list((tmp_path / "tmp").iterdir())
        playing.send_signal(stopped_by)
        _, said = playing.communicate(timeout=300)
    assert (playing.returncode, said) == expected
    assert list((tmp_path / "tmp").iterdir()) == []


def label(chat: Chat, command: str) -> str:
    """The label of ``command`` in the menu that a chat shows."""
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
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"Question: {QUESTION}\nPlayers: model 'scripted' at {endpoint.url}\n")
    assert done.stdout.count("  Reflection: I would \u241b[2Jlook further.\n") == 4
    assert "  Folder: /\n  Result: The office. \ufffd[2JAsk people.\n" in done.stdout
    assert "  Menu:\n    id README.md\n    cd people\n    cat README.md\n  Command: cat README.md\n" in done.stdout
    assert done.stdout.endswith("answer: people/berlin/who is who.md\n")
    assert "\x1b" not in done.stdout
    assert "sk-very-secret" not in done.output
    assert len(endpoint.requests) == 8  # nothing was asked twice
    assert {request.body["model"] for request in endpoint.requests} == {"scripted"}
    assert {request.headers["authorization"] for request in endpoint.requests} == {"Bearer sk-very-secret"}
    last = endpoint.requests[-1].chat[1]["content"]
    for part in ("You explore a repository", f"Question: {QUESTION}", "Past: cat README.md\nPast: cd people\n"):
        assert part in last


def test_a_chat_model_that_names_no_file_is_told_of_with_exit_code_1(
    endpoint: ScriptedEndpoint, repository: Path
) -> None:
    endpoint.reply = lambda chat: "1"  # noqa: ARG005 - in the root the folder, there a file to read
    done = explore(repository, QUESTION, "--model", "m", "--base-url", endpoint.url, "--steps", 1)
    assert failed(done) == "no file was named within 1 step; allow more with --steps."
    assert "answer:" not in done.stdout


def test_an_endpoint_that_refuses_is_a_sentence_with_exit_code_1(endpoint: ScriptedEndpoint, repository: Path) -> None:
    endpoint.faults.append("401")
    assert "key was refused" in failed(explore(repository, QUESTION, "--model", "m", "--base-url", endpoint.url))


def test_fewer_entries_can_be_shown_at_a_time(repository: Path) -> None:
    done = explore(repository, QUESTION, "--expert", "people/note-5.md", "--page", 3)
    assert "    100%  ls note-3.md..note-5.md\n" in done.stdout
    assert done.stdout.endswith("answer: people/note-5.md\n")


def test_a_synthetic_repository_can_be_explored() -> None:
    done = explore("company:nano", QUESTION, "--expert", "README.md")
    assert done.stdout.endswith("answer: README.md\n")


def test_an_input_that_cannot_be_used_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = process(str(tmp_path / "gone"), QUESTION, temporary=tmp_path / "tmp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: source ")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "question is empty"),
        (["--expert", "people/nobody.md"], "told a file of the repository, but people/nobody.md does not exist"),
        (["--expert", "people"], "told a file of the repository, but people is a folder"),
        (["--expert", "../office/README.md"], "leads out of the repository"),
        (["--expert", "README.md", "--run", "x"], "--run and --expert were given; expected one of them"),
        (["--expert", "README.md", "--model", "x"], "--model and --expert were given"),
        (["--expert", "README.md", "--steps", "0"], "horizon=0"),
        (["--expert", "README.md", "--page", "1"], "page=1"),
        (["--base-url", "http://localhost:1/v1"], "--base-url was given without --model"),
        (["--api-key-env", "X"], "--api-key-env was given without --model"),
        (["--sample", "--expert", "README.md"], "--greedy/--sample was given without --run"),
        (["--seed", "1"], "--seed was given without --run"),
        (["--model", "m"], "OPENAI_API_KEY is not set"),
        (["--model", "m", "--base-url", "localhost"], "is no address"),
        (["--run", "gone"], "gone is no run folder"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(
    arguments: list[str], sentence: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    question = QUESTION if arguments else " \n"
    assert sentence in refused(repository, question, *arguments)


def test_a_repository_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "empty" / ".hidden").write_text("x")
    assert "has no files" in refused(tmp_path / "empty", QUESTION)


def readme_commands(program: str) -> list[list[str]]:
    """The README's commands that begin with ``program``, in their order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith(program)]


def test_the_first_example_of_the_readme_ends_at_a_file_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first = readme_commands("reflectrl explore ")[0]
    done = CliRunner().invoke(app, first, input="cd envs\ncd auto_explore\nls company\nid ambiguity.py\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("answer: envs/auto_explore/ambiguity.py\n")


def test_a_trained_agent_is_only_shown_in_the_company_that_it_was_trained_on() -> None:
    shown = [command for command in readme_commands("reflectrl explore ") if "--run" in command]
    assert shown
    for command in shown:
        assert command[command.index("--run") + 1] == "runs/auto_explore-nano"
        assert load_recipe("auto_explore/nano").dataset.repositories == [command[1]]
