"""Questions are kept if exactly one file answers them."""

from __future__ import annotations

import pytest

from reflectrl.envs.auto_explore.ambiguity import Kept, answerable, content_words

LISBON = "people/leave/lisbon.md"
FILES = {
    LISBON: "# Leave in Lisbon\nThe team has 25 days of leave.",
    "people/leave/oslo.md": "# Leave in Oslo\nThe team has 30 days of leave.",
    "shops/rent.csv": "city,rent_lisbon\nrent,1400",
    "shops/rent.bin": "",
}


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Where can I read about leave in Lisbon?", None),
        ("Which people are in the team of Lisbon?", None),  # a path counts as text
        ("I need to know about the days of leave.", "ambiguous"),
        ("Which table shows LISBON?", "ambiguous"),  # rent_lisbon is two words
        ("Who approves leave in Lisbon?", "unanswerable"),
        ("Leave in \x1b[31m Lisbon?", "unanswerable"),  # what is left of the escape code is text
        ("Where is this in the file?", "empty"),
        ("What does People/Leave/Lisbon.MD say about leave?", "names its file"),
    ],
)
def test_a_question_is_kept_if_exactly_one_file_answers_it(question: str, reason: str | None) -> None:
    kept = answerable(FILES, {LISBON: [(question, "25 days")]})
    assert kept == (Kept({}, {reason: 1}) if reason else Kept({LISBON: ((question, "25 days"),)}, {}))


def test_a_question_is_asked_once() -> None:
    of_both = ("Where is the leave of Lisbon or Oslo?", "here")
    written = [
        of_both,
        ("Leave in\n\x1b  Lisbon\ud800?", "25\u2028days"),
        ("leave in  lisbon\n?", "25"),
        ("Team in Lisbon?", " \n"),
    ]
    kept = answerable(FILES, {LISBON: written, "people/leave/oslo.md": [of_both]})
    assert kept == Kept({LISBON: (("Leave in Lisbon ?", "25 days"),)}, {"duplicate": 3, "empty": 1})


def test_names_in_code_are_words() -> None:
    assert content_words("The rent_lisbon of Café-Bar 12, don't I?") == {"rent", "lisbon", "café", "bar", "12", "don"}
