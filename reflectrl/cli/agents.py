"""The commands that share with others: serve and export give an agent away; data gives and takes episodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import typer

from reflectrl.cli.envs import read_options
from reflectrl.cli.shared import AllowedHosts, Host, Port, RunFolder, check_belongs, complete_env, complete_run
from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import host_of
from reflectrl.core.text import counted
from reflectrl.share import Bounds

ServedAs = Annotated[
    list[str] | None,
    typer.Option("--served-as", metavar="NAME", help="Additional host name that clients may use; repeatable."),
]
Key = Annotated[
    str | None,
    typer.Option("--api-key-env", help="Environment variable that holds the bearer key clients must send."),
]

PushToHub = Annotated[
    str | None,
    typer.Option("--push-to-hub", metavar="OWNER/NAME", help="Upload the export; needs HF_TOKEN or a login."),
]
Private = Annotated[bool, typer.Option("--private", help="Create the repository of --push-to-hub as a private one.")]


def serve(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder or exported agent.", autocompletion=complete_run)
    ],
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="policy (after RLFT) or policy-sft; default: the later one."),
    ] = None,
    greedy: Annotated[
        bool | None,
        typer.Option("--greedy/--sample", help="Choose the most probable action, or sample; default: by validation."),
    ] = None,
    host: Host = "127.0.0.1",
    served_as: ServedAs = None,
    allow_host: AllowedHosts = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Origin whose web pages may use the server, such as https://agents.example; repeatable.",
        ),
    ] = None,
    port: Port = 8000,
    api_key_env: Key = None,
    max_body: Annotated[
        int, typer.Option("--max-body", min=1, help="Maximum size of a request body in bytes.")
    ] = Bounds.max_body,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Maximum number of pending requests.")
    ] = Bounds.max_waiting,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0.001, help="Maximum seconds for a reply.")
    ] = Bounds.timeout_s,
) -> None:
    """Serve an agent over HTTP until Ctrl-C: a page, /act, and a chat model with OpenAI's API."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"serving needs packages that are not installed ({', '.join(missing)}); run pip install 'reflectrl[serve]'."
        )
    if not isfinite(timeout_s):
        raise InvalidInput(f"--timeout-s {timeout_s} was given; expected a number of seconds.")
    check_names(served_as or ())
    key = None if api_key_env is None else read_key(api_key_env)
    from reflectrl.share.server import serve as answer

    bounds = Bounds(max_body, max_waiting, timeout_s=timeout_s)
    answer(
        run,
        policy=policy,
        greedy=greedy,
        host=host,
        port=port,
        key=key,
        bounds=bounds,
        served_as=served_as or (),
        allow_hosts=allow_host or (),
        origins=allow_origin or (),
        ready=say,
    )


def check_names(served_as: Sequence[str]) -> None:
    """Check the host names of ``--served-as``.

    Raises:
        InvalidInput: one that has a scheme or a port.
    """
    for name in served_as:
        if not name or host_of(f"//{name}") != name.lower():
            raise InvalidInput(
                f"--served-as {name!r} was given; expected a host name without scheme and port, such as agents.example."
            )


def read_key(name: str) -> str:
    """Return the key that the environment variable of ``--api-key-env`` holds.

    Raises:
        InvalidInput: it holds none.
    """
    key = os.environ.get(name, "").strip()
    if not (key and key.isascii() and key.isprintable()):
        raise InvalidInput(
            f"the environment variable {name} holds no key; set it to the key that clients must send, or leave out "
            "--api-key-env."
        )
    return key


def export(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option("--out", help="New folder; default: export in the run folder.")] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Merge adapters into their base; always done for a base that others cannot get."),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an earlier export.")] = False,
    license: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="The hub's name of a licence; default: the base's.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", metavar="OWNER/NAME", help="Dataset of the hub with the run's rows; repeatable."),
    ] = None,
    push_to_hub: PushToHub = None,
    private: Private = False,
) -> None:
    """Write an agent's weights, tokenizer, model card and example."""
    check_belongs("--private", "--push-to-hub", given=private, owner_given=push_to_hub is not None)
    if not run.is_dir():
        raise InvalidInput(f"no run folder is at {run}; expected a folder that 'reflectrl run' has made.")
    from reflectrl.share.hub import check_push, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    from reflectrl.share.export import export_run

    folder = export_run(run, out, merge=merge, replace=replace, license=license, datasets=dataset or (), tell=warn)
    say(f"export: {folder}")
    if push_to_hub is not None:
        say(f"hub: {push(folder, push_to_hub, private=private)}")


data = typer.Typer(help="Export rows for other trainers; import other projects' episodes.", no_args_is_help=True)


@data.command("export")
def export_data(
    run: RunFolder,
    form: Annotated[
        Literal["trl", "sharegpt", "jsonl"],
        typer.Option("--format", help="trl: prompt and completion; sharegpt: conversations; jsonl: all of a row."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="New folder.")],
    push_to_hub: PushToHub = None,
    private: Private = False,
) -> None:
    """Write a run's SFT rows as a dataset, with a card."""
    check_belongs("--private", "--push-to-hub", given=private, owner_given=push_to_hub is not None)
    from reflectrl.share.dataset import export_rows
    from reflectrl.share.hub import check_push, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    for file in export_rows(run, out, form):
        say(f"{out / file.kind}.jsonl: {counted(file.rows, 'row')}")
    if push_to_hub is not None:
        say(f"hub: {push(out, push_to_hub, private=private, kind='dataset')}")


@data.command("import")
def import_data(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Conversations: a JSON list, or JSON lines.")],
    name: Annotated[str, typer.Argument(metavar="ENV", help="Environment.", autocompletion=complete_env)],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="New file, for data.demonstrations.")],
    options: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of ENV.")] = None,
    reword: Annotated[
        list[str] | None,
        typer.Option(
            "--reword", metavar="'put {a} on {b}=move {a} to {b}'", help="ENV's words for an action; repeatable."
        ),
    ] = None,
) -> None:
    """Replay conversations of thoughts and actions in an environment; those that succeed become demonstrations."""
    from reflectrl.data_gen.conversations import import_conversations

    done = import_conversations(file, name, read_options(options or []), out, reword=reword or ())
    for sentence in done.sentences():
        warn(sentence)
    say(f"{out}: {counted(done.episodes, 'episode')}, {counted(done.samples, 'sample')}")
