"""The audit's numbers for a known confusion matrix, and none where a number is undefined."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import reflectrl
from run_folders import iteration, make_run

from reflectrl.core import WorkFailed
from reflectrl.core.jsonl import write_jsonl
from reflectrl.core.run_files import RATINGS
from reflectrl.report import report
from reflectrl.rollout.agreement import Ratings, agreement, check_failures, rank_correlation


def ratings(levels, success, returns=None, iteration=0) -> Ratings:
    return Ratings(iteration, 3, tuple(levels), tuple(success), tuple(returns or map(float, success)))


def test_a_known_confusion_has_its_numbers() -> None:
    first = ratings([3, 3, 3, 2, 2], [True, True, False, True, False])
    second = ratings([0, 0, 1, None], [False, False, True, True], iteration=1)
    found = agreement([first, second])
    assert (found.episodes, found.unrated, found.succeeded) == (8, 1, 4)
    assert found.by_level == ((2, 0), (0, 1), (1, 1), (1, 2))
    assert found.accuracy == pytest.approx(5 / 8, abs=1e-9)
    assert found.precision == pytest.approx(2 / 3, abs=1e-9)
    assert found.recall == pytest.approx(2 / 4, abs=1e-9)
    # ranks less their mean: 2.5 2.5 2.5 0 0 -3 -3 -1.5, and 2 2 -2 2 -2 -2 -2 2
    assert found.success_correlation == pytest.approx(14 / (39 * 32) ** 0.5, abs=1e-9)


def test_what_is_not_defined_is_none_and_no_number() -> None:
    found = agreement([ratings([0, 0], [False, False])])
    assert (found.accuracy, found.precision, found.recall) == (1.0, None, None)
    assert (found.success_correlation, found.return_correlation) == (None, None)
    nothing = agreement([ratings([None], [True])])
    assert (nothing.episodes, nothing.accuracy, nothing.precision, nothing.recall) == (0, None, None, None)


def test_what_is_not_defined_is_reported_as_not_available(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", metrics=[iteration(0)])
    write_jsonl(run / RATINGS, [ratings([0, 2], [True, True])])
    assert re.search(r"^all +2 of 2 +0\.0% +n/a +0\.0% +n/a +n/a$", reflectrl("audit-rater", run).out, re.MULTILINE)
    numbers = json.loads(reflectrl("audit-rater", run, "--format", "json").out)["all"]
    assert (numbers["accuracy"], numbers["precision"], numbers["success_correlation"]) == (0.0, None, None)
    page = report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "n/a</td>" in page.partition("<h4>Ratings</h4>")[2]


def test_the_page_shows_agreement_over_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", metrics=[iteration(0), iteration(1)])
    write_jsonl(run / RATINGS, [ratings([3, 3, 2, None], [True, False, True, True]), ratings([0, 3], [False, True])])
    page = report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    rows = page.partition("<h4>Ratings</h4>")[2].partition('<p class="note">')[0].split("<tr>")
    shown = [cells for row in rows if (cells := re.findall(r"<td[^>]*>([^<]*)</td>", row))]
    # ranks of all less their mean: 1 1 -1 -2 1, and 1 -1.5 1 -1.5 1
    correlation = f"{(1 - 1.5 - 1 + 3 + 1) / (8 * 7.5) ** 0.5:+.2f}"
    assert shown == [
        ["all", "5 of 6", "60.0%", "66.7%", "66.7%", correlation, correlation],
        ["last quarter", "2 of 2", "100.0%", "100.0%", "100.0%", "+1.00", "+1.00"],
        *(["0", "1", "0"], ["1", "0", "0"], ["2", "0", "1"], ["3", "1", "2"]),
    ]


def test_ranks_are_compared_and_not_values() -> None:
    assert rank_correlation([0, 1, 2, 3], [-5.0, 0.1, 7.0, 900.0]) == pytest.approx(1)
    assert rank_correlation([0, 1, 2, 3], [4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1)


def test_training_stops_where_too_many_ratings_are_missing() -> None:
    check_failures(ratings([None, 1, 2, 3, 3], [True] * 5), 0.2)
    with pytest.raises(WorkFailed, match=r"rater gave no rating to 2 of 5 episodes of iteration 7.*max_failure_rate"):
        check_failures(ratings([None, None, 2, 3, 3], [True] * 5, iteration=7), 0.2)
