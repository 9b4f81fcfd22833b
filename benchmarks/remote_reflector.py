"""Whether a reflector behind HTTP keeps up with a rollout: steps a second by the number of calls in flight.

    python benchmarks/remote_reflector.py

A server process of its own answers each call after a fixed or a drawn time and does nothing else, so what is missing
from the ideal (calls * latency / concurrency) is what the client, HTTP and waves that do not fill up cost. The policy
draws at random; the endpoint samples, so no reflection comes from the cache. `--quick` plays fewer steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median

from reflectrl.core import make_env
from reflectrl.players import RandomPolicy
from reflectrl.players.remote import Endpoint, RemoteReflector
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout

CONCURRENCY = (1, 8, 32, 64)
LATENCY_S = 0.05
EPISODES = 64
REPLY = b'{"choices": [{"message": {"role": "assistant", "content": "The passenger waits in the north."}}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY)


class SlowServer:
    """Answers every POST after ``latency`` seconds; ``jitter`` of it is drawn, so that the mean stays."""

    def __init__(self, latency: float, jitter: float) -> None:
        self.latency, self.jitter, self.rng = latency, jitter, random.Random(0)
        self.connections = self.calls = self.active = self.peak = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the client closes it."""
        self.connections += 1
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            self.calls += 1
            self.active += 1
            self.peak = max(self.peak, self.active)
            await asyncio.sleep(self.latency * (1 + self.jitter * self.rng.uniform(-1, 1)))
            self.active -= 1
            writer.write(HEAD + REPLY)
        writer.close()
