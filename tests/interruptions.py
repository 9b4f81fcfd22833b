"""Helpers that end a process at an exact moment: the n-th time that it begins to write a certain file."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from trained_runs import play_stages
from warm_processes import WarmProcess, command_line

from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.core.messages import Messages
from reflectrl.core.run_files import METRICS
from reflectrl.core.stop import run_async
from reflectrl.endpoint.account import Account, Price
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.endpoint.openai_batch import Batches


def end_at(file: str, count: int, number: int) -> None:
    """Send this process a signal when a file whose path ends with ``file`` is opened for writing or moved into place.

    The signal comes at the ``count``-th time, before any of that write is on the disk.
    """
    left = count

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "os.rename":
            path = arguments[1]
        elif event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in "aw":
            path = arguments[0]
        else:
            return
        if isinstance(path, str | os.PathLike) and str(path).endswith(file):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)


def command_that_ends(file: str, count: int, number: int, *arguments: str) -> None:
    """Run the command line in this process, which gets a signal at the moment that ``end_at`` describes."""
    end_at(file, count, number)
    command_line(*arguments)


def kill_and_resume_rlft(recipe: Recipe, run: Path) -> None:
    """Run RLFT after a finished SFT, kill it as it writes its third line of metrics, and continue it to its end."""
    play_stages(kill_rlft(recipe, run), run, "rlft")


def kill_rlft(recipe: Recipe, run: Path) -> Recipe:
    """Run RLFT after a finished SFT, kill it as it writes its third line of metrics, and return the recipe as read."""
    file = run.parent / "recipe.yaml"
    file.write_text(dump_recipe(recipe), encoding="utf-8")
    command = ("rlft", "--recipe", str(file), "--runs", str(run.parent), "--run", run.name)
    killed = WarmProcess(run.parent / "log", command_that_ends, METRICS, 3, signal.SIGKILL, *command)
    assert killed.wait() == -signal.SIGKILL, killed.said
    return load_recipe(file)


def ask_six(url: str, folder: Path, signals: list[signal.Signals] | None = None) -> None:
    """Send six chats to an endpoint, two at a time; each of ``signals`` is raised while a reply is read."""
    left = signals or []  # a second SIGTERM would end the process at once
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    client = ChatClient(Endpoint(base_url=url, concurrency=2), Journal(folder))
    chats = [[{"role": "user", "content": text}] for text in "abcdef"]
    client.ask_many(chats, [lambda _: left and signal.raise_signal(left.pop())] * 6)


DEAR = Endpoint(price=Price(prompt=2.5, completion=10.0), concurrency=8, max_tokens=200)
"""Endpoint with a price; the server's address has to be added."""


def questions(count: int) -> list[Messages]:
    """Return chats of 11 characters each."""
    return [[{"role": "user", "content": f"question {number:02}"}] for number in range(count)]


def ask_dearly(url: str, folder: Path, count: int, limit: float | None = None) -> Account:
    """Ask an endpoint that costs money ``count`` questions, 8 at a time, and return the account."""
    journal, account = Journal(folder), Account(limit)
    account.count(journal.paid, DEAR.price)
    client = ChatClient(replace(DEAR, base_url=url), journal, account)
    client.ask_many(questions(count), [str] * count)
    return account


def submit_batch(url: str, folder: Path, count: int) -> str:
    """Submit ``count`` questions in Batch mode, and return the report."""
    client = ChatClient(replace(DEAR, base_url=url), Journal(folder))
    calls = {client.endpoint.digest(chat): chat for chat in questions(count)}
    return run_async(Batches(folder, client).submit(calls))
