"""``watch``: the report's page on this machine, which follows runs while they train. It reads, and nothing writes.

One page and one builder: the server renders the report again when files of the runs changed, and tells the browsers
that watch (server-sent events); ``live.js`` then takes over what differs. Episodes are read when a browser asks.
"""

from __future__ import annotations

import gzip
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import host_of, ip_address, listen
from reflectrl.core.stop import tell_user
from reflectrl.core.text import first_line
from reflectrl.report.follow import FollowedRuns
from reflectrl.report.packing import Album, pack, reader_of
from reflectrl.report.page import Live, report_page
from reflectrl.report.sources import LIMITS, Source, read_source

LOOK_S = 1.0
"""Seconds between two looks at the files."""
REST = 4.0
"""Minimum time between two looks as a multiple of what the last one took: training has the processor."""
KEPT = 8
"""Number of sources whose packed episodes are kept, those that were packed last."""
ALIVE_S = 15.0
"""Seconds after which a browser is sent something, which finds out those that are gone."""
STUCK_S = 30.0
"""Seconds in which a request arrives, or a reply is taken."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def watch(
    given: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8090,
    served_as: Sequence[str] = (),
    ready: Callable[[str], None] = tell_user,
) -> None:
    """Serve the page of runs until SIGINT.

    It has no key, because a browser sends none when a person opens a page: for others, a proxy asks who they are.

    Args:
        given: run folders, or folders that hold some, also runs that begin later.
        host: address to listen on; a warning says so where others can reach it.
        port: port to listen on; 0 for any free one.
        served_as: host names that browsers may use, besides ``host``, ``localhost`` and IP addresses.
        ready: receives a line with the address, once the server answers.

    Raises:
        InvalidInput: no folder is there, or the address cannot be used.

    """
    page = LivePage(given)
    with listen(host, port) as listener:
        address, number = listener.getsockname()[:2]
        public = not ipaddress.ip_address(address).is_loopback
        if public:
            tell_user(f"warning: other machines can reach {address} and read these runs; no key protects them.")
        names = {host, *served_as, *([socket.gethostname()] if public else ())}
        server = _Server(page, listener, {*map(str.lower, names)})
        url = f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"
        ready(f"watching {', '.join(map(str, given))} on {url}")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


class _Packed(NamedTuple):
    """Episodes of a source in one state of its files."""

    version: str
    text: str
    """The episodes as JSON, which the page loads."""
    rested: float
    """When they may be packed again, on the monotonic clock."""


class LivePage:
    """The page of runs as they are now; its methods may be called by several threads.

    Args:
        given: run folders, and folders that hold some.

    Raises:
        InvalidInput: no folder is there.

    """

    def __init__(self, given: Sequence[Path]) -> None:
        self._runs = FollowedRuns(given)
        self._title = ", ".join(map(str, given))
        self._lock = threading.Lock()
        self._begun, self._changes, self._next_look = time.time_ns(), 0, 0.0
        self._page, self._sources = "", dict[str, Source]()
        self._packing, self._packed = threading.Lock(), dict[str, _Packed]()

    def look(self) -> str:
        """Return the version of the page, which is another one if files of the runs have changed."""
        with self._lock:
            began = time.monotonic()
            if began >= self._next_look:
                if self._runs.look() or not self._page:
                    self._render()
                took = time.monotonic() - began
                self._next_look = began + max(LOOK_S, REST * took)
            return self._version

    def text(self) -> str:
        """Return the page."""
        self.look()
        return self._page

    def episodes(self, key: str) -> str | None:
        """Return the episodes of a source as JSON for viewer.js; ``None`` if there is no such source.

        The JSON has ``block``, ``pictures``, and ``missing``, sentences about what is not there. Episodes are packed
        once in each state of their files, one source at a time; who asks for the next state soon after, waits.

        Raises:
            InvalidInput: a file that is damaged, or gone since the page was made.

        """
        while True:
            self.look()
            with self._packing:
                source = self._sources.get(key)
                if source is None:
                    return None
                known, version = self._packed.get(key), source.version
                if known and known.version == version:
                    return known.text
                wait = known.rested - time.monotonic() if known else 0.0
                if wait <= 0:
                    return self._pack(key, source, version)
            time.sleep(min(wait, LOOK_S))

    def _pack(self, key: str, source: Source, version: str) -> str:
        began, missing, album = time.monotonic(), list[str](), Album(LIMITS.pictures)
        reader = reader_of(source.run.path) if source.reads else None
        block = pack(read_source(source, missing), album, reader, LIMITS.tokens)
        text = json.dumps({"block": block, "pictures": album.pictures, "missing": missing})
        ended = time.monotonic()
        self._packed.pop(key, None)
        self._packed[key] = _Packed(version, text, ended + REST * (ended - began))
        for oldest in [*self._packed][:-KEPT]:
            del self._packed[oldest]
        return text

    @property
    def _version(self) -> str:
        return f"{self._begun}-{self._changes}"

    def _render(self) -> None:
        self._changes += 1
        runs, unread = self._runs.runs, self._runs.unread
        live = Live(self._title, self._version, unread, self._runs.written)
        try:
            self._page, self._sources = report_page(runs, live), live.sources
        except (InvalidInput, OSError) as error:  # a run has vanished since it was read: the next look finds out
            live = Live(self._title, self._version, [*unread, ("", first_line(error))])
            self._page = self._page or report_page([], live)


class _Server(ThreadingHTTPServer):
    """Answers from ``page`` on ``listener``, clients that name one of ``hosts``, ``localhost`` or an IP address."""

    daemon_threads = True

    def __init__(self, page: LivePage, listener: socket.socket, hosts: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.page, self.hosts = page, {"localhost", *hosts}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say where a request failed, unless its client is gone."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET, and no other method."""

    server: _Server
    timeout = STUCK_S
    server_version, sys_version = "reflectrl", ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the names of the base class
        """Write nothing: the page of many runs is asked for often."""

    def do_GET(self) -> None:
        """Answer a request for the page, its events or episodes."""
        if refusal := self._refusal():
            self._reply(HTTPStatus.FORBIDDEN, "text/plain", refusal)
            return
        path, _, query = self.path.partition("?")
        if path == "/":
            self._reply(HTTPStatus.OK, "text/html", self.server.page.text())
        elif path == "/events":
            self._tell()
        elif path == "/episodes":
            self._episodes(parse_qs(query).get("of", [""])[0])
        else:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", "nothing is here; the page is at /.")

    def _refusal(self) -> str:
        """Say why a request is refused: a web page may have pointed its own name at this server (DNS rebinding)."""
        given, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        host = host_of(f"//{given}")
        if host not in self.server.hosts and not ip_address(host):
            known = ", ".join(sorted(self.server.hosts))
            return f"the header Host names {host[:60]!r}; expected {known} or an IP address, or a --served-as."
        if origin is not None and origin.partition("//")[2] != given:
            return "another web page asked; only the page of this server may."
        return ""

    def _episodes(self, key: str) -> None:
        try:
            found = self.server.page.episodes(key)
        except (InvalidInput, OSError) as error:
            self._reply(HTTPStatus.CONFLICT, "text/plain", str(error))
            return
        if found is None:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", "no run has such episodes now.")
        else:
            self._reply(HTTPStatus.OK, "application/json", found)

    def _tell(self) -> None:
        """Send the version of the page at once, and again whenever it is another one, until the browser leaves."""
        self.send_response(HTTPStatus.OK)
        self._send_headers("text/event-stream", {"X-Accel-Buffering": "no"})
        told, last = "", 0.0
        while True:
            version, now = self.server.page.look(), time.monotonic()
            if version != told:
                self.wfile.write(f"retry: 2000\ndata: {version}\n\n".encode())
                told, last = version, now
            elif now - last > ALIVE_S:
                self.wfile.write(b":\n\n")
                last = now
            time.sleep(LOOK_S)

    def _reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        body, more = text.encode(), {}
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body, more = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
        self.send_response(status)
        self._send_headers(kind, {**more, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_headers(self, kind: str, more: dict[str, str]) -> None:
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()
