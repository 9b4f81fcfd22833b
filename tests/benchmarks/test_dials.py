from __future__ import annotations

import random
from pathlib import Path

import pytest
from arms import HERE
from dials import ARMS, DIALS, plan, report
from puzzles import KINDS
from run_folders import evaluated

from reflectrl.config import check_recipe, load_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core.jsonl import encode, write_jsonl
from reflectrl.core.run_files import sft_training_file
from reflectrl.report.runs import read_runs
from reflectrl.rollout.iteration import SFTProgress


@pytest.mark.parametrize("dial", DIALS)
def test_each_run_turns_its_dial_alone(dial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(dial, [0, 1], tmp_path)
    assert len({run.folder for run in planned}) == 2 * len(DIALS[dial][1]) * len(ARMS[dial])
    assert [run.folder.name[-1] for run in planned] == sorted(run.folder.name[-1] for run in planned)
    for run in planned[: len(planned) // 2]:
        monkeypatch.syspath_prepend(HERE)
        recipe = load_recipe(run.recipe, run.overrides)
        check_recipe(recipe)
        env = recipe_env(recipe, tmp_path)
        env.reset(seed=0)
        words, text = env.reflection(), env.observation.text  # at most a token a character, and a menu of 90 tokens
        assert len(words) < recipe.players.reflector.max_new_tokens
        assert len(text) + len(words) + 90 < recipe.model.max_length
        assert run.folder.name.startswith(f"{dial}{recipe.env.options[dial]}-")


def test_a_row_is_an_arm_and_a_column_a_setting(tmp_path: Path) -> None:
    for number, success in enumerate((0.9, 0.8)):
        evaluated(tmp_path / f"turns2-0-seed{number}", success, 0.1)
    evaluated(tmp_path / "turns3-5-seed0", 0.3, 0.1)
    head, _, *rows = report("turns", read_runs(sorted(tmp_path.iterdir()))).splitlines()
    assert head == "| turns | 1 | 2 | 3 |"
    assert rows[0] == "| none, 1-layer policy | - | 85 (80) | - |"
    assert rows[-1] == "| reflections, 2-layer policy | - | - | 30 (30) |"


def test_a_prediction_counts_where_the_difference_is_clear(tmp_path: Path) -> None:
    for kind, without, having in (("hops", 0.1, 0.9), ("lookup", 0.1, 0.9), ("coins", 0.5, 0.5)):
        for number, success in enumerate((without, having)):
            evaluated(tmp_path / f"kind{kind}-{number}-seed0", success, 0.1)
            right = {"hops": 0.2, "lookup": 0.7, "coins": 0.5}[kind]
            check = SFTProgress(1, 1.0, 1.0, (right, 1.2 * right)[number], None)
            rows = tmp_path / f"kind{kind}-{number}-seed0" / sft_training_file(("policy", "reflector")[number])
            rows.parent.mkdir(exist_ok=True)
            write_jsonl(rows, [encode(check)])
    *_, hops, coins, _, said = report("kind", read_runs(sorted(tmp_path.iterdir()))).splitlines()
    assert hops.startswith("| hops | pay | 24 | 20 | +80 points ")
    assert coins.startswith("| coins | pay | 60 | 50 | +0 points ")
    assert "the 2 whose interval excludes 0, the number of dependent steps tells 1 signs" in said
    assert said.endswith("tells 2.")


def test_the_words_of_a_puzzle_lead_to_its_answer() -> None:
    for kind, make in KINDS.items():
        puzzles = [make(random.Random(number)) for number in range(200)]
        assert len({each.right for each in puzzles}) > len(puzzles[0].answers) / 2, kind
        assert all(each.right in each.answers for each in puzzles)
        if kind != "majority":
            assert all(each.words.split()[-1] == each.right for each in puzzles), kind
