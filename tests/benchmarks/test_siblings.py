"""The tables of thoughts, memories and ratings: their arms, and their numbers from finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from arms import HERE, LEARNING, SIBLINGS, plan, published_rows
from learning import machines, sitting
from run_folders import episode, evaluated, iteration
from siblings import RECORDED, Table, record, record_of, results
from studies import STUDIES
from trained_runs import SMALL, TrainedRuns

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import encode, write_jsonl
from reflectrl.pipeline.sweep import PlannedRun
from reflectrl.report.runs import read_runs
from reflectrl.rollout.results import trial_row


@pytest.mark.parametrize("name", STUDIES)
def test_the_arms_of_a_table_load_and_differ(name: str, tmp_path: Path) -> None:
    planned = plan(name, STUDIES[name].arms, "10", tmp_path)
    recipes = [load_recipe(run.recipe, run.overrides) for run in planned]
    settings = [each.model_dump(exclude={"name", "description"}) for each in recipes]
    assert all(each not in settings[:place] for place, each in enumerate(settings))
    assert len({each.env.name for each in recipes}) == 1
    if name.startswith("pretrained_"):
        assert "**Reflect-RL**" in published(name, LEARNING, "pretrained")
    else:
        assert [*published(name)] == [arm.title for arm in STUDIES[name].arms]


def published(name: str, page: Path = SIBLINGS, mark: str = "") -> dict[str, dict[str, str]]:
    """Return the published cells of a study by arm and column, of all its tables unless ``mark`` names one."""
    found: dict[str, dict[str, str]] = {}
    marks = [mark] if mark else ["siblings", *({name.partition("_")[0]} & {"thoughts", "memory"})]
    for row in (row for each in marks for row in published_rows(page, each)):
        if row.get("study", f"pretrained_{row.get('task')}") == name and row.get("on") != "GPU":
            found.setdefault(row["trained"], {}).update(row)
    return found


def cells(tables: Sequence[Table]) -> dict[str, dict[str, str]]:
    """Return the cells of a study's tables by arm and column."""
    found: dict[str, dict[str, str]] = {}
    for each in tables:
        for row in each.rows:
            found.setdefault(row[1], {}).update(zip(each.heads, row, strict=True))
    return found


@pytest.mark.parametrize("study", [name for name in STUDIES if name.startswith("pretrained_")])
def test_the_head_of_a_recipe_says_what_the_table_does(study: str) -> None:
    row = published(study, LEARNING, "pretrained")["**Reflect-RL**"]
    before, sft, mean = (row[column].split()[0] for column in ("before training", "SFT", "mean"))
    recipe, root = STUDIES[study].arms[0].recipe, HERE.parent
    head = (root / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8").partition("\n# reflectrl run")[0]
    said = " ".join(head.replace("\n#", "").split())
    assert f"{float(row['minutes']):.0f} processor minutes of training" in said
    assert f"success {before} % before any training, {sft} % after SFT, {mean} % after RLFT" in said


def test_thoughts_are_measured_at_both_ends_of_training(tmp_path: Path) -> None:
    ends = {"thought_misread": 0.25, "thought_tokens": 12.5, "illegal": 0.1}
    metrics = [*(iteration(number) for number in range(5)), *(iteration(5 + number, **ends) for number in range(5))]
    for arm in ("nothought", "gtr"):
        evaluated(
            tmp_path / f"{arm}-default-seed10",
            0.75,
            0.5,
            "seed=10",
            f"rlft.gamma={0.8 + 0.1 * (arm == 'gtr')}",
            metrics=metrics if arm == "gtr" else metrics[:3],
        )
    runs = read_runs(sorted(tmp_path.iterdir()))
    found = cells(results("thoughts_number_line", runs))
    assert [*found] == ["no thought", "GTR"]
    assert (found["GTR"]["misread"], found["GTR"]["illegal"], found["GTR"]["tokens per step"]) == ("25%", "10%", "12.5")
    assert (found["GTR"]["of each seed"], found["GTR"]["illegal, first"]) == ("25%", "0%")
    assert (found["no thought"]["worst"], "misread" in found["no thought"]) == ("75", False)


@pytest.mark.slow
def test_a_run_knows_the_machine_that_trained_it(trained_run: TrainedRuns) -> None:
    [run] = read_runs([trained_run()])
    assert run.origin is not None
    assert machines([run]) == run.origin.hardware


def test_trials_with_and_without_a_memory_stand_side_by_side(tmp_path: Path) -> None:
    played = {True: (False, True, True), False: (False, False, False)}
    run = evaluated(tmp_path / "hashing-default-seed10", 0.75, 0.5, "seed=10")
    trials = [
        trial_row(
            "rlft", "local", "test", [[episode(success=won)] for won in wins[: at + 1]], memory=memory, remembered=0
        )
        for memory, wins in played.items()
        for at in range(3)
    ]
    write_jsonl(run / "trials.jsonl", map(encode, trials))
    [found] = cells(results("memory_line", read_runs([run]))).values()
    assert [found[column] for column in ("trial 1", "2", "3", "solved")] == ["0", "100", "100", "100"]
    assert (found["3 without"], found["solved without"]) == ("0", "0")


@pytest.mark.slow
def test_a_recorded_run_makes_the_same_table(trained_run: TrainedRuns, tmp_path: Path) -> None:
    changed = ("eval.policies=[rlft]", "eval.greedy=false", "eval.trials.policies=[rlft]", "eval.trials.count=2")
    run = trained_run(*changed, "sft.policy.steps=25", name="rap/nano_trials")
    record(run, tmp_path)
    kept = tmp_path / run.parent.name / run.name
    assert {path.name for path in kept.iterdir()} == {*RECORDED}
    [ours], [recorded] = read_runs([run]), read_runs([kept])
    expected = replace(ours, sft={}, validated=None)  # which lie beside rows and weights
    assert vars(replace(recorded, path=run)) == vars(expected)
    overrides = (*SMALL, *changed, "sft.policy.steps=25")
    planned = PlannedRun(tmp_path / "runs" / run.parent.name / run.name, "rap/nano_trials", overrides)
    assert record_of(planned, tmp_path) == kept
    done, whole, code = sitting(lambda: [planned], 1, partial(record_of, records=tmp_path))
    assert (done, whole, code) == ([kept], True, 0)
    assert not planned.folder.exists()
    with pytest.raises(InvalidInput, match="gamma"):
        record_of(replace(planned, overrides=(*overrides, "rlft.gamma=0.5")), tmp_path)
    assert record_of(replace(planned, folder=tmp_path / "others" / run.name), tmp_path) is None
