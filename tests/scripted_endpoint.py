"""A real HTTP server on 127.0.0.1 with the chat API, whose replies and faults are scripted."""

from __future__ import annotations

import contextlib
import email
import gzip
import json
import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import REPLIES
from reflectrl.endpoint.replies import read_tokens

Chat = list[dict[str, str]]
ODD_STATUS = re.compile(r"\d+|quota|too-long|echo-key|redirect|said-no")
"""Faults that the server answers with the status of an error, and does not charge."""


def replies_in(folder: Path) -> list[dict[str, Any]]:
    """Return the replies in the journal of a folder, without the requests for them."""
    lines = map(json.loads, (folder / REPLIES).read_text(encoding="utf-8").split("\n")[:-1])
    return [line for line in lines if not line["sent"]]


@dataclass(frozen=True)
class Request:
    """A request that the server received."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    time: float

    @property
    def chat(self) -> Chat:
        return self.body["messages"]


def fixed_usage(chat: Chat, words: str) -> dict[str, Any]:  # noqa: ARG001
    return {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def counted_usage(chat: Chat, words: str) -> dict[str, Any]:
    """Return the usage counted by a tokenizer whose tokens are four characters long."""
    prompt, completion = sum(len(message["content"]) for message in chat) // 4, len(words) // 4
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def dearest(chat: Chat, words: str) -> dict[str, Any]:  # noqa: ARG001
    """Return the most tokens that a call of 11 characters may use: one per byte, 16 per message, all of max_tokens."""
    return {"prompt_tokens": 27, "completion_tokens": 200}


class ScriptedEndpoint:
    """A server, ``with ScriptedEndpoint() as endpoint``, that answers ``reply(chat)`` after the queued ``faults``.

    Faults: a status such as "500", "429:SECONDS" (with Retry-After), "quota", "too-long", "echo-key", "html",
    "truncated", "cut", "reset", "bad-utf8", "deep", "empty", "length", "refusal", "content-filter", "wrong-type",
    "no-choices", "list", "no-usage", "cut-off" by max_tokens, "endless", "gzip", "redirect:ADDRESS",
    "slow:SECONDS" before the reply, "drip:SECONDS" byte by byte, and "none".
    """

    def __init__(self, port: int = 0) -> None:
        self.reply: Callable[[Chat], str] = lambda chat: "fine"  # noqa: ARG005
        self.usage: Callable[[Chat, str], dict[str, Any]] = fixed_usage
        self.answer: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda body: None  # noqa: ARG005
        """Answers a request's body with a status and JSON, or with the text of a stream, in place of all else."""
        self.faults: deque[str] = deque()
        self.requests: list[Request] = []
        """Requests to the chat API; those to the Files and Batches API are in ``batches``."""
        self.connections = 0
        """Number of connections accepted so far."""
        self.open = 0
        """Number of connections that are not closed yet."""
        self.latency_s = 0.0
        """Pause before every reply in seconds."""
        self.flooded = 0
        """Number of bytes of endless replies that were sent."""
        self.charged: list[Tokens] = []
        """What each request but those answered with an error costs, whether the client has got the reply or not."""
        self.peak = 0
        self.active = 0
        self.lock = threading.Lock()
        self.batches = ScriptedBatches(self)
        self._server = _Server(("127.0.0.1", port), _Handler)
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

    def at(self, **changes: object) -> Endpoint:
        """Return the settings of a client of this server, without long pauses."""
        fields: dict[str, object] = {"base_url": self.url, "backoff_s": 0.01, "max_attempts": 4, **changes}
        return Endpoint(**fields)  # type: ignore[arg-type]

    def next_fault(self) -> str:
        """Return the fault of the next request; the caller holds the lock."""
        return self.faults.popleft() if self.faults else "none"

    def completion(self, chat: Chat) -> dict[str, Any]:
        words = self.reply(chat)
        return {**_completion(words), "usage": self.usage(chat, words)}


class ScriptedBatches:
    """The Files and Batches API, in which a batch moves to the next of ``states`` each time it is retrieved."""

    def __init__(self, owner: ScriptedEndpoint) -> None:
        self.states: Sequence[str] = ("validating", "in_progress", "completed")
        self.refused: Callable[[Chat], bool] = lambda chat: False  # noqa: ARG005
        """Function that selects the calls that end in the error file."""
        self.calls: list[list[dict[str, Any]]] = []
        """Lines of each batch."""
        self.seen: list[str] = []
        """Method and path of each request."""
        self._owner = owner
        self._files: dict[str, str] = {}
        self._inputs: list[str] = []
        self._looks: list[int] = []

    def answer(self, method: str, path: str, kind: str, raw: bytes) -> dict[str, Any] | str | None:
        """Return the reply, or ``None`` for an unknown path."""
        with self._owner.lock:
            self.seen.append(f"{method} {path}")
            if (method, path) == ("POST", "/v1/files"):
                return self._file(_uploaded(kind, raw))
            if (method, path) == ("POST", "/v1/batches"):
                return self._create(json.loads(raw))
            if method == "GET" and path.startswith("/v1/batches?"):
                made = [self._state(number, "validating") for number in range(len(self.calls))]
                return {"object": "list", "data": made, "has_more": False}
            if method == "GET" and (found := re.fullmatch(r"/v1/batches/batch-(\d+)", path)):
                return self._look(int(found[1]))
            if method == "GET" and (found := re.fullmatch(r"/v1/files/(file-\d+)/content", path)):
                return self._files[found[1]]
        return None

    def _file(self, content: str) -> dict[str, Any]:
        name = f"file-{len(self._files)}"
        self._files[name] = content
        return {"id": name, "object": "file", "bytes": len(content), "created_at": 1, "filename": "f", "purpose": "b"}

    def _create(self, wanted: dict[str, Any]) -> dict[str, Any]:
        assert (wanted["endpoint"], wanted["completion_window"]) == ("/v1/chat/completions", "24h")
        self._inputs.append(wanted["input_file_id"])
        self.calls.append([json.loads(line) for line in self._files[self._inputs[-1]].splitlines()])
        self._looks.append(0)
        return self._state(len(self.calls) - 1, self.states[0])

    def _look(self, number: int) -> dict[str, Any]:
        state = self.states[min(self._looks[number], len(self.states) - 1)]
        self._looks[number] += 1
        return self._state(number, state)

    def _state(self, number: int, state: str) -> dict[str, Any]:
        calls = self.calls[number]
        fields: dict[str, Any] = {"id": f"batch-{number}", "object": "batch", "status": state, "created_at": 1}
        fields["input_file_id"] = self._inputs[number]
        counts = {"total": len(calls), "completed": 0, "failed": 0}
        if state == "failed":
            fields["errors"] = {"object": "list", "data": [{"code": "bad", "message": "Line 1 is no good."}]}
        elif state in ("completed", "expired", "cancelled"):
            done = calls if state == "completed" else calls[: len(calls) // 2]
            refused = [call for call in done if self.refused(call["body"]["messages"])]
            good = [self._good(call) for call in reversed(done) if call not in refused]  # in a different order
            bad = [_result(call, {"status_code": 400, "body": {"error": {"message": "no"}}}) for call in refused]
            bad += [_result(call, None, {"code": "batch_expired"}) for call in calls[len(done) :]]
            fields["output_file_id"] = self._lines(good)
            fields["error_file_id"] = self._lines(bad)
            counts.update(completed=len(good), failed=len(bad))
        return {**fields, "request_counts": counts}

    def _good(self, call: dict[str, Any]) -> dict[str, Any]:
        return _result(call, {"status_code": 200, "body": self._owner.completion(call["body"]["messages"])})

    def _lines(self, lines: list[dict[str, Any]]) -> str | None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return self._file(text)["id"] if lines else None


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

    def handle_error(self, *about: object) -> None:
        """Ignore clients that hung up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each reply waits 40 ms for a delayed acknowledgement
    server: _Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer_other("GET", b"")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if "chat/completions" in self.path:
            self._answer_chat(json.loads(raw))
        else:
            self._answer_other("POST", raw)

    def _answer_other(self, method: str, raw: bytes) -> None:
        owner = self.server.owner
        with owner.lock:
            fault, _, value = owner.next_fault().partition(":")
        if fault not in ("none", "slow", "cut"):  # refused before anything is done
            self._answer(fault, value, {})
            return
        answer = owner.batches.answer(method, self.path, self.headers.get("content-type", ""), raw)
        if answer is None:
            self._error(404, "no such path", None)
        elif isinstance(answer, str):
            self._send(200, answer.encode(), kind="application/octet-stream")
        else:
            self._answer(fault, value, answer)

    def _answer_chat(self, body: dict[str, Any]) -> None:
        owner = self.server.owner
        with owner.lock:
            owner.requests.append(Request(self.path, dict(self.headers), body, time.monotonic()))
            fault, _, value = owner.next_fault().partition(":")
            owner.active += 1
            owner.peak = max(owner.peak, owner.active)
        time.sleep(owner.latency_s)
        try:
            if recorded := owner.answer(body):
                status, said = recorded
                is_stream = isinstance(said, str)
                kind = "text/event-stream; charset=utf-8" if is_stream else "application/json"
                self._send(status, (said if is_stream else json.dumps(said)).encode(), kind=kind)
                return
            answer = owner.completion(body["messages"])
            if not ODD_STATUS.fullmatch(fault):
                owner.charged.append(read_tokens(answer))
            self._answer(fault, value, answer)
        finally:
            with owner.lock:
                owner.active -= 1

    def _answer(self, fault: str, value: str, answer: dict[str, Any]) -> None:
        good = json.dumps(answer).encode()
        odd = _odd(answer)
        if fault == "slow":
            time.sleep(float(value))
        if fault in ("none", "slow"):
            self._send(200, good)
        elif fault in odd:
            self._send(200, json.dumps(odd[fault]).encode())
        elif fault in ("truncated", "bad-utf8", "deep"):
            self._send(200, {"truncated": good[:40], "bad-utf8": b'{"a": "\xff"}', "deep": b"[" * 10**5}[fault])
        elif fault == "html":
            self._send(200, b"<html>a proxy's page</html>", kind="text/html")
        elif fault == "cut":
            self.close_connection = True
            self._send(200, good[:40], length=len(good))
        elif fault == "reset":
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        elif fault == "endless":
            self._flood()
        elif fault == "gzip":
            self._send(200, gzip.compress(good), headers={"content-encoding": "gzip"})
        elif fault == "redirect":
            self._send(307, b"", headers={"location": value})
        elif fault == "drip":
            self._drip(good, float(value))
        elif fault == "quota":
            self._error(429, "You exceeded your current quota", "insufficient_quota")
        elif fault == "too-long":
            self._error(400, "This model's maximum context length is 8192 tokens", "context_length_exceeded")
        elif fault == "echo-key":
            self._error(int(value or 401), f"refused: {self.headers['authorization']}", "invalid_api_key")
        else:
            self._error(int(fault), f"injected {fault}", None, value)

    def _flood(self) -> None:
        """Send a body that seems endless: 64 MiB of it, unless the client hangs up before."""
        self.close_connection = True
        self._send(200, b"", length=2**60)
        with contextlib.suppress(OSError):
            for _ in range(1024):
                self.wfile.write(b" " * 2**16)
                self.server.owner.flooded += 2**16

    def _drip(self, body: bytes, seconds: float) -> None:
        self._send(200, b"", length=len(body))
        for byte in body:
            time.sleep(seconds / len(body))
            self.wfile.write(bytes([byte]))

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
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body) if length is None else length))
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.end_headers()
        self.wfile.write(body)


def _odd(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the replies that are valid JSON but cannot be used, by the names of their faults."""
    refusal, wrong = _completion(""), _completion("")
    refusal["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    wrong["choices"][0]["message"]["content"] = 7
    return {
        "empty": _completion(""),
        "length": _completion("", "length"),
        "content-filter": _completion("", "content_filter"),
        "refusal": refusal,
        "wrong-type": wrong,
        "no-choices": {"object": "chat.completion", "choices": None},
        "list": [1, 2],
        "cut-off": {**_completion("It was all going very", "length"), "usage": answer.get("usage")},
        "no-usage": {name: value for name, value in answer.items() if name != "usage"},
    }


def _completion(text: str, finish: str = "stop") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
        "usage": fixed_usage([], text),
    }


def _result(call: dict[str, Any], response: dict[str, Any] | None, error: object = None) -> dict[str, Any]:
    return {"id": "line", "custom_id": call["custom_id"], "response": response, "error": error}


def _uploaded(kind: str, raw: bytes) -> str:
    """Return the file in an uploaded form."""
    form = email.message_from_bytes(f"content-type: {kind}\r\n\r\n".encode() + raw)
    parts = {part.get_param("name", header="content-disposition"): part for part in form.walk()}
    return parts["file"].get_payload(decode=True).decode()  # type: ignore[union-attr]
