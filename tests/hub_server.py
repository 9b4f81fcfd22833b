"""A real HTTP server on 127.0.0.1 with the part of the Hugging Face hub's API that uploads models and datasets."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_0123456789abcdefghij"


class HubServer:
    """A hub in a context, ``with HubServer() as hub``: it stores commits in ``files`` and fails as ``status`` says."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        """Committed files of each repository: contents by path."""
        self.private: dict[str, bool] = {}
        self.datasets: set[str] = set()
        """Names of the repositories that are datasets."""
        self.status: dict[str, int] = {}
        """Status of failure for each call whose path contains the key."""
        self.large: dict[str, bytes] = {}
        """Uploaded contents by sha256, before they are committed."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

            def answer(self, value: Any, status: int = 200) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                failing = next((status for part, status in hub.status.items() if part in self.path), None)
                if failing is None and "/large/" not in self.path:
                    failing = None if self.headers.get("Authorization") == f"Bearer {TOKEN}" else 401
                if failing is None:
                    self.answer(*hub.answer(self.command, self.path.partition("?")[0], body))
                else:
                    self.answer({"error": "scripted"}, failing)

            do_GET = do_POST = do_PUT = do  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[Any, int]:
        """Return the JSON value and the status of the reply."""
        if path.startswith("/large/"):
            self.large[path.removeprefix("/large/")] = body
            return {}, 200
        asked = json.loads(body) if body and not path.endswith("/commit/main") else {}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}, 200
        if path == "/api/repos/create":
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.files:
                return {"error": "You already created this model repo", "url": f"{self.url}/{name}"}, 409
            self.files[name] = {}
            self.datasets |= {name} if asked.get("type") == "dataset" else set()
            self.private[name] = asked.get("visibility") == "private" or asked.get("private") is True
            return {"url": f"{self.url}/{name}"}, 200
        if path.endswith(".git/info/lfs/objects/batch"):
            links = {each["oid"]: {"upload": {"href": f"{self.url}/large/{each['oid']}"}} for each in asked["objects"]}
            return {"objects": [{**each, "actions": links[each["oid"]]} for each in asked["objects"]]}, 200
        kind, owner, name, what = [*path.removeprefix("/api/").split("/"), ""][:4]
        files = self.files.get(f"{owner}/{name}")
        if files is None or (kind == "datasets") != (f"{owner}/{name}" in self.datasets):
            return {"error": "Repository not found"}, 404
        if not what:
            return {"id": f"{owner}/{name}", "private": self.private.get(f"{owner}/{name}", False)}, 200
        if what == "preupload":
            large = [file["path"].endswith(".safetensors") for file in asked["files"]]
            modes = [{"uploadMode": "lfs" if each else "regular", "shouldIgnore": False} for each in large]
            return {"files": [{**file, **mode} for file, mode in zip(asked["files"], modes, strict=True)]}, 200
        if what == "tree":
            return [{"type": "file", "path": each, "size": len(files[each]), "oid": "0"} for each in files], 200
        assert (method, what) == ("POST", "commit"), f"{method} {path} is not part of this server"
        for line in body.decode().splitlines():
            self._commit(files, **json.loads(line))
        return {"commitUrl": f"{self.url}/{owner}/{name}/commit/{'1' * 40}", "commitOid": "1" * 40}, 200

    def _commit(self, files: dict[str, bytes], key: str, value: dict[str, Any]) -> None:
        if key == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            content = self.large[value["oid"]]
            assert hashlib.sha256(content).hexdigest() == value["oid"], f"{value['path']} came damaged"
            files[value["path"]] = content
        elif key == "deletedFile":
            del files[value["path"]]
