"""Every block of the README and of docs/ is run by a test; those of shells here, line by line, in a folder of the page.

Settings are appended that make a run small. Servers of the tests are in the place of chat models, ``builtin/nano`` in
that of pretrained ones. What cannot run here is in ``ELSEWHERE``, and the rest of that table's test checks it as far as
it goes.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import pytest
from command_line import reflectrl
from faulty import restored_registry, wait_until
from scripted_endpoint import ScriptedEndpoint
from warm_processes import WarmProcess, command_line, start_ranks

from reflectrl import make_env
from reflectrl.data_gen import read_rows
from reflectrl.pipeline.claims import plan_claims, read_claims
from reflectrl.pipeline.live_play import choose_episodes

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
DRAWN = {("README", ""), ("citation", "bibtex"), ("concepts", ""), ("concepts", "text"), ("seats", "text")}
"""Blocks in which nothing can be run, by page and language: drawings, prompts of a game, and a reference."""
RUN_BY = {
    "tests/test_tutorial.py": {("tutorial", language) for language in ("bash", "python", "text", "yaml")},
    "tests/test_docs.py": {
        *((page, "python") for page in ("README", "environments", "memory", "python", "raters", "seats", "tools")),
        *((page, "yaml") for page in ("pictures", "rlft", "seats", "stages", "tools")),
    },
    "tests/docs/test_shell.py": {("gen-data", "json")},
}
"""Blocks that tests of other languages run."""

ELSEWHERE = {
    "make install": "downloads torch; `make test-wheel` and benchmarks/first_hour.py run it, at a release",
    "python3 -m venv .venv": "as `make install`",
    ". .venv/bin/activate": "as `make install`",
    "pip install -c constraints.txt -e": "as `make install`",
    "ssh -L": "another machine",
    "torchrun --nnodes 2": "several machines; torchrun's own parser reads it in test_docs",
    "vllm serve": "vLLM cannot be installed beside the library; `make test-vllm` runs it",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve": "as `vllm serve`",
    "reflectrl check-server": "needs vLLM; tests/pipeline/test_served_runs.py has a server",
    "reflectrl run --recipe smollm2/number_line_server_thoughts": "needs vLLM; tests/pipeline/test_served_thoughts.py",
    "reflectrl run --recipe gym_cards/nano_points24_gtr_remote": "a paid model; tests/pipeline/test_thoughts.py",
    "reflectrl run --recipe gym_cards/nano_number_line_gtr_local": "93 MB from a package index",
    "reflectrl explore . Which module": "programs in a sandbox; tests/cli/test_explore.py",
    "reflectrl models get": "93 MB; tests/lm/test_packages.py has an index",
    "reflectrl data import": "a file of others that is not ours to copy; tests/data_gen/test_conversations.py",
    "reflectrl export runs/dangerous_taxi-nano --out taxi-agent --push-to-hub": "a hub; tests/share has one",
    "reflectrl claims": "hours; its runs are planned below",
}
"""Beginnings of lines that cannot run in a test, with the reason; test_docs parses those of reflectrl."""
NEEDS = {"reflectrl check-env verifiers:": "verifiers", "reflectrl env export": "verifiers", "reflectrl env": "openenv"}
"""Beginnings of lines, with a package that they need."""

SMALL = (
    *("model.builtin.layers=1", "data.samples=60", "sft.reflector.steps=2", "sft.policy.steps=2"),
    *("rlft.lessons.0.iterations=2", "rlft.episodes=8", "rlft.record_episodes=8", "rlft.validation=null"),
    *("eval.policies=[sft, rlft]", "eval.controls=[]", "eval.episodes=4", "eval.greedy=false"),
)
"""Settings that are appended to each line with a recipe."""
SLURM = ("--launcher", "slurm")
SECOND = ("rlft.lessons.1.iterations=1",)
"""Settings of recipes with two lessons."""
MORE: Mapping[str, tuple[str, ...]] = {
    "reflectrl run --recipe dangerous_taxi/pickup": ("model.name=builtin/nano", "model.lora=null"),
    "reflectrl run --recipe auto_explore/nano ": SECOND,
    "reflectrl run --recipe auto_explore/nano_cotrained": SECOND,
    "reflectrl eval --recipe auto_explore/nano ": SECOND,
    "reflectrl run --recipe smollm2": ("model.name=builtin/nano", "model.lora=null"),
    "reflectrl run --recipe smollm2/taxi_pickup": SLURM,
    "reflectrl run --recipe smollm2/number_line_server ": (
        *("players.reflector.endpoint.base_url=http://127.0.0.1:9/v1", "players.reflector.endpoint.replicas=[]"),
    ),
    "reflectrl run --recipe number_line/nano --arms": SLURM,
    "reflectrl run --recipe number_line/nano --seeds 0-4 --jobs 2 --grid": SLURM,
    "reflectrl run --recipe number_line/nano --seeds": ("--seeds", "0-1"),
    "reflectrl tune": ("--trials", "2", *SMALL, "rlft.validation={episodes: 4}"),
    "reflectrl train-rater": ("--steps", "3"),
    "reflectrl train ": ("--minutes", "0.1", *SMALL),
    "reflectrl gen-data --recipe dangerous_taxi/openai_teacher": (
        "data.endpoint.base_url=URL",
        "data.endpoint.price={prompt: 2.5, completion: 10}",
        "data.trajectory=oracle",
    ),
}
"""Words that are appended to lines with a beginning."""
READY: Mapping[str, tuple[str, ...]] = {
    "eval": (
        *(f"reflectrl run --recipe {name} --until rlft" for name in ("dangerous_taxi/nano", "number_line/nano")),
        "reflectrl run --recipe auto_explore/nano --until rlft",
    ),
    "rlft": tuple(f"reflectrl {stage} --recipe dangerous_taxi/nano" for stage in ("gen-data", "sft")),
    "sft": ("reflectrl gen-data --recipe dangerous_taxi/nano",),
    "scaling": tuple(
        f"reflectrl {stage} --recipe number_line/nano name={name}"
        for name in ("number_line-nano", "two")
        for stage in ("gen-data", "sft")
    ),
    "tools": (
        *(f"reflectrl run --recipe dangerous_taxi/nano{arm}" for arm in ("", " --arm no_reflection")),
        "reflectrl run --recipe number_line/nano --seeds 0-1",
        "reflectrl run --recipe auto_explore/nano --until rlft",
    ),
}
"""Lines whose results a page takes for granted."""
TYPED = {
    "reflectrl play number_line size=10 --save": "".join(
        f"\n{'add' if first < last else 'sub'} one\n" * abs(first - last)
        for first, last in [map(int, choose_episodes(make_env("number_line", size=10))[0].task.id.split("-to-"))]
    ),
    "reflectrl play number_line": "0\n" * 20,
    "reflectrl play --run": "\n" * 99,
    "reflectrl explore . How": "id guide.md\n",
    "reflectrl explore . Which": "write notes.md\nLong.\nEND\nexit\n",
}
"""What a person types, by the beginnings of lines."""
FAILS = {
    "reflectrl run --recipe smollm2/number_line_server ": "cannot be reached",
    "reflectrl explore company:nano": "no file was named",  # after two iterations
}
"""Words of the sentence with which lines may fail, by their beginnings."""


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(PAGES[page]) if kind == language]


def lines(page: str) -> Iterator[list[str]]:
    """Yield the words of each line of a page's shells; one goes on where a quotation does."""
    for block in blocks(page, "bash"):
        line = ""
        for part in block.replace("\\\n", " ").splitlines(keepends=True):
            line += part
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                continue
            if words:
                yield words
            line = ""


def of(table: Mapping[str, T], words: list[str]) -> list[T]:
    """Return the values of a table for the beginnings of a line."""
    return [value for beginning, value in table.items() if " ".join([*words, ""]).startswith(beginning)]


SHELLS = [page for page in PAGES if blocks(page, "bash") and page != "tutorial"]
LINES = [words for page in SHELLS for words in lines(page)]


def test_every_block_of_every_page_is_run_by_a_test_or_a_drawing() -> None:
    found = {(page, language) for page, text in PAGES.items() for language, _ in FENCE.findall(text)}
    run = {*((page, "bash") for page in SHELLS), *DRAWN}.union(*RUN_BY.values())
    assert found == run
    for file, kinds in RUN_BY.items():
        test = (ROOT / file).read_text(encoding="utf-8")
        assert [page for page, _ in kinds if f'"{page}' not in test and f"{page}.md" not in test] == [], file
    fences = sum(text.count("\n```") for text in PAGES.values())
    assert fences == 2 * sum(len(FENCE.findall(text)) for text in PAGES.values()), "a fence of another form"


def test_what_is_said_of_lines_is_said_of_lines_that_are_there() -> None:
    known = [*LINES, *map(shlex.split, [line for ready in READY.values() for line in ready])]
    for table in (ELSEWHERE, NEEDS, MORE, TYPED, FAILS):
        assert [each for each in table if not any(of({each: True}, words) for words in known)] == []
    programs = {words[0] for words in LINES if not of(ELSEWHERE, words)}
    assert programs == {"reflectrl", "torchrun", "curl", "cp", "export", ".venv/bin/reflectrl"}


def test_what_cannot_run_here_is_right_as_far_as_can_be_seen(tmp_path: Path) -> None:
    for page in SHELLS:
        for block in blocks(page, "bash"):
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    told = {name for words in LINES for name in re.findall(r"pip install .*\.\[([\w,]+)\]", " ".join(words))}
    assert told
    assert {extra for names in told for extra in names.split(",")} <= {*extras}
    subprocess.run(["make", "-n", "install"], cwd=ROOT, check=True, capture_output=True)
    [claim] = [words for words in LINES if words[1:2] == ["claims"]]
    assert plan_claims(read_claims(ROOT / claim[2], [claim[claim.index("--only") + 1]]), tmp_path)


def test_the_row_of_the_page_is_read(tmp_path: Path) -> None:
    [row] = blocks("gen-data", "json")
    (tmp_path / "rows.jsonl").write_text(row.replace("\n", " ") + "\n", encoding="utf-8")
    assert [(read.player, read.negative) for read in read_rows(tmp_path / "rows.jsonl")] == [("reflector", True)]


class Shell:
    """Runs lines in the current folder, the library's own commands in this process."""

    def __init__(self, url: str) -> None:
        self.url = url
        """Address of a chat model."""
        self.servers: list[WarmProcess] = []
        self.address = ""
        """Address of the last server that was started."""

    def follow(self, words: list[str]) -> None:
        """Run a line, which has to end as its page says."""
        if of(ELSEWHERE, words) or any(find_spec(package) is None for package in of(NEEDS, words)):
            return
        program = words[0].rpartition("/")[2]
        if program == "reflectrl" and ("watch" in words[:2] or "serve" in words[:3]):
            self.serve(words)
        elif program == "reflectrl":
            self.run(words)
        elif program == "torchrun":
            given = self.whole(["reflectrl", *words[words.index("reflectrl") + 1 :]])
            ranks = start_ranks(Path.cwd(), command_line, *given[1:])
            assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said
        elif program == "curl":
            asked = [word.replace("http://127.0.0.1:8000", self.address) for word in words]
            done = subprocess.run([*asked, "--silent", "--fail"], capture_output=True, text=True, check=True)
            assert '"action":' in done.stdout
        else:
            subprocess.run(words, check=True)

    def run(self, words: list[str]) -> None:
        done = reflectrl(*self.whole(words)[1:], typed=next(iter(of(TYPED, words)), ""))
        failed = done.code in (1, 2) and any(fault in done.err for fault in of(FAILS, words))
        assert failed or done.code == 0, f"{shlex.join(words)}\n{done.out}\n{done.err}"

    def serve(self, words: list[str]) -> None:
        server = WarmProcess(Path(f"server-{len(self.servers)}.log"), command_line, *words[1:], "--port", "0")
        self.servers.append(server)
        wait_until(lambda: "http" in server.said or server.poll() is not None)
        [self.address] = re.findall(r"http://[\d.:]+", server.said)
        if "env" not in words:
            with urlopen(self.address) as page:
                assert b"<html" in page.read()

    def whole(self, words: list[str]) -> list[str]:
        """Return a line with what is appended to it, and with the files that its patterns name."""
        more = [*SMALL] if "--recipe" in words else []
        more += [word.replace("URL", self.url) for each in reversed(of(MORE, words)) for word in each]
        files = ([*map(str, sorted(Path().glob(word)))] if word.endswith("-*") else [word] for word in words)
        return [word for each in files for word in each] + more


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
@pytest.mark.parametrize("page", SHELLS)
def test_the_lines_of_a_page_run(
    page: str, endpoint: ScriptedEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REFLECTRL_EXPLORER", "")
    endpoint.reply = lambda chat: "exit"  # noqa: ARG005 - the last command of an explorer, and a reflection
    endpoint.batches.states = ("completed",)
    for file in ("vault.py", "my_package/vault.py"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(*blocks("README", "python"), encoding="utf-8")
    Path("guide.md").write_text("Questions are checked by hand.\n")
    shell = Shell(endpoint.url)
    try:
        with restored_registry():
            for words in [*map(shlex.split, READY.get(page, ())), *lines(page)]:
                if words[0] == "export":
                    monkeypatch.setenv(*words[1].split("=", 1))
                else:
                    shell.follow(words)
    finally:
        for server in shell.servers:
            server.kill()
