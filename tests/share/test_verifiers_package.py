"""Our environments in verifiers: its own evaluator plays exported packages against a server with the chat API."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="needs the extra verifiers")

from command_line import reflectrl
from scripted_endpoint import Chat, ScriptedEndpoint
from verifiers.types import ClientConfig

from reflectrl.core import InvalidInput, Task, make_env
from reflectrl.share.verifiers_package import ILLEGAL_REWARD, TextGame, export_env

MADE_OF = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back the handlers of signals, which each environment of verifiers replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def walks(chat: Chat) -> str:
    """Walk to the target of the number line, after a thought; the first words are those of no action."""
    if len(chat) == 2:
        return "<think>I shall"
    number, target = map(int, re.findall(r"-?\d+", chat[-1]["content"].rpartition("Number")[2])[:2])
    return f"<think>It is {target}.</think>\n{'ADD' if number < target else 'subtract'}  one\nand so on"


def evaluated(env: Any, endpoint: ScriptedEndpoint, examples: int) -> list[dict[str, Any]]:
    """Return the rollouts of verifiers' evaluation of an environment."""
    client = ClientConfig(api_base_url=endpoint.url, api_key_var="NO_KEY")
    work = env.evaluate(client, "scripted", num_examples=examples, rollouts_per_example=1)
    return asyncio.run(work)["outputs"]


@pytest.mark.slow
def test_an_exported_package_installs_and_the_evaluator_of_verifiers_plays_it(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    folder, site = tmp_path / "package", tmp_path / "site"
    done = reflectrl("env", "export", "number_line", "--verifiers", folder, "size=6")
    assert (done.code, done.err) == (0, "")
    assert "vf-eval reflectrl-number-line" in done.out
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "pyproject.toml", "reflectrl_number_line.py"]
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", site)
    subprocess.run([*pip, folder], check=True, capture_output=True)
    endpoint.reply = walks
    words = ("reflectrl-number-line", "-m", "scripted", "-b", endpoint.url, "-k", "NO_KEY", "-n", "4", "-r", "1", "-s")
    subprocess.run(
        [Path(sys.executable).with_name("vf-eval"), *words, "--disable-env-server", "-o", tmp_path / "results"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{site}:{MADE_OF}", "NO_KEY": "none"},
    )
    (results,) = (tmp_path / "results").rglob("results.jsonl")
    rollouts = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rollouts) == 4
    env = make_env("number_line", size=6)
    tasks = {task.id: task for task in env.tasks("test")}
    for rollout in rollouts:
        task = tasks[rollout["info"]["id"]]
        system, first = rollout["prompt"]
        assert system["content"].startswith(env.instructions)
        state, info = env.reset(options={"task": task})
        assert first["content"] == "\n- ".join((f"{state}\n\nActions:", *info["actions"]))
        refused = rollout["completion"][1]["content"]
        assert refused == f"'' is none of the actions.\n{first['content']}"
        move = "add one" if task.options["start"] < task.options["target"] else "subtract one"
        ours, success, taken = ILLEGAL_REWARD, False, 1
        while not success and taken < env.horizon:  # the first turn is spent
            _, reward, _, _, info = env.step(move)
            ours, success, taken = ours + reward, info["success"], taken + 1
        assert (rollout["reward"], rollout["success"], rollout["num_turns"]) == (pytest.approx(ours), success, taken)


def test_any_words_reach_an_environment_without_menus(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: re.findall(r"the (\w+ \w+)", chat[1]["content"])[0] if len(chat) > 2 else "\x07 右へ"
    for rollout in evaluated(TextGame("orders:Orders", {}), endpoint, 2):
        assert [message["content"] for message in rollout["prompt"][1:]] == [f"Wanted: the {rollout['info']['id']}."]
        assert "Nobody knows" in rollout["completion"][1]["content"]
        assert (rollout["reward"], rollout["success"]) == (pytest.approx(0.9), 1.0)


def test_a_failure_of_the_environment_is_in_the_record_of_its_rollout_alone(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: chat[-1]["content"].rpartition("- ")[2]  # the last action
    env = TextGame("faulty:Faulty", {"fault": "raise", "at": 2, "task": "test-1"})
    rollouts = evaluated(env, endpoint, 3)
    errors = {rollout["info"]["id"]: rollout["error"] for rollout in rollouts}
    assert [name for name, error in errors.items() if error] == ["test-1"]
    assert "environment 'faulty' failed in task 'test-1'" in str(errors["test-1"])


def test_tasks_for_training_and_for_evaluation_are_ours(endpoint: ScriptedEndpoint) -> None:  # noqa: ARG001
    env, ours = (
        TextGame("dangerous_taxi", {"stage": "pickup"}, illegal_reward=-1.0),
        make_env("dangerous_taxi", stage="pickup"),
    )
    for dataset, split in ((env.get_dataset(), "train"), (env.get_eval_dataset(), "test")):
        assert [Task(**json.loads(row["info"])) for row in dataset] == list(ours.tasks(split))


def test_nothing_is_replaced_and_nothing_is_written_for_what_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidInput, match="there exists already; choose another folder, or remove it"):
        export_env("number_line", {}, tmp_path / "there")
    with pytest.raises(InvalidInput, match="'number_lin' is unknown; did you mean 'number_line'"):
        export_env("number_lin", {}, tmp_path / "new")
    with pytest.raises(InvalidInput, match="has no option 'length'"):
        export_env("number_line", {"length": 3}, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_package_requires_the_one_that_its_environment_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "orders_for_all-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: orders-for-all\nVersion: 1.0\n")
    (metadata / "top_level.txt").write_text("orders\n")
    for folder, required in (("without", []), ("with", ["orders-for-all"])):
        project, note = export_env("orders:Orders", {"horizon": 3}, tmp_path / folder)
        assert project == "reflectrl-orders-orders"
        assert ("`orders` belongs to no installed package" in note) == (not required)
        assert note in (tmp_path / folder / "README.md").read_text()
        project = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())["project"]
        assert project["dependencies"] == ["reflectrl[verifiers]", *required]
        monkeypatch.syspath_prepend(str(tmp_path))
    done = reflectrl("env", "export", "corridor:Corridor", "--verifiers", tmp_path / "said")
    assert "The module `corridor` belongs to no installed package, so pip does not bring it" in done.out
    code = (tmp_path / "with" / "reflectrl_orders_orders.py").read_text()
    assert "OPTIONS = {'horizon': 3}" in code
    assert "TextGame('orders:Orders', {**OPTIONS, **options}, illegal_reward)" in code
