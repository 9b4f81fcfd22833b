"""Measure the throughput of a rollout with a reflector behind HTTP: steps per second by the number of calls in flight.

    python benchmarks/remote_reflector.py

A random policy plays 256 episodes of DangerousTaxi, 64 of them side by side. A server in a separate process answers
each call after a fixed or a random time and does nothing else. "Ideal" is calls in flight / latency. "In waves" takes
into account that a step begins when the previous one has ended in all episodes: 40 calls take two waves of 32. The rest
is the cost of the client and of HTTP. No reply comes from the cache, as with a reflector that samples.
`--latencies 0.05` gives a quick look.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from arms import ENGINE, loaded_machine, made_by, publish, table

from reflectrl.core import NatLangEnv, Utterance, make_env
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import RemoteReflector
from reflectrl.seats.table import reflecting

ENVS = 64
EPISODES = 256
CONCURRENCY = [1, 8, 32, 64]
LATENCIES = ["0.05", "0.05~0.04", "1"]
"""Latencies in seconds; after ``~``, the largest deviation of a reply."""
LONGEST_S = 30.0
"""Cells that would take more seconds than this at best are left out."""

REPLY = (
    b'{"id": "1", "object": "chat.completion", "created": 1, "model": "slow", "choices": [{"index": 0, "finish_reason":'
    b' "stop", "message": {"role": "assistant", "content": "The passenger waits in the north; drive there first."}}]}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(REPLY), REPLY)


@dataclass
class SlowServer:
    """A minimal HTTP server that answers slowly and counts calls and connections."""

    latency: float
    jitter: float
    counts: dict[str, int] = field(default_factory=dict)
    active: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def seen(self) -> dict[str, int]:
        """Return and reset the counts: calls, connections, and the most calls at a time."""
        seen, self.counts = self.counts, {"calls": 0, "connections": 0, "peak": 0}
        return seen

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the calls of one connection until the client closes it."""
        self.counts["connections"] += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
                await reader.readexactly(int(length))
                self.active += 1
                self.counts["calls"] += 1
                self.counts["peak"] = max(self.counts["peak"], self.active)
                await asyncio.sleep(self.latency + self.jitter * self.rng.uniform(-1, 1))
                self.active -= 1
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()

    async def serve(self, line: Connection) -> None:
        """Send the port to ``line``, then the counts each time it asks, until it is closed."""
        self.seen()
        over = asyncio.Event()

        def asked() -> None:
            try:
                line.recv()
                line.send(self.seen())
            except EOFError:
                over.set()

        async with await asyncio.start_server(self.connected, "127.0.0.1", 0, backlog=128) as server:
            line.send(server.sockets[0].getsockname()[1])
            asyncio.get_running_loop().add_reader(line.fileno(), asked)
            await over.wait()
            asyncio.get_running_loop().remove_reader(line.fileno())


def run_server(line: Connection, latency: float, jitter: float) -> None:
    """Run the server in the other process."""
    asyncio.run(SlowServer(latency, jitter).serve(line))


@contextmanager
def slow_server(latency: float, jitter: float) -> Iterator[tuple[str, Connection]]:
    """Start a server in a separate process; yields its address, and the connection to ask for its counts."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=run_server, args=(theirs, latency, jitter))
    process.start()
    theirs.close()
    with ours:
        yield f"http://127.0.0.1:{ours.recv()}/v1", ours
    process.join()


class CountedReflector(RemoteReflector):
    """A remote reflector that records the number of reflections of each step."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(ChatClient(endpoint), is_sampled=endpoint.is_sampled)
        self.batches: list[int] = []

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per prompt."""
        self.batches.append(len(prompts))
        return super().write(prompts, draws)


@dataclass(frozen=True)
class Cell:
    """Measurements of one rollout."""

    steps: int
    waves: int
    """Number of batches of calls in flight, of which the last of each step may be smaller."""
    seconds: float
    cpu_seconds: float
    connections: int
    peak: int


def play(envs: Sequence[NatLangEnv], url: str, line: Connection, concurrency: int) -> Cell:
    """Play all episodes with reflections from ``url``."""
    reflector = CountedReflector(
        Endpoint(model="slow", base_url=url, concurrency=concurrency, temperature=1.0, max_attempts=1)
    )
    wall, cpu = time.perf_counter(), time.process_time()
    rollout(envs, episodes(envs[0]), policy=RandomPolicy(), seats=reflecting(reflector), layout=PromptFormat())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    line.send("seen")
    seen = line.recv()
    waves = sum(math.ceil(count / concurrency) for count in reflector.batches)
    return Cell(reflector.asked, waves, wall, cpu, seen["connections"], seen["peak"])


def episodes(env: NatLangEnv) -> list[Episode]:
    """Return the episodes to play, which are always the same."""
    tasks = env.tasks("train")
    return [Episode(tasks[number % len(tasks)], number) for number in range(EPISODES)]


def main() -> None:
    """Measure each latency and number of calls in flight, print the table, and publish it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies", nargs="+", default=LATENCIES, help="seconds, or seconds~jitter")
    parser.add_argument("--concurrency", nargs="+", type=int, default=CONCURRENCY, help="calls in flight")
    given = parser.parse_args()
    os.environ["NO_PROXY"] = "127.0.0.1"
    envs = [make_env("dangerous_taxi", stage="full", horizon=15) for _ in range(ENVS)]
    start = time.perf_counter()
    alone = rollout(envs, episodes(envs[0]), policy=RandomPolicy(), seats=(), layout=PromptFormat())
    seconds, steps = time.perf_counter() - start, sum(len(each.turns) for each in alone)
    load, rows = loaded_machine(), []
    for latency in given.latencies:
        mean, _, jitter = latency.partition("~")
        with slow_server(float(mean), float(jitter or 0)) as (url, line):
            for concurrency in given.concurrency:
                ideal = concurrency / float(mean)
                if steps / ideal > LONGEST_S:
                    continue
                cell = play(envs, url, line, concurrency)
                speed, waves = cell.steps / cell.seconds, cell.steps / (cell.waves * float(mean))
                words = f"{mean}{f' ± {jitter}' if jitter else ''}"
                counts = f"{concurrency} {speed:.0f} {ideal:.0f} {waves:.0f} {speed / waves:.0%}".split()
                cpu = f"{1000 * cell.cpu_seconds / cell.steps:.1f}"
                rows.append([words, *counts, cpu, str(cell.peak), str(cell.connections)])
                print(*rows[-1], flush=True)
    heads = (
        "latency, s",
        "in flight",
        "steps/s",
        "in waves",
        "reached of that",
        "client's processor ms per call",
    )
    print(made_by("python benchmarks/remote_reflector.py", load))
    print(f"{EPISODES} episodes, {steps:,} steps; without reflections {steps / seconds:,.0f} steps/s\n")
    text = f"{table(heads, [[*row[:3], *row[4:7]] for row in rows])}\n"
    print(text)
    if (given.latencies, given.concurrency) == (LATENCIES, CONCURRENCY):
        publish(ENGINE, "remote_reflector", text)


if __name__ == "__main__":
    main()
