"""Measure the requests per second that `reflectrl serve` answers: `POST /act` by clients with one request at a time.

    python benchmarks/serve.py RUN

States are those of random walks through the environment of the run. "New" ones are requested for the first time, so the
reflector writes; "seen" ones are requested again, and a greedy reflector has them in its cache. Clients are threads of
this process, which shares the cores: with clients on another machine the server would be faster. Waiting requests are
played in one batch, so many clients get more requests per second than one. If the machine has other work, the server's
processor time is the better measure. The table is published, unless options changed it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import psutil
from arms import ENGINE, loaded_machine, made_by, publish, table

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, NatLangEnv, make_env

CLIENTS = [1, 16]
REQUESTS = 300
"""Number of requests of each kind, for each number of clients."""


@contextmanager
def served(run: Path) -> Iterator[tuple[str, int]]:
    """Start a server of ``run``; yields its host and port, and its process id."""
    command = [sys.executable, "-m", "reflectrl", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            sys.exit(f"{run} cannot be served.")
        print(f"{ready.partition(' on ')[0]}\n")
        try:
            yield urlsplit(ready.split()[-1]).netloc, process.pid
        finally:
            process.terminate()


def states(env: NatLangEnv, count: int) -> list[bytes]:
    """Return at most ``count`` different request bodies."""
    rng, found = random.Random(0), {}
    tasks = env.tasks("train")
    for _ in range(20 * count):
        if len(found) == count:
            break
        env.reset(seed=0, options={"task": rng.choice(tasks)})
        history: list[str] = []
        over = False
        while not over and len(found) < count:
            seen = env.observation
            body = {"observation": seen.text, "actions": seen.actions, "task": seen.task, "history": history[-1:]}
            found[json.dumps(body).encode()] = None
            history.append(rng.choice(seen.actions))
            _, _, terminated, truncated, _ = env.step(history[-1])
            over = terminated or truncated
    return list(found)


def ask(address: str, bodies: Sequence[bytes]) -> list[float]:
    """Send the requests of one client, and return the seconds of each."""
    took = []
    connection = http.client.HTTPConnection(address)
    for body in bodies:
        began = time.perf_counter()
        connection.request("POST", "/act", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        took.append(time.perf_counter() - began)
        if answer.status != 200:
            sys.exit(f"the server answered with status {answer.status}.")
    connection.close()
    return took


def processor_seconds(process: int) -> float:
    """Return the processor seconds of a process so far."""
    used = psutil.Process(process).cpu_times()
    return used.user + used.system


def measure(address: str, process: int, bodies: Sequence[bytes], clients: int) -> list[str]:
    """Return the cells of requests per second, milliseconds of a request, and the server's processor milliseconds."""
    began, used = time.perf_counter(), processor_seconds(process)
    with ThreadPoolExecutor(clients) as crowd:
        shares = crowd.map(lambda number: ask(address, bodies[number::clients]), range(clients))
        took = [1e3 * seconds for share in shares for seconds in share]
    seconds, used = time.perf_counter() - began, processor_seconds(process) - used
    worked = f"{1e3 * used / len(took):.1f}"
    return [f"**{len(took) / seconds:,.0f}**", f"{median(took):.1f}", f"{quantiles(took, n=20)[-1]:.1f}", worked]


def main() -> None:
    """Measure, print the table, and publish it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    given = parser.parse_args()
    if min(given.clients) < 1 or given.requests < 2 * max(given.clients):
        parser.error("expected one or more --clients, and at least twice as many --requests.")
    try:
        recipe = load_recipe(str(given.run / "recipe.yaml"))
    except InvalidInput as error:
        parser.error(str(error))
    bodies = states(make_env(recipe.env.name, **recipe.env.options), given.requests * len(given.clients) + 1)
    if len(bodies) <= given.requests * len(given.clients):
        sys.exit(f"only {len(bodies)} states were found; ask for fewer --requests.")
    rows = []
    with served(given.run) as (address, process):
        ask(address, bodies[-1:])  # warm-up: the first request is slow
        for place, clients in enumerate(given.clients):
            mine = bodies[place * given.requests : (place + 1) * given.requests]
            rows += [[str(clients), kind, *measure(address, process, mine, clients)] for kind in ("new", "seen")]
    heads = ("clients", "states", "requests/s", "ms per request", "95 % within", "processor ms of the server")
    print(f"{made_by('python benchmarks/serve.py RUN', loaded_machine())}, a run of {recipe.name}\n")
    text = f"{table(heads, rows)}\n"
    print(text)
    if (given.clients, given.requests) == (CLIENTS, REQUESTS):
        publish(ENGINE, "serve", text)


if __name__ == "__main__":
    main()
