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


def test_an_evaluation_of_another_version_says_how_to_make_it_again(tmp_path):
    env = make_env("number_line")
    episodes = [Episode(env.tasks("test")[0], 0)]
    played = rollout([env], episodes, policy=RandomPolicy(), reflector=None, layout=PromptFormat())
    write_results(tmp_path / "eval.jsonl", [summarise("random", "none", "sampled", "test", played)])
    row = json.loads((tmp_path / "eval.jsonl").read_text())
    del row["benchmark"]
    (tmp_path / "eval.jsonl").write_text(json.dumps(row) + "\n")
    sentence = r"eval.jsonl, line 1 lacks field 'benchmark'; .* take 'eval' out of stages.json beside it and run"
    with pytest.raises(InvalidInput, match=sentence):
        read_results(tmp_path / "eval.jsonl")


def test_a_missing_evaluation_says_what_to_run(tmp_path):
    with pytest.raises(InvalidInput, match="run `reflectrl eval`"):
        read_results(tmp_path / "eval.jsonl")


def test_a_row_that_lacks_a_field_names_file_and_line(tmp_path):
    (tmp_path / "eval.jsonl").write_text('{"policy": "sft"}\n')
    with pytest.raises(InvalidInput, match=r"eval\.jsonl.*1"):
        read_results(tmp_path / "eval.jsonl")
