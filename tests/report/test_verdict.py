"""Verdicts on runs in plain words, from run folders with known numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import reflectrl
from run_folders import evaluated, iteration, write_ledger

from reflectrl.core.jsonl import write_jsonl
from reflectrl.core.run_files import POLICY, sft_training_file
from reflectrl.report import report
from reflectrl.report.compare import Rows, compare
from reflectrl.report.runs import read_runs
from reflectrl.report.verdict import MAX_HEADLINES, headlines, verdict
from reflectrl.rollout.iteration import SFTProgress
from reflectrl.rollout.results import Validated, read_results, write_results, write_validated

SILENT = "players.reflector.player=none"
ONE_RUN = "One run a recipe: other seeds may end elsewhere (`reflectrl run --seeds 0-4` tells)."


def judge(*folders: Path) -> list[str]:
    return verdict(read_runs(folders))


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (0.61, 0.94, "RLFT raised success from 61 % [51, 70] to 94 % [88, 97]."),
        (0.9, 0.5, "RLFT lowered success from 90 % [83, 94] to 50 % [40, 60]."),
        (
            0.7,
            0.75,
            "RLFT made no clear difference (+5 points [-7, +17]): success was 70 % [60, 78] before it and "
            "75 % [66, 82] after it.",
        ),
    ],
)
def test_a_run_is_told_from_before_to_after_with_intervals(
    tmp_path: Path, before: float, after: float, sentence: str
) -> None:
    assert judge(evaluated(tmp_path / "run", after, before, SILENT)) == [sentence, ONE_RUN]


def test_success_is_told_once_where_no_policy_was_trained_before(tmp_path: Path) -> None:
    file = evaluated(tmp_path / "run", 0.94, 0.1, SILENT) / "eval.jsonl"
    write_results(file, [replace(row, policy=row.policy.replace("sft", "random")) for row in read_results(file)])
    assert judge(tmp_path / "run") == [
        "RLFT is better than random: success is 94 % [88, 97], random 10 %.",
        ONE_RUN,
    ]


def test_returns_are_told_where_success_is_no_better_than_random(tmp_path: Path) -> None:
    file = evaluated(tmp_path / "run", 0.0, 0.0, SILENT) / "eval.jsonl"
    trained, chance = (
        replace(row, policy=name) for row, name in zip(read_results(file), ("rlft", "random"), strict=True)
    )
    write_results(file, [trained, replace(chance, metrics=replace(chance.metrics, episode_return=-92.07))])
    reached = f"{trained.metrics.episode_return:+.3g}"
    assert f"The mean return is {reached}, that of random play -92.1." in judge(tmp_path / "run")


def test_reflections_are_weighed_against_a_twin_without_or_else_against_blank_ones(tmp_path: Path) -> None:
    reflecting = evaluated(tmp_path / "reflecting", 0.9, 0.5, blank=0.6)
    silent = evaluated(tmp_path / "silent", 0.5, 0.4, SILENT, "name=without")
    other = evaluated(tmp_path / "other", 0.5, 0.4, SILENT, "name=other", "rlft.gamma=1")
    _, _, twin, _ = judge(reflecting, silent)
    assert twin == (
        "Reflections were worth 40 points [+28, +51] here: 90 % [83, 94] trained with them, 50 % [40, 60] without any."
    )
    elsewhere = evaluated(tmp_path / "elsewhere", 0.5, 0.4, SILENT, "name=elsewhere", "eval.split=validation")
    for folders in ([reflecting], [reflecting, other], [reflecting, elsewhere]):
        *_, blank, _ = judge(*folders)
        numbers = "90 % [83, 94] with their words, 60 % [50, 69] with blank ones"
        assert blank.startswith("The policy depends on its reflections (+30 points")
        assert numbers in blank
    assert "Reflections made no clear difference here (-5 points" in " ".join(
        judge(evaluated(tmp_path / "even", 0.45, 0.3), silent)
    )
    again = evaluated(tmp_path / "again", 0.1, 0.1, SILENT, "name=again", "description=again")
    assert "30 % [0, 98] without any" in " ".join(judge(reflecting, silent, again))  # of both


@pytest.mark.parametrize(("words", "actions", "predicted"), [(0.9, 0.3, "this"), (0.3, 0.9, "the opposite")])
def test_the_worth_of_reflections_is_compared_with_what_sft_predicted(
    tmp_path: Path, words: float, actions: float, predicted: str
) -> None:
    reflecting = evaluated(tmp_path / "reflecting", 0.9, 0.5)
    silent = evaluated(tmp_path / "silent", 0.5, 0.4, SILENT, "name=without")
    for folder, player, kept in ((reflecting, "reflector", words), (silent, "policy", actions)):
        checks = [SFTProgress(step, 0.5, loss, right, None) for step, loss, right in ((10, 0.2, kept), (20, 0.4, 1.0))]
        write_jsonl(folder / sft_training_file(player), checks)
    assert (
        f"SFT predicted {predicted}: in held-out rows, {100 * words:.0f} % of the reflector's texts were right, and "
        f"{100 * actions:.0f} % of the actions of the policy without any."
    ) in judge(reflecting, silent)
    even = evaluated(tmp_path / "even", 0.45, 0.3)
    assert not any("SFT predicted" in sentence for sentence in judge(even, silent))


@pytest.mark.parametrize(
    ("blank", "sentence"),
    [
        (0.45, "Blank reflections made no clear difference to this policy (-5 points [-18, +9])"),
        (0.8, "The policy does better with blank reflections (+30 points [+17, +42])"),
    ],
)
def test_the_sign_of_what_blank_reflections_change_is_theirs(tmp_path: Path, blank: float, sentence: str) -> None:
    assert sentence in " ".join(judge(evaluated(tmp_path / "run", 0.5, 0.3, blank=blank)))


def test_several_seeds_are_one_sentence(tmp_path: Path) -> None:
    folders = [evaluated(tmp_path / str(n), 0.8 + 0.1 * n, 0.5, SILENT, f"seed={n}") for n in range(3)]
    raised, worst = judge(*folders)
    # equal runs are not certainty: 50 of 100 episodes each leave 40 to 60 %
    assert raised == "RLFT raised success from 50 % [44, 56] to 90 % [49, 99], mean of 3 runs."
    assert worst == "The worst of these runs ended at 80 % (0)."


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ((0.1, 0.3, 0.5), (0.25, 0.45, 0.65), "RLFT raised success from 30 % ["),
        ((0.83, 0.93, 0.97), (1.0, 1.0, 0.99), "RLFT made no clear difference (+9 points [-10, +28]): "),
        ((0.83,), (1.0,), "RLFT raised success from 83 % ["),
    ],
)
def test_report_and_compare_have_one_verdict_on_the_same_runs(
    tmp_path: Path, before: tuple[float, ...], after: tuple[float, ...], sentence: str
) -> None:
    runs = [
        evaluated(tmp_path / f"run{n}", end, start, SILENT, f"seed={n}")
        for n, (start, end) in enumerate(zip(before, after, strict=True))
    ]
    told, *_ = judge(*runs)
    assert told.startswith(sentence)
    assert f"number_line-nano: {told}" in reflectrl("compare", *runs).out


def test_of_several_splits_the_test_is_judged_and_named(tmp_path: Path) -> None:
    for split, success in (("validation", 0.9), ("test", 0.3)):
        evaluated(tmp_path / split, success, 0.5, SILENT, split=split)
    both = evaluated(tmp_path / "run", 0.9, 0.5, SILENT, "eval.split=[validation,test]")
    rows = [row for split in ("validation", "test") for row in read_results(tmp_path / split / "eval.jsonl")]
    write_results(both / "eval.jsonl", rows)
    assert judge(both)[0] == "RLFT lowered success on split test from 50 % [40, 60] to 30 % [22, 40]."
    assert re.search(r"^run .* 30% +0\.0 *$", reflectrl("runs", tmp_path).out, re.MULTILINE)


def test_the_headline_has_sft_rlft_and_what_reflections_add(tmp_path: Path) -> None:
    def told(*runs: Path) -> list[tuple[str, dict[str, int]]]:
        found = headlines(read_runs(runs))
        return [(each.group, {what: round(100 * rate.mean) for what, rate in each.rates}) for each in found]

    one = evaluated(tmp_path / "one", 0.9, 0.5, blank=0.2)
    assert told(one) == [("", {"after SFT": 50, "after RLFT": 90, "with blank reflections": 20})]
    twin = evaluated(tmp_path / "twin", 0.6, 0.4, SILENT)
    rates = {"after SFT": 50, "after RLFT": 90, "trained without reflections": 60}
    assert told(one, twin) == told(twin, one) == [("", rates)]
    assert told(twin) == [("", {"after SFT": 40, "after RLFT": 60})]
    assert told(evaluated(tmp_path / "young", 0.9, 0.5, split="validation")) != []
    many = [evaluated(tmp_path / f"arm{n}", 0.9, 0.5, f"data.samples={n + 9}") for n in range(MAX_HEADLINES + 1)]
    assert [len(told(*many[:count])) for count in (2, MAX_HEADLINES, MAX_HEADLINES + 1)] == [2, MAX_HEADLINES, 0]


def test_a_training_that_still_runs_is_not_judged_by_its_last_iterations(tmp_path: Path) -> None:
    line = [iteration(number, success=0.9 if number < 10 else 0.4) for number in range(20)]
    run = evaluated(tmp_path / "run", 0.9, 0.5, SILENT, metrics=line)
    assert any("did not keep" in sentence for sentence in judge(run))
    write_ledger(run, rlft={"done": False, "seconds": 1.0, "cpu_seconds": 1.0})
    assert not any("did not keep" in sentence for sentence in judge(run))


def test_the_worth_of_reflections_names_its_group_where_there_are_several(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "one", 0.9, 0.5, "name=one", "rlft.gamma=0.8")
    other = evaluated(tmp_path / "other", 0.8, 0.5, "name=other")
    worth = [sentence for sentence in judge(one, other) if "depends on its reflections" in sentence]
    assert [sentence.partition(": ")[0] for sentence in worth] == ["one", "other"]


def test_a_run_that_ends_below_its_best_is_named(tmp_path: Path) -> None:
    successes = [0.5] * 10 + [0.95] * 10 + [0.6] * 10
    line = [iteration(number, success=success) for number, success in enumerate(successes)]
    kept = "`rlft.validation` with `rlft.keep=best` keeps the best."
    *_, fall, _ = judge(evaluated(tmp_path / "run", 0.9, 0.5, SILENT, metrics=line))
    assert fall == (
        f"run did not keep what it had learned: training success was 95 % at iteration 19 and 60 % at the end. {kept}"
    )
    for number, success in ((9, 0.8), (19, 0.8), (29, 0.5)):
        line[number] |= {"validation_success": success, "validation_greedy": None}
    last = ("rlft.validation={every: 10}", "rlft.keep=last")
    *_, fall, _ = judge(evaluated(tmp_path / "validated", 0.9, 0.5, SILENT, *last, metrics=line))
    assert "validation success was 80 % at iteration 19 and 50 % at the end." in fall
    best = ("rlft.validation={every: 10}", "rlft.keep=best")
    kept_best = evaluated(tmp_path / "best", 0.9, 0.5, SILENT, *best, metrics=line)
    assert len(judge(kept_best)) == 2
    (summary,), _ = compare(read_runs([kept_best]), Rows())
    assert summary.largest_fall == pytest.approx(0.3)  # a comparison shows how stable training was


@pytest.mark.parametrize(("scale", "began"), [(1.0, ""), (2.0, ", those of SFT with logits times 2")])
def test_a_run_that_keeps_the_weights_of_its_start_says_which_they_are(
    tmp_path: Path, scale: float, began: str
) -> None:
    metrics = [iteration(0, sharpened=scale), iteration(1)]
    folder = evaluated(tmp_path / "run", 0.62, 0.61, metrics=metrics)
    write_validated(folder / POLICY, Validated(0.6, 0.6, 0.5, 64, iterations=0))
    kept = f"run kept the weights that RLFT began with{began}: none that it trained did better in validation"
    assert any(sentence.startswith(kept) for sentence in judge(folder))


def test_what_is_not_evaluated_is_not_judged(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "run", 0.9, 0.5)
    (folder / "eval.jsonl").unlink()
    assert judge(folder) == []


def test_the_report_begins_with_the_verdict_and_compares_several_runs(tmp_path: Path) -> None:
    folders = [evaluated(tmp_path / f"run{n}", 0.88 + 0.02 * n, 0.5, f"seed={n}") for n in range(2)]
    page = report(folders, tmp_path / "both.html").read_text()
    assert page.index("RLFT raised success") < page.index("Comparison") < page.index("Learning curves")
    assert "89 [70, 96]" in page
    assert "Seed 1." in page
    apart = evaluated(tmp_path / "apart", 0.9, 0.5, "name=apart", split="validation")
    told = report([*folders, apart], tmp_path / "three.html").read_text()
    assert "apart is left out: its evaluation has no row of policy rlft, split test" in told
    assert "Comparison" not in report(folders[:1], tmp_path / "one.html").read_text()
    done = reflectrl("report", folders[0], "--out", tmp_path / "one.html")
    assert "RLFT raised success from 50 %" in done.out
