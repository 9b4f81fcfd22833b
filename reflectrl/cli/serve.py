"""The serve command: the agent of a run behind HTTP."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or an exported agent.")],
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="policy (after RLFT) or policy-sft; the last there is if absent."),
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy/--sample", help="The most probable action (default), or a draw.")
    ] = True,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A further name that clients may call it by; repeatable."),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 for any that is free.")] = 8000,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Environment variable with the key that clients must send.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Bytes of a request, at most.")] = 131_072,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, max=400, help="Requests that wait at the same time, at most.")
    ] = 64,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.001, help="Seconds for an answer, at most.")] = 30.0,
) -> None:
    """Answer POST /act (a state, to an action) and /v1/chat/completions (the reflector) until Ctrl-C."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"serving needs packages that are not installed ({', '.join(missing)}); run pip install 'reflectrl[serve]'."
        )
    key = None if api_key_env is None else _key(api_key_env)
    from reflectrl.serving.gate import Bounds
    from reflectrl.serving.server import serve as answer

    bounds = Bounds(max_body, max_waiting, timeout_s)
    answer(
        run,
        policy=policy,
        greedy=greedy,
        host=host,
        port=port,
        key=key,
        bounds=bounds,
        hosts=allow_host or (),
        ready=say,
    )


def _key(name: str) -> str:
    key = os.environ.get(name, "").strip()
    if not (key and key.isascii() and key.isprintable()):
        raise InvalidInput(
            f"the environment variable {name} holds no key; set it to the one that clients are to send, or leave out "
            "--api-key-env."
        )
    return key
