from __future__ import annotations

import random

import pytest

from reflectrl.envs.auto_explore.ambiguity import Kept, answerable, content_words

FILES = {
    "people/leave/lisbon.md": "# Leave in Lisbon\nThe team has 25 days of leave.",
    "people/leave/oslo.md": "# Leave in Oslo\nThe team has 30 days of leave.",
    "shops/rent.csv": "city,rent_lisbon\nrent,1400",
}
LISBON = "people/leave/lisbon.md"


def ask(question: str, *, file: str = LISBON, answer: str = "25 days") -> Kept:
    return answerable(FILES, {file: [(question, answer)]})


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Where can I read about leave in Lisbon?", None),
        ("Which file covers the 25 days?", None),
        ("I need to know about the days of leave.", "ambiguous"),
        ("Which table shows LISBON?", "ambiguous"),
        ("Who approves leave in Lisbon?", "unanswerable"),
        ("Where is this in the file?", "empty"),
        ("What does lisbon.md say about leave?", "names its file"),
        ("What does People/Leave/Lisbon.MD say?", "names its file"),
    ],
)
def test_a_question_is_kept_if_exactly_one_file_answers_it(question: str, reason: str | None) -> None:
    kept = ask(question)
    assert kept.rejected == ({} if reason is None else {reason: 1})
    assert kept.pairs == ({LISBON: ((question, "25 days"),)} if reason is None else {})


def test_the_path_of_a_file_counts_as_its_text() -> None:
    assert ask("Which people are in the team of Lisbon?").pairs
    alone = answerable({"a.md": "Rent of shops."}, {"a.md": [("Which shops have rent?", "a")]})
    rivalled = answerable({"a.md": "Rent of shops.", "shops/rent.bin": ""}, {"a.md": [("Which shops have rent?", "a")]})
    assert (bool(alone.pairs), rivalled.rejected) == (True, {"ambiguous": 1})


def test_a_question_about_two_files_is_asked_of_neither() -> None:
    question = ("Where is the leave of Lisbon or Oslo?", "here")
    kept = answerable(FILES, {"people/leave/lisbon.md": [question], "people/leave/oslo.md": [question]})
    assert kept == Kept({}, {"duplicate": 2})


def test_a_question_written_twice_for_one_file_is_asked_once() -> None:
    twice = [("Leave in Lisbon?", "25 days"), ("leave  in\nlisbon?", "25")]
    assert answerable(FILES, {LISBON: twice}) == Kept({LISBON: (("Leave in Lisbon?", "25 days"),)}, {"duplicate": 1})


def test_a_question_without_an_answer_is_dropped() -> None:
    assert ask("Leave in Lisbon?", answer=" \n").rejected == {"empty": 1}


def test_questions_and_answers_become_single_lines_without_control_characters() -> None:
    kept = ask("Leave in\n\x1b[31m  Lisbon\ud800?", answer="25\u2028days")
    assert kept.rejected == {"unanswerable": 1}  # what is left of the escape code is text like any other
    kept = ask("Leave in\n\x1b  Lisbon\ud800?", answer="25\u2028days")
    assert kept.pairs == {LISBON: (("Leave in Lisbon ?", "25 days"),)}


def test_names_in_code_are_words() -> None:
    assert content_words("The rent_lisbon of Café-Bar 12, don't I?") == {"rent", "lisbon", "café", "bar", "12", "don"}
    assert ask("Which table shows rent lisbon?", file="shops/rent.csv").pairs


def test_ten_thousand_questions_about_a_thousand_files_can_be_asked() -> None:
    rng = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    files = {f"d/{number}.md": " ".join(rng.choices(words, k=500)) for number in range(1000)}
    pairs = {file: [(" ".join(rng.sample(text.split(), 4)), "a") for _ in range(10)] for file, text in files.items()}
    kept = answerable(files, pairs)  # each question against each file would take an hour
    assert sum(map(len, kept.pairs.values())) > 5000
