"""``RepositoryCopilot``: questions about, and whole tasks on, any repository (appendix C.2 of the paper).

A question is an episode of the environment with an unknown answer. A task is done by the commands of a person or a chat
model, which read, edit and run programs in a private copy; writing the changes back is a separate step.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core import InvalidInput, Task, WorkFailed
from reflectrl.core.extras import Ask, OpenTask, Work
from reflectrl.core.files import user_path
from reflectrl.core.messages import BadReply, Messages
from reflectrl.core.text import visible
from reflectrl.envs.auto_explore.commands import HELP, has_body
from reflectrl.envs.auto_explore.dataset import Dataset
from reflectrl.envs.auto_explore.libraries import Library
from reflectrl.envs.auto_explore.sandbox import Limits, Sandbox
from reflectrl.envs.auto_explore.sources import fetch
from reflectrl.envs.auto_explore.writeback import diff, write_back

if TYPE_CHECKING:
    from reflectrl.envs.auto_explore.env import AutoExplore

MAX_STEPS = 40
"""Default maximum number of commands of one task."""
MAX_ENTRIES = 50
"""Maximum number of entries of the working directory that a state lists."""
END = "END"
"""Line that ends the lines of a command."""
RULES = (
    "You work on a repository, in a private copy of it, by typing one command at a time; after each you are shown what "
    f"it did. The commands:\n{HELP}\nPaths are relative to the present folder, or begin with / at the root of the "
    "repository. When the task is done, exit."
)
REPLY = (
    "Say in a sentence or two what you are about to do, then give exactly one command in a block between two lines of "
    "```, and nothing after it."
)
_BLOCK = re.compile(r"^```[^\n`]*\n(.*)^```[ \t]*$", re.DOTALL | re.MULTILINE)
"""Matches from the first fence to the last, since a file may hold fences too."""


Typist = Callable[[str], str]
"""Function from a state to the next command; a state is the task at first, then the result of the previous command."""


def _person(state: str) -> Typist:
    """Show the rules and the state; read a line for each command, and the further lines that belong to it."""
    print(visible(f"{RULES}\nThe lines after a command end with {END} on a line of its own.\n\n{state}"))  # noqa: T201

    def command(_: str) -> str:
        line = input("> ")
        return "\n".join([line, *iter(input, END), ""]) if has_body(line) else line

    return command


def _model(ask: Ask) -> Typist:
    """Return a chat model that sees everything it has typed and read before."""
    chat: Messages = [{"role": "system", "content": f"{RULES}\n{REPLY}"}]

    def command(state: str) -> str:
        chat.append({"role": "user", "content": state})
        words, typed = ask(chat, lambda words: (words, read_command(words)))
        chat.append({"role": "assistant", "content": words})
        return typed

    return command


def read_command(reply: str) -> str:
    """Return the command in a model's reply.

    Raises:
        BadReply: the reply contains no block.
    """
    found = _BLOCK.search(reply)
    if found is None or not found[1].strip():
        raise BadReply(f"There is no command in that. {REPLY}")
    return found[1]


@dataclass(frozen=True)
class RepositoryCopilot:
    """The copilot of ``AutoExplore``. See ``reflectrl.core.extras.Copilot``."""

    environment: type[AutoExplore]
    player_options: tuple[str, ...] = ("horizon", "page", "output", "listing", "tools")
    person_options: Mapping[str, Any] = field(default_factory=lambda: {"listing": False})

    @contextmanager
    def open_task(
        self, source: str, question: str, options: Mapping[str, Any], answer: str | None = None
    ) -> Iterator[OpenTask]:
        """Open a question about ``source``, in any form that ``sources.fetch`` takes, for one episode."""
        if not question.strip():
            raise InvalidInput("the question is empty; say what the file that you look for should tell.")
        with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
            _, repository = fetch(source, Path(folder))
            name = repository.resolve().name
            library = Library(Dataset({}, {name: repository}))
            settings = {**options, "dataset": library}
            env = self.environment(**settings)
            if not any(path.is_file() for path in library.sandbox(name).root.rglob("*")):
                raise InvalidInput("this repository has no files, or hidden ones only; choose another one.")
            file = None if answer is None else _file(library, name, answer)
            task = Task("explore", {"repository": name, "question": _sendable(question), "file": file})
            yield OpenTask(env, task, settings, lambda: env.answer)

    def work_on(
        self,
        source: str,
        task: str,
        ask: Ask | None = None,
        *,
        steps: int = MAX_STEPS,
        seconds: float = Limits.seconds,
        apply: bool = False,
        show: Callable[[str, str], None] | None = None,
    ) -> Work:
        """Do a whole task in a private copy of ``source``. See ``reflectrl.core.extras.Copilot``."""
        if not task.strip():
            raise InvalidInput("the task is empty; say what is to be done.")
        if steps < 1:
            raise InvalidInput(f"{steps} steps were given; expected 1 or more.")
        if apply:
            _check_writable(source)
        with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
            _, repository = fetch(source, Path(place))
            with Sandbox(repository, programs=True, limits=Limits(seconds=seconds)) as sandbox:
                if (probe := sandbox.run("python -c 0")).failed:
                    raise InvalidInput(probe.output)
                state = f"Task: {_sendable(task)}\n{_place(sandbox)}"
                answer = _play(sandbox, state, _person(state) if ask is None else _model(ask), steps, show)
                after = sandbox.changes()
                before = {path: sandbox.original(path) for path in after}
                left_out = sandbox.left_out()
            if apply:
                write_back(repository.resolve(), after)
        return Work(answer, tuple(after), tuple(diff(before, after)), left_out)


def _check_writable(source: str) -> None:
    """Raise ``InvalidInput`` if changes cannot be written to ``source``, before any work is done."""
    folder = user_path(source)
    if not folder.is_dir():
        raise InvalidInput(f"changes to {source!r} cannot be kept, since it is not a folder; leave out --apply.")
    if folder.stat().st_uid != os.geteuid():
        raise InvalidInput(
            f"folder {source!r} is not yours (its owner is user {folder.stat().st_uid}, you are {os.geteuid()}), and "
            "--apply writes only what is: work as its owner, or leave out --apply."
        )


def _file(library: Library, repository: str, file: str) -> str:
    """Return the path by which the environment names ``file``."""
    done = library.sandbox(repository).run(f"id {shlex.quote(file)}")
    if done.answer is None:
        raise InvalidInput(f"the expert needs a file of the repository as the answer, but {done.output}")
    return done.answer


def _sendable(text: str) -> str:
    """Replace typed bytes that are not text, which no endpoint would accept."""
    return text.encode(errors="replace").decode()


def _play(
    sandbox: Sandbox, state: str, typist: Typist, steps: int, show: Callable[[str, str], None] | None
) -> str | None:
    """Execute commands until one ends the work; return the file that it names, if any."""
    for left in reversed(range(steps)):
        command = typist(state)
        result = sandbox.run(command)
        if show is not None:
            show(command, result.output)
        if result.ended:
            return result.answer
        state = f"{result.output or '(no output)'}\n{_place(sandbox)}\n{left} commands are left."
    raise WorkFailed(f"the work was not ended within {steps} commands, so nothing is kept; allow more with --steps.")


def _place(sandbox: Sandbox) -> str:
    """Describe the working directory and its entries."""
    try:
        found = sandbox.entries()
    except InvalidInput:  # a program has removed this folder
        sandbox.run("cd /")
        found = sandbox.entries()
    entries = [f"{entry.name}/" if entry.folder else entry.name for entry in found]
    more = f" and {len(entries) - MAX_ENTRIES} more" if len(entries) > MAX_ENTRIES else ""
    where = "" if str(sandbox.cwd) == "." else sandbox.cwd
    return f"Folder: /{where}\nHere: {', '.join(entries[:MAX_ENTRIES]) or 'nothing'}{more}"
