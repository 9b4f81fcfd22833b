"""``LocalEnvs``: environments in this process, where a failure or a step that hangs may drop an episode."""

from __future__ import annotations

import signal
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
    with its error, since there is no new process in which to replay. With ``"drop"``, a step that outlasts the deadline
    loses its episode too: an alarm raises the error in it, if it runs in the main thread. What an alarm cannot end,
    such as code in C that does not return, and every such step without ``"drop"``, is reported once; interrupted code
    may leave locks held and engines between two states, with which not every work should go on.

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
        self._before: Any = None
        """Handler of alarms before ours; ``None`` while steps are not interrupted."""

    def make(self, name: str, options: Mapping[str, Any], count: int) -> list[NatLangEnv]:
        """Make ``count`` environments; raise ``InvalidInput`` as ``make_env`` does."""
        envs = [make_env(name, **options) for _ in range(count)]
        for env in envs:
            env._border = self
        ours = self.limits.on_failure == "drop" and threading.current_thread() is threading.main_thread()
        if ours and self._before is None and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            self._before = signal.signal(signal.SIGALRM, self._late) or signal.SIG_DFL
        if self._watch is None:
            self._watch = threading.Thread(target=self._report_hangs, name="hanging steps", daemon=True)
            self._watch.start()
        return envs

    def enter(self, env: NatLangEnv, *, asked: bool) -> None:
        """Note that a method is called."""
        self._inside.append((env, asked, time.monotonic()))
        self._alarm(self.limits.deadline_s)

    def leave(self) -> None:
        """Note that the last method called has ended."""
        self._alarm(0.0)
        self._inside.pop()

    def _alarm(self, seconds: float) -> None:
        """Raise an alarm in so many seconds, unless the method was called by another one or in another thread."""
        main = threading.current_thread() is threading.main_thread()
        if self._before is not None and main and len(self._inside) == 1:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _late(self, _number: int, _frame: object) -> None:
        if self._inside:
            env, asked, _ = self._inside[0]
            sentence = (
                f"environment {env.name!r} did not answer within {self.limits.deadline_s:g} s (env.deadline_s), "
                f"{place_of(env, hints=asked)}"
            )
            self.count_failure(f"{sentence}; env.workers=1 or more isolates what cannot be interrupted here")
            raise EpisodeFailed(f"{sentence}; the episode is dropped.")

    def failed(self, error: EnvFailed) -> WorkFailed:
        """Count a failure; return the error that drops the episode, or the one that ends the work."""
        if self.limits.on_failure != "drop":
            return error
        sentence = f"{error.where}: it {error.what}"
        self.count_failure(sentence)
        return EpisodeFailed(f"{sentence}; the episode is dropped.")

    def close(self) -> None:
        """End the watch, and the alarms."""
        if self._before is not None:
            signal.signal(signal.SIGALRM, self._before)
            self._before = None
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
            patience_s = deadline_s if self._before is None else 2 * deadline_s  # an alarm comes first
            for call in self._inside[:1]:
                env, asked, since = call
                if call is not told and time.monotonic() - since >= patience_s:
                    told = call
                    self._tell(
                        f"environment {env.name!r} has not answered for {patience_s:g} s (env.deadline_s), "
                        f"{place_of(env, hints=asked)}. Nothing can stop it in this process: if it hangs, end the "
                        "command and repeat it with env.workers=1 or more, which kills a worker process that is late "
                        "and goes on."
                    )
