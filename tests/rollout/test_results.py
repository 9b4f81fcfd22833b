from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reflectrl.core import InvalidInput, make_env
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.results import read_results, summarise, write_results
from reflectrl.seats.others import RandomPolicy


@pytest.fixture
def written(tmp_path):
    """Return the row of an evaluation that is stored in the test's folder."""
    env = make_env("number_line")
    episodes = [Episode(task, 0) for task in env.tasks("test")[:2] * 2]
    played = rollout([env], episodes, policy=RandomPolicy(), seats=(), layout=PromptFormat())
    row = summarise("random", "none", "sampled", "test", played)
    write_results(tmp_path / "eval.jsonl", [row])
    return row


def test_rows_come_back_as_they_were_written(tmp_path, written):
    named = replace(written, benchmark="numbers up to ten")
    write_results(tmp_path / "eval.jsonl", [named, written])
    assert read_results(tmp_path / "eval.jsonl") == [named, written]
    assert (written.tasks, written.metrics.episodes) == (2, 4)


def without(path, field):
    row = json.loads(path.read_text())
    del row[field]
    path.write_text(json.dumps(row) + "\n")


def test_incomplete_rows_and_missing_files_are_refused(tmp_path, written):
    path = tmp_path / "eval.jsonl"
    for field in ("benchmark", "mode", "audit"):
        write_results(path, [written])
        without(path, field)
        with pytest.raises(InvalidInput, match=rf"eval\.jsonl, line 1 lacks field '{field}'"):
            read_results(path)
    path.unlink()
    with pytest.raises(InvalidInput, match="`reflectrl eval`"):
        read_results(path)
    path.write_text("[]\n")
    with pytest.raises(InvalidInput, match=r"eval\.jsonl, line 1 "):
        read_results(path)
