"""``FirstReply``: tells the user, now and then, that an endpoint has not given any reply yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class FirstReply:
    """Waiting for the first reply of a server, which may be slow or still load its model.

    Args:
        who: the endpoint, for messages.
        notice_s: seconds until the first line; they double with each further one.
        tell: given each line.

    """

    def __init__(self, who: str, notice_s: float, tell: Callable[[str], None]) -> None:
        self._who = who
        self._notice_s = notice_s
        self._tell = tell
        self._came = False
        self._timer: asyncio.TimerHandle | None = None

    def expect(self) -> None:
        """A request is sent."""
        if not self._came and self._timer is None:
            self._wait(self._notice_s, self._notice_s)

    def came(self) -> None:
        """A reply is there, of whatever kind."""
        self._came = True
        self.leave()

    def leave(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float, waited: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._say, waited)

    def _say(self, waited: float) -> None:
        self._tell(f"still waiting for the first reply from {self._who} ({waited:g} s).")
        self._wait(waited, 2 * waited)
