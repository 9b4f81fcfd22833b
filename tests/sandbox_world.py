"""A repository in a sandbox with a secret beside it, and checks that the secret stays one."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from reflectrl.envs.auto_explore.sandbox import Result, Sandbox

TOKEN = "the-token-of-the-secret"


def picture(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Kind and mode, time of change and content of everything below ``folder``."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        read = stat.S_ISREG(status.st_mode) and status.st_size < 100_000
        found[str(path)] = (status.st_mode, status.st_mtime_ns, path.read_bytes() if read else b"")
    return found


class World:
    """A repository, a secret in a folder beside it, and a sandbox, made by ``open``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outside, self.repository = folder, folder / "outside", folder / "repository"
        for path in ("outside/secret.txt", "outside/f.txt", "repository/.env", "repository/.git/config"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(TOKEN)
        (self.repository / "src").mkdir()
        (self.repository / "src" / "b.txt").write_text("b")
        (self.repository / "a.txt").write_text("a")

    def open(self, **options) -> None:
        self.sandbox = Sandbox(self.repository, **options)
        self.up = os.path.relpath(self.outside, self.sandbox.root)
        self._before = picture(self.outside), picture(self.repository)

    def run(self, command: str) -> Result:
        """Play a command and check its result: nothing of the outside, nothing that a terminal obeys."""
        result = self.sandbox.run(command.replace("{up}", self.up).replace("{outside}", str(self.outside)))
        assert TOKEN not in result.output
        assert "root:" not in result.output, "that is /etc/passwd"
        assert all(letter.isprintable() or letter in "\n\t\N{REPLACEMENT CHARACTER}" for letter in result.output)
        assert len(result.output) < 5000
        return result

    def python(self, code: str) -> Result:
        return self.run(f"python -c {shlex.quote(code)}")

    def close(self) -> None:
        assert (picture(self.outside), picture(self.repository)) == self._before
        self.sandbox.close()
        assert list((self.folder / "copies").iterdir()) == []
