"""A real server of ``/v1/completions`` after token ids, over a real transformers model, which answers as vLLM does."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

VERSION = "0.0.test"


class CompletionsServer:
    """A server, ``with CompletionsServer(folder) as server``, on a port of its own or, to start it again, a given one.

    ``server.change`` may replace any answer, such as ``lambda path, body: {**body, ...}``; a number is the status of
    an error. ``server.asked`` are the requests for completions of token ids.
    """

    def __init__(self, folder: Path, name: str = "served", port: int = 0, max_model_len: int | None = 4096) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._one = threading.Lock()
        self.name, self.max_model_len, self.folder = name, max_model_len, folder
        self.change: Callable[[str, dict[str, Any]], dict[str, Any] | int] = lambda _, body: body
        self.asked: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                listed = {"id": server.name, "root": str(server.folder), "max_model_len": server.max_model_len}
                bodies = {"/v1/models": {"data": [listed]}, "/version": {"version": VERSION}}
                self._answer(bodies[self.path])

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if isinstance(asked["prompt"], list):
                    server.asked.append(asked)
                self._answer(server.complete(asked))

            def _answer(self, body: dict[str, Any]) -> None:
                changed = server.change(self.path, body)
                status, body = (changed, {"error": {"message": "no"}}) if isinstance(changed, int) else (200, changed)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # more than 5 connections may wait on a busy machine

            def handle_error(self, request: object, client_address: object) -> None:
                if not isinstance(sys.exception(), ConnectionError):  # a client was killed
                    super().handle_error(request, client_address)

        self._http = Quiet(("127.0.0.1", port), Handler)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> CompletionsServer:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer a request; equal seeds give equal samples, whatever else is asked at the same time."""
        prompt = asked["prompt"] if isinstance(asked["prompt"], list) else self._tokenizer(asked["prompt"])["input_ids"]
        with self._one:
            said, logprobs = self._write(asked, list(prompt))
        ended = said[-1:] == asked.get("stop_token_ids")
        choice = {
            "text": self._tokenizer.decode(said, skip_special_tokens=True),
            "finish_reason": "stop" if ended else "length",
            "logprobs": {"token_logprobs": logprobs} if "logprobs" in asked else None,
        }
        if asked.get("return_token_ids"):
            choice |= {"token_ids": said, "prompt_token_ids": prompt}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(said)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    @torch.no_grad()
    def _write(self, asked: dict[str, Any], text: list[int]) -> tuple[list[int], list[float]]:
        generator = torch.Generator().manual_seed(asked.get("seed", 0))
        said: list[int] = []
        logprobs: list[float] = []
        fresh, known = text, None
        while len(said) < asked["max_tokens"] and said[-1:] != asked.get("stop_token_ids", [None]):
            passed = self._model(input_ids=torch.tensor([fresh]), past_key_values=known, use_cache=True)
            logits, known = passed.logits[0, -1].float(), passed.past_key_values
            if allowed := asked.get("allowed_token_ids"):
                logits = torch.full_like(logits, -torch.inf).index_copy(0, torch.tensor(allowed), logits[allowed])
            if asked["temperature"] == 0:
                token = int(logits.argmax())
            else:
                probabilities = (logits / asked["temperature"]).softmax(-1)
                token = int(torch.multinomial(probabilities, 1, generator=generator))
            said.append(token)
            fresh = [token]
            logprobs.append(float(logits.log_softmax(-1)[token]))
        return said, logprobs
