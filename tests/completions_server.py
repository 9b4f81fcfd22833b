"""A real server of ``/v1/completions`` after token ids, over a real transformers model, which answers as vLLM does."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from reflectrl.lm.decode import Sampler
from reflectrl.seats.served import SEEDS

VERSION = "0.0.test"


class CompletionsServer:
    """A server, ``with CompletionsServer(folder) as server``, on a port of its own or, to start it again, a given one.

    ``server.change`` may replace any answer, such as ``lambda path, body: {**body, ...}``; a number is the status of
    an error. ``server.asked`` are the requests for completions of token ids. Adapters are loaded from their files, up
    to the rank ``max_lora_rank``, with 0 none; ``server.adapters`` are their folders by name, and ``server.loaded`` the
    names of all that ever were.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "served",
        port: int = 0,
        max_model_len: int | None = 4096,
        *,
        max_lora_rank: int = 0,
    ) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._one = threading.Lock()
        self.name, self.max_model_len, self.folder = name, max_model_len, folder
        self.change: Callable[[str, dict[str, Any]], dict[str, Any] | int] = lambda _, body: body
        self.asked: list[dict[str, Any]] = []
        self.max_lora_rank = max_lora_rank
        self.adapters: dict[str, Path] = {}
        self.loaded: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                listed = [{"id": server.name, "root": str(server.folder), "max_model_len": server.max_model_len}]
                listed += [{"id": name, "root": str(root)} for name, root in server.adapters.items()]
                bodies = {"/v1/models": {"data": listed}, "/version": {"version": VERSION}}
                self._answer(bodies[self.path])

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path.endswith("_lora_adapter"):
                    self._answer(server.exchange(self.path, **asked))
                    return
                if isinstance(asked["prompt"], list):
                    server.asked.append(asked)
                self._answer(server.complete(asked))

            def _answer(self, body: dict[str, Any]) -> None:
                changed = server.change(self.path, body)
                status, body = (changed, {"error": {"message": "no"}}) if isinstance(changed, int) else (200, changed)
                status = body.get("error", {}).get("code", status)
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

    def exchange(self, path: str, lora_name: str, lora_path: str = "") -> dict[str, Any]:
        """Load or unload an adapter, as vLLM does."""
        if not self.max_lora_rank:
            return _no(404, "Not Found")
        with self._one:
            if path == "/v1/unload_lora_adapter":
                gone = self.adapters.pop(lora_name, None)
                return {} if gone else _no(404, f"The lora adapter '{lora_name}' cannot be found.")
            if lora_name in self.adapters:
                return _no(400, f"The lora adapter '{lora_name}' has already been loaded.")
            rank = PeftConfig.from_pretrained(lora_path).r  # type: ignore[attr-defined]
            if rank > self.max_lora_rank:
                return _no(400, f"LoRA rank {rank} is greater than max_lora_rank {self.max_lora_rank}.")
            if isinstance(self._model, PeftModel):
                self._model.load_adapter(lora_path, adapter_name=lora_name)
            else:
                self._model = PeftModel.from_pretrained(self._model, lora_path, adapter_name=lora_name).eval()
            self.adapters[lora_name] = Path(lora_path)
            self.loaded.append(lora_name)
        return {}

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer a request; equal seeds give equal samples, whatever else is asked at the same time."""
        if asked["model"] not in (self.name, *self.adapters):
            return _no(404, f"The model `{asked['model']}` does not exist.")
        prompt = asked["prompt"] if isinstance(asked["prompt"], list) else self._tokenizer(asked["prompt"])["input_ids"]
        with self._one:
            if asked["model"] in self.adapters:
                self._model.set_adapter(asked["model"])
            with self._model.disable_adapter() if self._plain(asked) else nullcontext():
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

    def _plain(self, asked: dict[str, Any]) -> bool:
        return isinstance(self._model, PeftModel) and asked["model"] == self.name

    @torch.no_grad()
    def _write(self, asked: dict[str, Any], text: list[int]) -> tuple[list[int], list[float]]:
        sampler = Sampler([asked.get("seed", 0) / SEEDS], asked["temperature"])  # that of this process
        said: list[int] = []
        logprobs: list[float] = []
        fresh, known = text, None
        while len(said) < asked["max_tokens"] and said[-1:] != asked.get("stop_token_ids", [None]):
            passed = self._model(input_ids=torch.tensor([fresh]), past_key_values=known, use_cache=True)
            logits, known = passed.logits[0, -1].float(), passed.past_key_values
            if allowed := asked.get("allowed_token_ids"):
                logits = torch.full_like(logits, -torch.inf).index_copy(0, torch.tensor(allowed), logits[allowed])
            [token] = sampler.choose(logits[None], [(0, len(said))])
            said.append(token)
            fresh = [token]
            logprobs.append(float(logits.log_softmax(-1)[token]))
        return said, logprobs


def _no(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
