"""A real vLLM on the CPU serves a run's fine-tuned reflector: its words are those of this process.

``make test-vllm`` installs vLLM (3 GB) and runs this file with pytest; its name keeps it out of the other tests.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from records import shown
from tiny_models import save_tiny
from trained_runs import play_stages, small_recipe

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import training_episodes_file
from reflectrl.data_gen import read_rows
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import new_model
from reflectrl.lm.section import LoraSection
from reflectrl.lm.thinking import text_of, writing_policy
from reflectrl.lm.tokenizer import label_ids
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
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
}
FLAGS = (
    *("--dtype", "float32", "--generation-config", "vllm", "--enforce-eager", "--gpu-memory-utilization", "0.15"),
    *("--enable-lora", "--max-lora-rank", "8", "--max-loras", "1"),
)
STARTS_S = 900


@dataclass(frozen=True)
class Served:
    run: Path
    overrides: tuple[str, ...]
    endpoint: dict[str, Any]
    port: int


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A run after SFT, whose players are small Llamas, and its reflector is going to be served."""
    place = tmp_path_factory.mktemp("vllm")
    base = save_tiny("llama", place / "base", size=64, max_length=LENGTH)
    port = free_port()
    endpoint = {"model": "reflector", "base_url": f"http://127.0.0.1:{port}/v1", "concurrency": 16}
    overrides = (
        *(f"model.name={base.name}", f"model.max_length={LENGTH}", "players.reflector.player=server"),
        *(f"players.reflector.endpoint={json.dumps(endpoint)}", "sft.reflector.steps=60", "data.samples=600"),
        "env.options.size=12",
        *("eval.policies=[rlft]", "eval.controls=[]", "eval.greedy=false", "eval.episodes=6", "eval.max_tasks=3"),
    )
    run = place / "run"
    play_stages(small_recipe(*overrides), run, "gen-data", "sft")
    return Served(run, overrides, endpoint, port)


@pytest.fixture(scope="module")
def vllm(trained: Served) -> Iterator[Served]:
    with serving(trained.run / "reflector", "reflector", trained.port, trained.run.parent / "log"):
        yield trained


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def serving(folder: Path, name: str, port: int, log: Path, *flags: str) -> Iterator[None]:
    """Serve a model inside the block."""
    command = [f"{VLLM}/bin/vllm", "serve", str(folder), "--served-model-name", name, *FLAGS, *flags]
    with log.open("wb") as said, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(LENGTH)],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**{name: os.environ[name] for name in ("PATH", "HOME")}, **SETTINGS},
        )
        try:
            deadline = time.monotonic() + STARTS_S
            while not _answers(port):
                assert process.poll() is None, log.read_text(errors="replace")
                assert time.monotonic() < deadline, log.read_text(errors="replace")
                time.sleep(1)
            yield
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


def thinking(vllm: Served) -> Recipe:
    """Return the recipe of a policy with an adapter on the model that is served, which thinks before it acts."""
    model = {"name": str(vllm.run / "reflector"), "max_length": LENGTH, "lora": {"r": 8, "alpha": 16}}
    policy = {"max_new_tokens": 12, "temperature": 0.7, "server": vllm.endpoint}
    return small_recipe(
        *(f"model.{name}={json.dumps(value)}" for name, value in model.items()),
        *(f"players.policy.{name}={json.dumps(value)}" for name, value in policy.items()),
        *("prompt.action_mode=thought_choice", "players.reflector.player=none", "eval.controls=[]"),
        *("env.options.size=12", "data.samples=200", "sft.policy.steps=30", "rlft.learning_rate=0.01"),
    )


def test_a_policy_writes_there_what_it_would_write_here(vllm: Served, tmp_path: Path) -> None:
    recipe, run = thinking(vllm), tmp_path / "run"
    play_stages(recipe, run, "gen-data", "sft", "rlft")
    gaps = [json.loads(line)["logprob_gap"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 < max(gaps) < 1e-4, gaps
    team = Team(recipe, RunFolder(run), replies="forget")
    prompts = list(dict.fromkeys(row.prompt for row in read_rows(run / "sft" / "policy.jsonl")))[:24]
    draws = [number / 24 for number in range(24)]
    for name in ("policy-sft", "policy"):
        lm = team.load(name, trainable=True)
        add_choice_head(lm.base)
        there = team.policy_server(lm)
        assert there is not None
        here, served = (
            writing_policy(
                "thought_choice", lm, team.encoder(lm), max_new_tokens=12, temperature=0.7, greedy=True, server=server
            )
            for server in (None, there)
        )
        there.publish(None, main=True)
        ours, theirs = here.act(shown(prompts), draws), served.act(shown(prompts), draws)
        assert [text_of(each).ids for each in theirs] == [text_of(each).ids for each in ours]
        assert [each.action for each in theirs] == [each.action for each in ours]
        assert len({text_of(each).ids for each in ours}) > 1
        assert max(served.gaps) < 1e-4
        there.withdraw()


def test_an_adapter_of_too_high_a_rank_is_refused_with_what_it_says(vllm: Served, tmp_path: Path) -> None:
    recipe = thinking(vllm)
    lm = new_model(recipe.model.model_copy(update={"lora": LoraSection(r=16)}), labels=(), seed=0)
    server = Team(recipe, RunFolder(tmp_path / "run"), replies="forget").policy_server(lm)
    assert server is not None
    with pytest.raises(InvalidInput, match="rank 16 is greater than max_lora_rank 8.*--max-lora-rank 16 or more"):
        server.publish(None, main=True)


def test_a_label_there_has_the_probability_of_the_masked_softmax_here(trained: Served, tmp_path: Path) -> None:
    team = Team(small_recipe(*trained.overrides), RunFolder(trained.run), replies="forget")
    prompts = list(dict.fromkeys(row.prompt for row in read_rows(trained.run / "sft" / "policy.jsonl")))[:16]
    lm, player = team.lm_policy("policy-sft")
    decisions, rows = player(False).act(shown(prompts), [0.5] * 16), team.encoder(lm).rows(prompts)
    differences, port = [], free_port()
    with serving(trained.run / "policy-sft", "policy", port, tmp_path / "log", "--logprobs-mode", "processed_logprobs"):
        for prompt, row, decision in zip(prompts, rows, decisions, strict=True):
            assert prompt.menu is not None
            ids = label_ids(lm.tokenizer, prompt.menu.labels)
            asked = {"model": "policy", "prompt": list(row), "max_tokens": 1, "temperature": 1, "logprobs": len(ids)}
            asked |= {"allowed_token_ids": ids, "return_tokens_as_token_ids": True}
            body, kind = json.dumps(asked).encode(), {"content-type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, kind)
            with urllib.request.urlopen(request, timeout=STARTS_S) as answer:
                [found] = json.load(answer)["choices"][0]["logprobs"]["top_logprobs"]
            theirs = [found[f"token_id:{token}"] for token in ids]
            pairs = zip(theirs, decision.choice.probabilities, strict=True)
            differences += [abs(logprob - math.log(ours)) for logprob, ours in pairs]
    assert max(differences) < 1e-5
