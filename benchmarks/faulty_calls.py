"""Count wrong, lost and doubled replies of a faulty chat endpoint, called by a process that is killed.

    python benchmarks/faulty_calls.py --calls 10000 --faults 0.3 --kills 5 --seed 0

A real HTTP server answers each question with its digest, or with a fault: error statuses, requests to wait, resets,
truncated, broken, empty, late and refused replies. A few questions first get a reply in a wrong format, about which the
client must complain. The client is killed by SIGKILL at random moments and started again. In the end no reply may be
wrong; if a question was answered well and asked again, its reply was in flight when the client was killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from arms import RELIABILITY, publish, table

from reflectrl.core.files import write_text
from reflectrl.core.messages import BadReply, Messages
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import REJECTED, REPLIES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from scripted_endpoint import Chat, ScriptedEndpoint  # noqa: E402

FAULTS = (
    *("408", "409", "425", "429", "429:0.02", "500", "502", "503:0.02", "504", "reset", "cut", "truncated", "bad-utf8"),
    *("html", "list", "no-choices", "wrong-type", "empty", "length", "refusal", "content-filter", "deep", "late"),
)
"""Faults of the server, drawn with equal probability."""
TIMEOUT_S = 3.0
ANSWERS = "answers.json"
PLANNED_REQUESTS_PER_CALL = 4
"""Number of requests per call for which faults are drawn; later requests, which are not expected, meet none."""
MAX_REQUESTS_PER_CALL = 1.6
"""Maximum number of requests per call; more count as a failure of the client."""


@dataclass(frozen=True)
class Outcome:
    """Counts of a measurement; its fields are the columns of the table."""

    calls: int
    requests: int
    ratio: float
    faults: int
    bad_replies: int
    kills: int
    asked_again: int
    rejected: int
    lost: int
    doubled: int
    wrong: int
    seconds: float

    @property
    def fine(self) -> bool:
        """True if no reply was rejected, lost, doubled or wrong, and there were few enough requests."""
        return not (self.rejected or self.lost or self.doubled or self.wrong) and self.ratio <= MAX_REQUESTS_PER_CALL

    def table(self) -> str:
        """Return the counts as a Markdown table."""
        cells = [f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in vars(self).values()]
        return table([name.replace("_", " ") for name in vars(self)], [cells])


def chats(count: int) -> list[Messages]:
    """Return the chats to send."""
    return [[{"role": "user", "content": f"What is the digest of {number}?"}] for number in range(count)]


def digest(chat: Messages) -> str:
    """Return the only right reply to a question."""
    return hashlib.sha256(chat[0]["content"].encode()).hexdigest()


def reply(chat: Chat) -> str:
    """Return the server's reply to a chat; one question in 30 gets a bad reply first."""
    right = digest(chat)
    return "I would rather not say." if len(chat) == 1 and int(right, 16) % 30 == 0 else right


def read(words: str) -> str:
    """Return a reply that has the form of a digest, right or wrong.

    Raises:
        BadReply: it is not a digest.

    """
    if not re.fullmatch(r"[0-9a-f]{64}", words):
        raise BadReply("Answer with the digest only.")
    return words


def run_client(url: str, folder: Path, calls: int, in_flight: int) -> None:
    """Ask all questions, in the process that is killed."""
    from reflectrl.endpoint.client import ChatClient
    from reflectrl.endpoint.journal import Journal

    os.environ["NO_PROXY"] = "127.0.0.1"
    endpoint = Endpoint(
        base_url=url, concurrency=in_flight, timeout_s=TIMEOUT_S, backoff_s=0.01, max_attempts=15, max_rejected=calls
    )
    answers = ChatClient(endpoint, Journal(folder)).ask_many(chats(calls), [read] * calls, instead="")
    write_text(folder / ANSWERS, json.dumps([answer.value for answer in answers]))


def measure(calls: int, share: float, kills: int, seed: int, in_flight: int) -> Outcome:
    """Start the client, kill and restart it several times, and count what is in its files and on the server.

    Raises:
        SystemExit: the client failed without being killed.

    """
    rng = random.Random(seed)
    faults = [rng.choice(FAULTS) if rng.random() < share else "none" for _ in range(PLANNED_REQUESTS_PER_CALL * calls)]
    moments = sorted(rng.sample(range(1, max(kills + 1, calls)), kills))  # in requests that the server has seen
    with tempfile.TemporaryDirectory() as place, ScriptedEndpoint() as server:
        folder, start, killed = Path(place, "calls"), time.perf_counter(), 0
        server.reply = reply
        server.faults.extend(fault.replace("late", f"slow:{TIMEOUT_S + 1}") for fault in faults)
        for moment in [*moments, None]:
            client = multiprocessing.get_context("spawn").Process(
                target=run_client, args=(server.url, folder, calls, in_flight)
            )
            client.start()
            while client.is_alive() and (moment is None or len(server.requests) < moment):
                client.join(0.005)
            if moment is not None:
                client.kill()
                killed += 1
            client.join()
            if client.exitcode != (0 if moment is None else -9):
                raise SystemExit(f"the client ended by itself with exit code {client.exitcode}")
        return count(folder, server, faults, killed, time.perf_counter() - start)


def count(folder: Path, server: ScriptedEndpoint, faults: list[str], kills: int, seconds: float) -> Outcome:
    """Compare the files of the client with the right replies and with the server's requests."""
    answers = json.loads((folder / ANSWERS).read_text())
    wanted = [digest(chat) for chat in chats(len(answers))]
    lines = [json.loads(line) for line in (folder / REPLIES).read_text().splitlines()]
    kept = Counter(line["asked"] for line in lines if line["text"] is not None)
    texts = Counter(line["text"] for line in lines)
    rejected = folder / REJECTED
    met = list(zip(server.requests, faults, strict=False))
    well = Counter(json.dumps(request.chat) for request, fault in met if fault == "none")
    return Outcome(
        calls=len(wanted),
        requests=len(server.requests),
        ratio=len(server.requests) / len(wanted),
        faults=sum(fault != "none" for _, fault in met),
        bad_replies=sum(reply(chat) != digest(chat) for chat in chats(len(wanted))),
        kills=kills,
        asked_again=well.total() - len(well),
        rejected=len(rejected.read_text().splitlines()) if rejected.exists() else 0,
        lost=sum(texts[right] == 0 for right in wanted),
        doubled=sum(times > 1 for times in (*kept.values(), *(texts[right] for right in wanted))),
        wrong=sum(answer != right for answer, right in zip(answers, wanted, strict=True)),
        seconds=seconds,
    )


def main() -> int:
    """Measure, print the table, and publish it if nothing was changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--faults", type=float, default=0.3, help="share of the requests that meet one")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-flight", type=int, default=16)
    given = parser.parse_args()
    outcome = measure(given.calls, given.faults, given.kills, given.seed, given.in_flight)
    print(outcome.table())
    if outcome.fine and sys.argv[1:] == []:
        publish(RELIABILITY, "faulty_calls", f"{outcome.table()}\n")
    return 0 if outcome.fine else 1


if __name__ == "__main__":
    sys.exit(main())
