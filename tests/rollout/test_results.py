from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reflectrl.core import InvalidInput, make_env
from reflectrl.players import RandomPolicy
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.results import read_results, summarise, write_results


def test_rows_come_back_as_they_were_written(tmp_path):
    env = make_env("number_line")
    tasks = env.tasks("test")[:2]
    played = rollout(
        [env], [Episode(task, 0) for task in tasks * 2], policy=RandomPolicy(), reflector=None, layout=PromptFormat()
    )
    row = replace(summarise("random", "none", "sampled", "test", played), benchmark="numbers up to ten")
    assert row.tasks == 2
    assert row.metrics.episodes == 4
    write_results(tmp_path / "eval.jsonl", [row, row])
    assert read_results(tmp_path / "eval.jsonl") == [row, row]


@pytest.fixture
def written(tmp_path):
    """The row of an evaluation that lies in the test's folder."""
    env = make_env("number_line")
    episodes = [Episode(env.tasks("test")[0], 0)]
    played = rollout([env], episodes, policy=RandomPolicy(), reflector=None, layout=PromptFormat())
    row = summarise("random", "none", "sampled", "test", played)
    write_results(tmp_path / "eval.jsonl", [row])
    return row


def take_out(path, field):
    row = json.loads(path.read_text())
    del row[field]
    path.write_text(json.dumps(row) + "\n")


def test_an_evaluation_from_before_tasks_had_names_has_none(tmp_path, written):
    take_out(tmp_path / "eval.jsonl", "benchmark")
    assert read_results(tmp_path / "eval.jsonl") == [written]


@pytest.mark.usefixtures("written")
def test_an_evaluation_of_another_version_says_how_to_make_it_again(tmp_path):
    take_out(tmp_path / "eval.jsonl", "mode")
    sentence = r"eval.jsonl, line 1 .*'mode'.*stages.json"
    with pytest.raises(InvalidInput, match=sentence):
        read_results(tmp_path / "eval.jsonl")


def test_a_missing_evaluation_says_what_to_run(tmp_path):
    with pytest.raises(InvalidInput, match="run `reflectrl eval`"):
        read_results(tmp_path / "eval.jsonl")


@pytest.mark.parametrize("line", ['{"policy": "sft"}', "[]"])
def test_a_row_that_is_none_names_file_and_line(tmp_path, line):
    (tmp_path / "eval.jsonl").write_text(line + "\n")
    with pytest.raises(InvalidInput, match=r"eval\.jsonl, line 1 "):
        read_results(tmp_path / "eval.jsonl")
