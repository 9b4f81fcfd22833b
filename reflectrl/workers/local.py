"""``LocalEnvs``: environments in this process, whose failures may drop an episode; a step that hangs is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from reflectrl.core.border import Border, place_of
from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, EpisodeFailed, WorkFailed
from reflectrl.core.registry import make_env
from reflectrl.core.stop import tell_user
from reflectrl.workers.failures import Failures
from reflectrl.workers.limits import WorkerLimits

CHECK_INTERVAL_S = 1.0
"""Maximum seconds between two looks at how long a step takes."""


class LocalEnvs(Failures, Border):
    """Maker of environments in this process; use it as a context, or close it.

    With ``on_failure="drop"`` an environment that raises loses its episode (``EpisodeFailed``); otherwise the work ends
    with its error, since there is no new process in which to replay. A step that outlasts the deadline is reported once
    and not interrupted: an exception from a signal handler does not reach code in C, and elsewhere it would leave locks
    held and engines between two states, with which the other environments of this process would play on.

    Args:
        limits: deadline, answer to failures and number of failures of all environments together.
        tell: called with a sentence about a step that hangs, from another thread.

    """

    def __init__(self, limits: WorkerLimits, tell: Callable[[str], None] = tell_user) -> None:
        super().__init__(limits)
        self._tell = tell
        self._inside: list[tuple[NatLangEnv, bool, float]] = []  # calls that have not returned, the outermost first
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None

    def make(self, name: str, options: Mapping[str, Any], count: int) -> list[NatLangEnv]:
        """Make ``count`` environments; raise ``InvalidInput`` as ``make_env`` does."""
        envs = [make_env(name, **options) for _ in range(count)]
        for env in envs:
            env._border = self
        if self._watch is None:
            self._watch = threading.Thread(target=self._report_hangs, name="hanging steps", daemon=True)
            self._watch.start()
        return envs

    def enter(self, env: NatLangEnv, *, asked: bool) -> None:
        """Note that a method is called."""
        self._inside.append((env, asked, time.monotonic()))

    def leave(self) -> None:
        """Note that the last method called has ended."""
        self._inside.pop()

    def failed(self, error: EnvFailed) -> WorkFailed:
        """Count a failure; return the error that drops the episode, or the one that ends the work."""
        if self.limits.on_failure != "drop":
            return error
        sentence = f"{error.where}: it {error.what}"
        self.count_failure(sentence)
        return EpisodeFailed(f"{sentence}; the episode is dropped.")

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
        if self._watch is not None:
            self._watch.join()

    def __enter__(self) -> LocalEnvs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report_hangs(self) -> None:
        deadline_s, told = self.limits.deadline_s, None
        while not self._closed.wait(min(CHECK_INTERVAL_S, deadline_s / 4)):
            for call in self._inside[:1]:
                env, asked, since = call
                if call is not told and time.monotonic() - since >= deadline_s:
                    told = call
                    self._tell(
                        f"environment {env.name!r} has not answered for {deadline_s:g} s (env.deadline_s), "
                        f"{place_of(env, hints=asked)}. Nothing can stop it in this process: if it hangs, end the "
                        "command and repeat it with env.workers=1 or more, which kills a worker process that is late "
                        "and goes on."
                    )
