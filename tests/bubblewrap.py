"""Check whether python and pip can run in the sandbox here."""

from __future__ import annotations

import functools
import shutil
import subprocess
from importlib.util import find_spec

NEEDED = "python and pip in the sandbox need bubblewrap 0.8 or newer, and libseccomp"


@functools.cache
def programs_work() -> bool:
    command = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "true"]
    if shutil.which("bwrap") is None or find_spec("pyseccomp") is None:
        return False
    try:
        import pyseccomp  # noqa: F401 - loads the system's library
    except (RuntimeError, OSError):
        return False
    return subprocess.run(command, check=False).returncode == 0
