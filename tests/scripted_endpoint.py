"""A real HTTP server on 127.0.0.1 that speaks the chat API; its model's words and its faults are scripted."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Chat = list[dict[str, str]]


@dataclass(frozen=True)
class Request:
    """What one call sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    time: float

    @property
    def chat(self) -> Chat:
        return self.body["messages"]


class ScriptedEndpoint:
    """``with ScriptedEndpoint() as endpoint``: answers with ``reply(chat)``, after the ``faults`` still in the queue.

    Faults: a status such as "500", "429:SECONDS" (with Retry-After), "quota", "echo-key", "html", "truncated", "cut",
    "empty", "length", "no-choices", "list", "slow:SECONDS", and "none".
    """

    def __init__(self) -> None:
        self.reply: Callable[[Chat], str] = lambda chat: "fine"  # noqa: ARG005
        self.faults: deque[str] = deque()
        self.requests: list[Request] = []
        self.connections = 0
        """Accepted so far."""
        self.open = 0
        """Of them, those not closed yet."""
        self.latency_s = 0.0
        """Before every reply."""
        self.peak = 0
        self.active = 0
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.root = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.root}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: ScriptedEndpoint

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.owner.lock:
            self.owner.connections += 1
            self.owner.open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.owner.lock:
            self.owner.open -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each reply waits 40 ms for a delayed acknowledgement
    server: _Server

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        owner = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with owner.lock:
            owner.requests.append(Request(self.path, dict(self.headers), body, time.monotonic()))
            fault, _, value = (owner.faults.popleft() if owner.faults else "none").partition(":")
            owner.active += 1
            owner.peak = max(owner.peak, owner.active)
        time.sleep(owner.latency_s)
        try:
            self._answer(fault, value, json.dumps(_completion(owner.reply(body["messages"]))).encode())
        finally:
            with owner.lock:
                owner.active -= 1

    def _answer(self, fault: str, value: str, good: bytes) -> None:
        odd = {
            "empty": _completion(""),
            "length": _completion("", "length"),
            "no-choices": {"object": "chat.completion", "choices": None},
            "list": [1, 2],
        }
        if fault == "slow":
            time.sleep(float(value))
        if fault in ("none", "slow"):
            self._send(200, good)
        elif fault in odd:
            self._send(200, json.dumps(odd[fault]).encode())
        elif fault == "html":
            self._send(200, b"<html>a proxy's page</html>", kind="text/html")
        elif fault == "truncated":
            self._send(200, good[:40])
        elif fault == "cut":
            self.close_connection = True
            self._send(200, good[:40], length=len(good))
        elif fault == "quota":
            self._error(429, "You exceeded your current quota", "insufficient_quota")
        elif fault == "echo-key":
            self._error(401, f"refused: {self.headers['authorization']}", "invalid_api_key")
        else:
            self._error(int(fault), f"injected {fault}", None, value)

    def _error(self, status: int, message: str, code: str | None, retry_after: str = "") -> None:
        body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
        self._send(status, json.dumps(body).encode(), retry_after=retry_after)

    def _send(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        length: int | None = None,
        retry_after: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body) if length is None else length))
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.end_headers()
        self.wfile.write(body)


def _completion(text: str, finish: str = "stop") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }
