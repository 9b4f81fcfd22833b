"""Throughput of a rollout whose reflector is behind HTTP: steps a second by the number of calls in flight.

    python benchmarks/remote_reflector.py

DangerousTaxi, 256 episodes, 64 of them side by side; the policy draws at random. A server in a process of its own
answers each call after a fixed or a drawn time and does nothing else. "Ideal" is calls in flight / latency. "In waves"
is what is left of it because a step begins when the one before has ended in all episodes: 40 calls take two waves of
32. What is missing from that is the client and HTTP. Nothing comes from the cache, as with a reflector that samples.
`--latencies 0.05` is a quick look.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import platform
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from reflectrl.core import NatLangEnv, Utterance, make_env
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.players import RandomPolicy, reflecting
from reflectrl.players.remote import RemoteReflector
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.rollout import Episode, rollout

ENVS = 64
EPISODES = 256
CONCURRENCY = (1, 8, 32, 64)
LATENCIES = ("0.05", "0.05~0.04", "1")
"""Seconds; behind ``~``, how far a reply may be from them."""
LONGEST_S = 30.0
"""A cell that would take longer at best is left out."""

REPLY = (
    b'{"id": "1", "object": "chat.completion", "created": 1, "model": "slow", "choices": [{"index": 0, "finish_reason":'
    b' "stop", "message": {"role": "assistant", "content": "The passenger waits in the north; drive there first."}}]}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(REPLY), REPLY)


@dataclass
class SlowServer:
    """Speaks just enough HTTP; counts what it sees."""

    latency: float
    jitter: float
    counts: dict[str, int] = field(default_factory=dict)
    active: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def seen(self) -> dict[str, int]:
        """Calls, connections and the most calls at a time since the last look."""
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
        """Tell ``line`` the port, then what was seen, each time it asks, until it is closed."""
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
    """Work of the other process."""
    asyncio.run(SlowServer(latency, jitter).serve(line))


@contextmanager
def slow_server(latency: float, jitter: float) -> Iterator[tuple[str, Connection]]:
    """Address of a server in a process of its own, and the line to ask it for its counts."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=run_server, args=(theirs, latency, jitter))
    process.start()
    theirs.close()
    with ours:
        yield f"http://127.0.0.1:{ours.recv()}/v1", ours
    process.join()


class CountedReflector(RemoteReflector):
    """Knows how many reflections each step asked for."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.batches: list[int] = []

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """One utterance a prompt."""
        self.batches.append(len(prompts))
        return super().write(prompts, draws)


@dataclass(frozen=True)
class Cell:
    """One rollout."""

    steps: int
    waves: int
    """Number of waits for a full or a last batch of calls."""
    seconds: float
    cpu_seconds: float
    connections: int
    peak: int


def play(envs: Sequence[NatLangEnv], url: str, line: Connection, concurrency: int) -> Cell:
    """All episodes, with reflections from ``url``."""
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
    """Episodes that are played, always the same."""
    tasks = env.tasks("train")
    return [Episode(tasks[number % len(tasks)], number) for number in range(EPISODES)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies", nargs="+", default=LATENCIES, help="seconds, or seconds~jitter")
    parser.add_argument("--concurrency", nargs="+", type=int, default=CONCURRENCY, help="calls in flight")
    given = parser.parse_args()
    os.environ["NO_PROXY"] = "127.0.0.1"
    envs = [make_env("dangerous_taxi", stage="full", horizon=15) for _ in range(ENVS)]
    start = time.perf_counter()
    alone = rollout(envs, episodes(envs[0]), policy=RandomPolicy(), seats=(), layout=PromptFormat())
    seconds, steps = time.perf_counter() - start, sum(len(each.turns) for each in alone)
    print(
        f"`python benchmarks/remote_reflector.py` on {os.cpu_count()} cores ({platform.machine()}), load "
        f"{os.getloadavg()[0]:.1f}; {EPISODES} episodes with {steps} steps; without reflections "
        f"{steps / seconds:.0f} steps/s.\n"
    )
    print(
        "| latency s | calls in flight | steps/s | ideal | in waves | of that | client ms/call | peak | connections |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for latency in given.latencies:
        mean, _, jitter = latency.partition("~")
        with slow_server(float(mean), float(jitter or 0)) as (url, line):
            for concurrency in given.concurrency:
                ideal = concurrency / float(mean)
                if steps / ideal > LONGEST_S:
                    continue
                cell = play(envs, url, line, concurrency)
                speed, waves = cell.steps / cell.seconds, cell.steps / (cell.waves * float(mean))
                print(
                    f"| {mean}{f' ± {jitter}' if jitter else ''} | {concurrency} | {speed:.0f} | {ideal:.0f} "
                    f"| {waves:.0f} | {speed / waves:.0%} | {1000 * cell.cpu_seconds / cell.steps:.1f} | {cell.peak} "
                    f"| {cell.connections} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
