from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from kills import KINDS, Kind, differing, kept_replies, kill_tree, signals
from scripted_teacher import Teacher, words, write_recipe

from reflectrl.config import check_recipe, load_recipe


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Reflect."}, {"role": "user", "content": text}]


def folder(place: Path, **files: str) -> Path:
    given = {"stages.json": '{"sft": {"done": true, "wall_seconds": 1.5}}', **files}
    for name, text in given.items():
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def test_runs_with_the_same_files_differ_in_nothing_but_clocks_and_checkpoints(tmp_path):
    clocks = {"stages.json": '{"sft": {"done": true, "wall_seconds": 9.5}}', "throughput.jsonl": "9"}
    one = folder(tmp_path / "one", **{"policy__model": "1", "checkpoints__x": "1", "calls__teacher__replies.jsonl": ""})
    other = folder(tmp_path / "other", **{"policy__model": "1"}, **clocks)
    assert differing(one, other) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"policy__model": "2"}, "policy/model"),
        ({"policy__model": "1", "policy__more": ""}, "policy/more"),
        ({"policy__model": "1", ".base.fresh": ""}, ".base.fresh"),
        ({"policy__model": "1", "stages.json": '{"sft": {"done": false}}'}, "stages.json"),
        ({}, "policy/model"),
    ],
)
def test_a_file_that_differs_is_missing_or_is_left_over_is_named(changed, named, tmp_path):
    one = folder(tmp_path / "one", policy__model="1")
    assert differing(one, folder(tmp_path / "other", **changed)) == [named]


def test_a_torn_line_is_no_reply_that_was_kept(tmp_path):
    lines = '{"text": "north"}\n{"text": null}\n{"text": "so'
    run = folder(tmp_path, **{"calls__teacher__replies.jsonl": lines, "calls__writer__replies.jsonl": ""})
    assert kept_replies(run) == {"north"}


def test_a_kill_reaches_processes_in_sessions_of_their_own():
    child = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        grandchild = int(process.stdout.readline())
        kill_tree(process.pid)
    status = Path(f"/proc/{grandchild}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    assert process.returncode == -9


def ask(teacher: Teacher, text: str) -> str | None:
    """What is said; ``None`` for anything that is no use."""
    asked = json.dumps({"model": "scripted", "messages": chat(text)}).encode()
    try:
        with urllib.request.urlopen(f"{teacher.url}/chat/completions", asked, timeout=10) as reply:
            return json.load(reply)["choices"][0]["message"]["content"] or None
    except (OSError, ValueError, http.client.HTTPException):
        return None


def test_the_teacher_fails_now_and_then_and_its_words_depend_on_the_chat_alone(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    rooms = [f"Room {number}." for number in range(80)]
    with Teacher() as teacher:
        teacher.latency_s = 0.0
        first, again = [ask(teacher, room) for room in rooms], [ask(teacher, room) for room in rooms]
        assert 5 < first.count(None) < 40
        assert again.count(None) < 5
        assert {*first, *again} - {None} <= {words(chat(room)) for room in rooms}
        assert teacher.answered == [said for said in [*first, *again] if said]
        assert len(set(again) - {None}) == 80 - again.count(None)


def test_every_fifth_kill_is_a_wish_unless_torchrun_is_asked():
    rng = random.Random(0)
    alone = [signals(index, Kind("sft"), rng).name for index in range(50)]
    assert alone.count("SIGKILL") == 40
    assert {"SIGTERM", "SIGINT"} < set(alone)
    assert {signals(index, Kind("rlft", 2), rng).name for index in range(50)} == {"SIGKILL"}


def test_the_recipe_is_one_that_the_command_line_takes(tmp_path):
    path = write_recipe(tmp_path, "http://127.0.0.1:9/v1")
    check_recipe(load_recipe(str(path)))
    assert [kind.name for kind in KINDS] == ["gen-data", "sft", "rlft", "eval", "rlft, 2 ranks"]
    command = Kind("rlft", 2).command(path, tmp_path / "runs" / "kills")
    assert command[command.index("--") - 1 :][:4] == ["-m", "--", "reflectrl", "rlft"]
