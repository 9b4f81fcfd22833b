"""A real vLLM on the CPU serves a run's fine-tuned reflector: its words are those of this process.

``make test-vllm`` installs vLLM (3 GB) and runs this file with pytest; its name keeps it out of the other tests.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import save_tiny
from trained_runs import play_stages, small_recipe

from reflectrl.core.run_files import training_episodes_file
from reflectrl.data_gen import read_rows
from reflectrl.pipeline.check_server import check_server
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.team import Team
from reflectrl.seats.served import ServedReflector, served

VLLM = os.environ["REFLECTRL_VLLM"]
"""The environment that ``install.sh`` has made."""
LENGTH = 128
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
FLAGS = ("--dtype", "float32", "--generation-config", "vllm", "--enforce-eager", "--gpu-memory-utilization", "0.15")
STARTS_S = 900


@dataclass(frozen=True)
class Served:
    run: Path
    overrides: tuple[str, ...]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run after SFT, whose reflector, a small Llama, is served."""
    place = tmp_path_factory.mktemp("vllm")
    base = save_tiny("llama", place / "base", size=64, max_length=LENGTH)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = {"model": "reflector", "base_url": f"http://127.0.0.1:{port}/v1", "concurrency": 16}
    overrides = (
        *(f"model.name={base.name}", f"model.max_length={LENGTH}", "players.reflector.player=server"),
        *(f"players.reflector.endpoint={json.dumps(endpoint)}", "sft.reflector.steps=60", "data.samples=600"),
        "env.options.size=12",
        *("eval.policies=[rlft]", "eval.controls=[]", "eval.greedy=false", "eval.episodes=6", "eval.max_tasks=3"),
    )
    run = place / "run"
    play_stages(small_recipe(*overrides), run, "gen-data", "sft")
    command = [f"{VLLM}/bin/vllm", "serve", str(run / "reflector"), "--served-model-name", "reflector", *FLAGS]
    with (place / "log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(LENGTH)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**{name: os.environ[name] for name in ("PATH", "HOME")}, **SETTINGS},
        )
        try:
            deadline = time.monotonic() + STARTS_S
            while not _answers(port):
                said = (place / "log").read_text(errors="replace")
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(1)
            yield Served(run, overrides)
        finally:
            process.terminate()
            process.wait(60)


def _answers(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_the_words_of_64_prompts_are_equal(vllm: Served) -> None:
    [found] = check_server(vllm.run, 64)
    assert (found.prompts, found.equal) == (64, 64), found.text
    assert found.largest_gap is not None
    assert found.largest_gap < 1e-3


def test_samples_are_equal_alone_and_in_a_batch(vllm: Served) -> None:
    recipe = small_recipe(*vllm.overrides)
    team = Team(recipe, RunFolder(vllm.run), replies="forget")
    prompts = list(dict.fromkeys(row.prompt for row in read_rows(vllm.run / "sft" / "reflector.jsonl")))[:24]
    draws = [number / 24 for number in range(24)]
    there = served(recipe.players.reflector, team, "reflector", max_new_tokens=16, temperature=1.0)
    together = ServedReflector(*there).write(prompts, draws)
    assert [
        ServedReflector(*there).write([each], [draw])[0] for each, draw in zip(prompts, draws, strict=True)
    ] == together
    assert len({each.text for each in ServedReflector(*there).write([prompts[0]] * 24, draws)}) > 3


def test_a_run_is_that_of_the_local_reflector(vllm: Served, tmp_path: Path) -> None:
    recipe = small_recipe(*vllm.overrides)
    there, here = (shutil.copytree(vllm.run, tmp_path / name) for name in ("there", "here"))
    play_stages(recipe, there, "rlft", "eval")
    [line] = (there / "calls" / "reflector" / "servers.jsonl").read_text().splitlines()
    assert json.loads(line)["version"].startswith("0.")
    local = small_recipe(*vllm.overrides, "players.reflector.player=local")
    (here / "stages.json").write_text((here / "stages.json").read_text().replace('"server"', '"local"'))
    play_stages(local, here, "rlft")
    for name in ("metrics.jsonl", training_episodes_file(3)):
        assert (there / name).read_bytes() == (here / name).read_bytes()
