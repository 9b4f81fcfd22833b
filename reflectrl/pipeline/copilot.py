"""``work_on``: a whole task on a repository, done by commands that a person or a chat model types (appendix C.2).

The commands read, edit and run programs in a private copy. What was changed comes back; writing it to the repository is
a step of its own.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.chat import BadReply, Messages
from reflectrl.core.text import visible
from reflectrl.endpoint.chat import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.envs.auto_explore.commands import HELP, has_body
from reflectrl.envs.auto_explore.sandbox import Limits, Sandbox
from reflectrl.envs.auto_explore.sources import fetch
from reflectrl.envs.auto_explore.writeback import diff, write_back
from reflectrl.players.human import PlayerLeft

STEPS = 40
MAX_TOKENS = 4096
"""Longest reply of the chat model, in tokens; it may hold a whole file."""
LISTED = 50
"""Entries of the working directory that a state names."""
END = "END"
"""Typed on a line of its own after the lines of a command."""
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
"""From the first fence to the last, since a file may hold fences too."""


class Typist(Protocol):
    """Who types the commands."""

    @property
    def who(self) -> str:
        """In words, for the person who watches."""

    def command(self, state: str) -> str:
        """The next command, after ``state``: the task at first, then what the command before did."""


class Keyboard:
    """A person who types.

    Args:
        read: shows a prompt and returns one line, as ``input`` does; ``EOFError`` when there is none left.
        show: shows what the person should know.

    """

    who = "you"

    def __init__(self, read: Callable[[str], str] = input, show: Callable[[str], object] = print) -> None:
        self._read = read
        self._show = show
        self._begun = False

    def command(self, state: str) -> str:
        """A line, and those after it that belong to it.

        Raises:
            PlayerLeft: there is no more input.

        """
        if not self._begun:
            self._show(visible(f"{RULES}\nThe lines after a command end with {END} on a line of its own.\n\n{state}"))
        self._begun = True
        try:
            lines = [self._read("> ")]
            while has_body(lines[0]) and (line := self._read("")) != END:
                lines.append(line)
        except EOFError:
            raise PlayerLeft("the input ended") from None
        return "\n".join([*lines, ""]) if has_body(lines[0]) else lines[0]


class ChatModel:
    """A chat model behind an OpenAI-compatible endpoint, which sees all that it has typed and read before."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Speak through ``endpoint``; its key is looked for now."""
        self.who = str(endpoint)
        self._client = ChatClient(endpoint)
        self._chat: Messages = [{"role": "system", "content": f"{RULES}\n{REPLY}"}]

    def command(self, state: str) -> str:
        """What the model wants to do.

        Raises:
            WorkFailed: the endpoint failed, or the model gave no command however often it was asked.

        """
        self._chat.append({"role": "user", "content": state})
        [reply] = self._client.ask_many([self._chat], [lambda words: (words, read_command(words))])
        words, command = reply.value
        self._chat.append({"role": "assistant", "content": words})
        return command


def read_command(reply: str) -> str:
    """The command in a model's reply.

    Raises:
        BadReply: there is no block in it.

    """
    found = _BLOCK.search(reply)
    if found is None or not found[1].strip():
        raise BadReply(f"There is no command in that. {REPLY}")
    return found[1]


@dataclass(frozen=True)
class Work:
    """Result of a task: the answer and the changed files."""

    answer: str | None
    """The file that was named, if any."""
    before: Mapping[str, bytes | None]
    """The files that were changed, as they were; ``None`` for those that were not there."""
    after: Mapping[str, bytes | None]
    """The changed files as they are to be; ``None`` for those that were deleted."""

    @property
    def diff(self) -> list[str]:
        """The changes as lines of a unified diff."""
        return list(diff(self.before, self.after))


def chat_model(model: str, base_url: str | None = None, api_key_env: str | None = None) -> ChatModel:
    """A chat model that types.

    Raises:
        InvalidInput: no key, or an address that cannot be one.

    """
    key = api_key_env or Endpoint.api_key_env
    return ChatModel(Endpoint(model, base_url, api_key_env=key, max_tokens=MAX_TOKENS, timeout_s=300.0))


def work_on(
    source: str,
    task: str,
    typist: Typist,
    *,
    steps: int = STEPS,
    seconds: float = Limits.seconds,
    apply: bool = False,
    show: Callable[[str, str], None] | None = None,
) -> Work:
    """Let ``typist`` work on a copy of a repository until it ends the work.

    Args:
        source: the repository, in any form that ``sources.fetch`` takes.
        task: what is to be done.
        typist: who types.
        steps: commands, at most.
        seconds: of one program, at most.
        apply: write what was changed to the repository, which must be a folder.
        show: called with each command that was played, and what it printed.

    Raises:
        InvalidInput: no task, no such source, ``apply`` to one that is no folder, or programs cannot run here.
        WorkFailed: the work was not ended within ``steps``, the repository changed meanwhile or cannot be written, or a
            chat endpoint failed.

    """
    if not task.strip():
        raise InvalidInput("the task is empty; say what is to be done.")
    if steps < 1:
        raise InvalidInput(f"{steps} steps were given; expected 1 or more.")
    if apply and not Path(source).expanduser().is_dir():
        raise InvalidInput(f"changes to {source!r} cannot be kept, since it is no folder; leave out --apply.")
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        _, repository = fetch(source, Path(place))
        with Sandbox(repository, programs=True, limits=Limits(seconds=seconds)) as sandbox:
            if (probe := sandbox.run("python -c 0")).failed:
                raise InvalidInput(probe.output)
            answer = _play(sandbox, task, typist, steps, show)
            after = sandbox.changes()
            before = {path: sandbox.original(path) for path in after}
        if apply:
            write_back(repository.resolve(), after)
    return Work(answer, before, after)


def _play(
    sandbox: Sandbox, task: str, typist: Typist, steps: int, show: Callable[[str, str], None] | None
) -> str | None:
    state = f"Task: {task.encode(errors='replace').decode()}\n{_place(sandbox)}"
    for left in reversed(range(steps)):
        command = typist.command(state)
        result = sandbox.run(command)
        if show is not None:
            show(command, result.output)
        if result.ended:
            return result.answer
        state = f"{result.output or '(no output)'}\n{_place(sandbox)}\n{left} commands are left."
    raise WorkFailed(f"the work was not ended within {steps} commands, so nothing is kept; allow more with --steps.")


def _place(sandbox: Sandbox) -> str:
    entries = [entry.name + "/" * entry.folder for entry in sandbox.entries()]
    more = f" and {len(entries) - LISTED} more" if len(entries) > LISTED else ""
    where = "" if str(sandbox.cwd) == "." else sandbox.cwd
    return f"Folder: /{where}\nHere: {', '.join(entries[:LISTED]) or 'nothing'}{more}"
