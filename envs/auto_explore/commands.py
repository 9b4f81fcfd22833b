"""``Shell``: parses one command and executes it in a tree. The syntax is that of a shell, but no process is started."""

from __future__ import annotations

import codecs
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from reflectrl.core import InvalidInput, nearest
from reflectrl.envs.auto_explore.programs import MOUNT, run_program
from reflectrl.envs.auto_explore.tree import ROOT, WRITE, Limits, Tree, shown

MAX_ARGUMENT_BYTES = 2**17
"""Linux accepts shorter arguments of a program only."""

MAX_COMMAND_CHARS = 65_536
DEFAULT_LINES = 10
"""Number of lines that head and tail show unless a number is given."""
SNIFF_BYTES = 8192
"""Bytes at the beginning of a file that are checked for binary content."""
FORM = "<<<<<<< OLD\nlines that stand there once\n=======\nlines to stand there instead\n>>>>>>> NEW"
"""An edit of a text: the present lines, and those that replace them."""
HELP = f"""\
ls [FOLDER], cd FOLDER, cat FILE..., head -n N FILE, tail -n N FILE: look around and read
write FILE, and on the lines after it the whole new text of the file
edit FILE, and on the lines after it one or more blocks that replace lines of the file:
{FORM}
python FILE [WORD...]: run a file of the repository; python -, and on the lines after it code: run that; no network
pip WORD...: pip, without network
id FILE: name the file that answers the question, which ends the work
exit: end the work"""
"""Help on the commands where programs may run."""

_BLOCK = re.compile(r"<{7}[^\n]*\n(.*?)^={7}\n(.*?)^>{7}[^\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_PIECE = re.compile(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|(?P<operator>>>|[>;|&<()`\n])|.""", re.DOTALL)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def apply_edits(text: str, blocks: str) -> str:
    """Return ``text`` with the lines of each block replaced, one block after the other.

    Raises:
        InvalidInput: no block, other text between blocks, or old lines that do not occur in the text exactly once.
    """
    found = list(_BLOCK.finditer(blocks))
    if not found or _BLOCK.sub("", blocks).strip():
        raise InvalidInput(f"edit needs one or more blocks like this, each mark on a line of its own:\n{FORM}")
    ended = text.endswith("\n") or not text
    edited = text if ended else f"{text}\n"
    for number, block in enumerate(found, start=1):
        old, new = block[1], block[2]
        places = [place.start() for place in re.finditer(f"^(?={re.escape(old)})", edited, re.MULTILINE) if old]
        if len(places) != 1:
            raise InvalidInput(
                f"the old lines of block {number} stand {len(places)} times in the file; expected once, from the "
                "beginning of a line and with the same spaces: nothing was changed."
            )
        edited = edited[: places[0]] + new + edited[places[0] + len(old) :]
    return edited if ended else edited.removesuffix("\n")


@dataclass(frozen=True)
class Result:
    """Result of a command."""

    output: str
    """Output without control characters, shortened; a sentence if the command failed."""
    failed: bool = False
    ended: bool = False
    """True after ``exit`` or ``id FILE``."""
    answer: str | None = None
    """The file that ``id`` named, relative to the root."""


def parse(command: str) -> tuple[list[str], str, str]:
    """Split a command into words, the redirection sign (``>``, ``>>`` or none) and the file after it.

    Raises:
        InvalidInput: something that only a shell would understand.
    """
    if len(command) > MAX_COMMAND_CHARS:
        raise InvalidInput(
            f"a command of {len(command):,} characters is too long; expected {MAX_COMMAND_CHARS:,} at most."
        )
    found = [piece for piece in _PIECE.finditer(command) if piece["operator"]]
    for piece in found:
        if piece["operator"] not in (">", ">>"):
            raise InvalidInput(f"{piece['operator']!r} is not understood; give one command, and put names in quotes.")
    try:
        if not found:
            return shlex.split(command), "", ""
        first, *more = found
        words, target = shlex.split(command[: first.start()]), shlex.split(command[first.end() :])
    except ValueError as error:
        raise InvalidInput("the command has an open quote or ends with a backslash; close the quote.") from error
    if more or len(target) != 1:
        raise InvalidInput(f"{first['operator']} needs one file after it, at the end of the command.")
    return words, first["operator"], target[0]


def has_body(command: str) -> bool:
    """Return whether the lines after the first belong to ``command``: text to write, edits, or code to run."""
    words = command.partition("\n")[0].split()
    return words[:1] in (["write"], ["edit"]) or words == ["python", "-"]


def presentable(text: str, most: int) -> str:
    """Return ``text`` without control characters but newline and tab, cut after ``most`` characters."""
    text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
    return text if len(text) <= most else f"{text[:most]}\n(cut after {most:,} characters)"


def _is_binary(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < SNIFF_BYTES)
    except UnicodeDecodeError:
        return True
    return b"\0" in head


class Shell:
    """A working directory in ``tree``, and the commands that are executed there.

    ``writable=False`` refuses to write; ``programs=False`` refuses python, pip, write and edit. ``entries`` is the
    number of files and folders that the tree held at first.
    """

    def __init__(self, tree: Tree, limits: Limits, *, writable: bool, programs: bool, entries: int) -> None:
        self.cwd = ROOT
        self._tree = tree
        self._limits = limits
        self._writable = writable
        self._entries = entries
        self._written = 0
        self._commands = {
            "cat": self._cat,
            "cd": self._cd,
            "echo": self._echo,
            "exit": self._exit,
            "head": self._head,
            "id": self._id,
            "ls": self._ls,
            "tail": self._tail,
        }
        if programs:
            self._commands |= {"pip": self._pip, "python": self._python}
        self._bodied = {"edit": self._edit, "python": self._code, "write": self._fill} if programs else {}

    def run(self, command: str) -> Result:
        """Execute one command; an error becomes a sentence in the result."""
        try:
            line, _, body = command.partition("\n") if has_body(command) else (command.rstrip("\n"), "", "")
            words, sign, target = parse(line)
            verb, *arguments = words or [""]
            if verb not in self._commands and verb not in self._bodied:
                known = sorted({*self._commands, *self._bodied})
                raise InvalidInput(f"command {shown(verb)!r} is not known; {nearest(verb[:40], known)}")
            if sign and verb != "echo":
                raise InvalidInput(f"{verb} cannot write to a file; only echo can.")
            if sign:
                return self._write(f"{' '.join(arguments)}\n", target, append=sign == ">>")
            if has_body(command) or verb not in self._commands:
                return self._bodied[verb](arguments, body)
            return self._commands[verb](arguments)
        except InvalidInput as error:
            return self._say(str(error), failed=True)

    def _say(self, text: str, notice: str = "", *, failed: bool = False) -> Result:
        text = presentable(text, self._limits.output)
        return Result("\n".join(part for part in (text.rstrip("\n") if notice else text, notice) if part), failed)

    def _at(self, path: str) -> PurePosixPath:
        return self.cwd / path

    def _cd(self, words: Sequence[str]) -> Result:
        folder = _only(words, "cd takes one folder", default="/")
        with self._tree.folder(self._at(folder)) as (_, self.cwd):
            return Result("")

    def _ls(self, words: Sequence[str]) -> Result:
        entries = self._tree.entries(self._at(_only(words, "ls takes one folder and no options", default=".")))
        listed = "\n".join(entry.name + "/" * entry.folder for entry in entries[: self._limits.output])
        return self._say(listed or "this folder is empty.")

    def _cat(self, words: Sequence[str]) -> Result:
        if not words:
            raise InvalidInput("cat was given no file; expected one or more.")
        pieces, length, failed = [], 0, False
        for word in words:
            try:
                pieces.append(self._text(word))
            except InvalidInput as error:
                failed = True
                pieces.append(f"{error}\n")
            length += len(pieces[-1])
            if length > self._limits.output:
                break
        return self._say("".join(pieces), failed=failed)

    def _head(self, words: Sequence[str]) -> Result:
        count, file = _lines("head", words)
        return self._say("\n".join(self._text(file).split("\n", count)[:count]))

    def _tail(self, words: Sequence[str]) -> Result:
        count, file = _lines("tail", words)
        lines = self._text(file, end=True).removesuffix("\n").split("\n")
        text = "\n".join(lines[max(0, len(lines) - count) :])
        most = self._limits.output
        notice = f"(only the last {most:,} characters)" if len(text) > most else ""
        return self._say(text[-most:], notice)

    def _echo(self, words: Sequence[str]) -> Result:
        return self._say(" ".join(words))

    def _id(self, words: Sequence[str]) -> Result:
        path = self._tree.named(self._at(_only(words, "id takes one file")))
        return Result("", ended=True, answer=str(path))

    def _exit(self, words: Sequence[str]) -> Result:
        if words:
            raise InvalidInput("exit takes nothing after it.")
        return Result("", ended=True)

    def _python(self, words: Sequence[str]) -> Result:
        if not words or (words[0] == "-c" and len(words) == 1):
            raise InvalidInput("python takes a file, or -c and code.")
        if words[0] == "-c":
            return self._start(words)
        return self._start([str(MOUNT / self._tree.named(self._at(words[0]))), *words[1:]])

    def _code(self, _: Sequence[str], body: str) -> Result:
        return self._start(["-c", body])

    def _fill(self, words: Sequence[str], body: str) -> Result:
        return self._write(body, _only(words, "write takes one file"), append=False)

    def _edit(self, words: Sequence[str], body: str) -> Result:
        name = _only(words, "edit takes one file")
        with self._tree.file(self._at(name)) as fd:
            data = os.pread(fd, self._limits.write_bytes, 0)
        try:
            return self._write(apply_edits(data.decode(), body), name, append=False)
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{shown(name)} is not text; nothing was changed.") from error

    def _pip(self, words: Sequence[str]) -> Result:
        return self._start(["-m", "pip", *words], "(pip has no network here.)")

    def _start(self, arguments: Sequence[str], hint: str = "") -> Result:
        if any("\0" in word or len(word.encode(errors="replace")) >= MAX_ARGUMENT_BYTES for word in arguments):
            raise InvalidInput(
                f"the code or an argument has a NUL character or {MAX_ARGUMENT_BYTES:,} bytes or more; write long code "
                "to a file, and run that."
            )
        arguments = [word.encode(errors="replace").decode() for word in arguments]  # lone surrogates are not text
        left = self._limits.write_bytes - self._written
        if left <= 0:
            raise InvalidInput(self._used_up())
        done = run_program(
            arguments,
            self._tree.root,
            self.cwd,
            limits=self._limits,
            writable=self._writable,
            write_bytes=left,
            entries=self._entries + self._limits.write_files,
        )
        self._written += done.written
        notices = (done.notice, hint if done.failed else "")
        return self._say(done.output, "\n".join(notice for notice in notices if notice), failed=done.failed)

    def _write(self, text: str, name: str, *, append: bool) -> Result:
        if not self._writable:
            raise InvalidInput("this view of the repository is for reading only; nothing was written.")
        data = text.encode("utf-8", "replace")
        if self._written + len(data) > self._limits.write_bytes:
            raise InvalidInput(self._used_up())
        with self._tree.file(self._at(name), WRITE) as fd, os.fdopen(fd, "wb", closefd=False) as file:
            if append:
                file.seek(0, os.SEEK_END)
            else:
                file.truncate()
            file.write(data)
        self._written += len(data)
        return Result("")

    def _used_up(self) -> str:
        return f"the {self._limits.write_bytes:,} bytes that may be written here are used up; nothing was done."

    def _text(self, name: str, *, end: bool = False) -> str:
        """Read as much of a file as can be shown, from its beginning or its end; a sentence if it is not text."""
        with self._tree.file(self._at(name)) as fd:
            size = os.fstat(fd).st_size
            window = 4 * self._limits.output + 4
            data = os.pread(fd, max(window, SNIFF_BYTES), 0)
            if _is_binary(data[:SNIFF_BYTES]):
                return f"{shown(name)} is binary, {size:,} bytes\n"
            if end and size > window:
                data = os.pread(fd, window, size - window)
                while data and data[0] & 0xC0 == 0x80:  # the rest of a character that began before this part
                    data = data[1:]
        return data.decode("utf-8", "replace")


def _only(words: Sequence[str], usage: str, default: str | None = None) -> str:
    if not words and default is not None:
        return default
    if len(words) != 1:
        raise InvalidInput(f"{usage}; {len(words)} words were given. Names with spaces go in quotes.")
    return words[0]


def _lines(verb: str, words: Sequence[str]) -> tuple[int, str]:
    match list(words):
        case [file]:
            return DEFAULT_LINES, file
        case ["-n", count, file] if re.fullmatch(r"[0-9]{1,9}", count):
            return int(count), file
        case [option, file] if found := re.fullmatch(r"-n?([0-9]{1,9})", option):
            return int(found[1]), file
    raise InvalidInput(f"{verb} takes -n and a number of lines, if any, and then one file.")
