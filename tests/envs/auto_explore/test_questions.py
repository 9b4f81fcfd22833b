"""Questions made of a file's own words, offline: about what documents, code and tables say of themselves, or below."""

from __future__ import annotations

import pytest

from reflectrl.envs.auto_explore.ambiguity import content_words
from reflectrl.envs.auto_explore.questions import (
    ABOUT_CODE,
    ABOUT_TABLE,
    ABOUT_TEXT,
    write_content_questions,
    write_questions,
)


def asked(file: str, text: str) -> dict[str, str]:
    """Subject of each question, without the wording, and the answer."""
    wordings = [wording.removeprefix("{}") for wording in (*ABOUT_TEXT, *ABOUT_CODE, *ABOUT_TABLE)]
    return {
        question.removesuffix(next(filter(question.endswith, wordings))): answer
        for question, answer in write_questions(file, text)
    }


MARKDOWN = """---
title: Front matter
---
# Parental leave in *Lisbon*

![photo](leave.png)
You have **25 days** of [leave](x.md). Ask early.

## Usage
Nothing.

```sh
# Not a heading at all
run
```

Sick pay for `contractors`
--------------------------
We pay 80 %
from the first day.

### No text below this
### NASA telescope time
Two hours.
"""
UNDERLINED = """==========
Brewing guide
==========

.. image:: a.png

Grind the :class:`Bean` first. Then brew.

Water `hardness <http://x>`_ limits
~~~~~~~~~~~~~~~~

Below 7.
"""


def test_a_document_is_asked_about_its_headings() -> None:
    assert asked("a.md", MARKDOWN) == {
        "Parental leave in Lisbon": "You have 25 days of leave.",
        "Sick pay for contractors": "We pay 80 % from the first day.",
        "NASA telescope time": "Two hours.",
    }
    assert asked("guide.rst", UNDERLINED) == {
        "Brewing guide": "Grind the Bean first.",
        "Water hardness limits": "Below 7.",
    }
    for number in ("1. ", "1.2 ", "1.2. ", "3) ", ""):
        heading = "Dark beans - 2. roasting 2024"
        assert asked("license-server.md", f"# {number}{heading}\n\nText here.") == {heading: "Text here."}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("a.md", f"# {said}\n\nText.\n") for said in ("License", "Table of Contents", "1.2.3 - 2024-01-05")),
        *((file, "# Terms of use here\n\nYou may copy.\n") for file in ("LICENSE.md", "COPYING.txt", "x.json")),
        *(("a.py", text) for text in ("def broken(:\n", "(" * 5000, "-" * 100_000 + "1")),
        *(("a.csv", text) for text in ("", "rent_lisbon\n", f"rent_lisbon\n{'x' * 200_000}\n")),
        ("a.js", "// Copyright (c) 2024 The Coffee Company\n// All rights reserved\nfunction add() {"),
        ("a.js", "let x = 1;\n// Only when it rains hard.\nif (rain) {"),
        ("a.js", "function add() {} // trailing remark here"),
    ],
)
def test_what_says_nothing_or_cannot_be_read_is_passed_over(file: str, text: str) -> None:
    assert write_questions(file, text) == []


PYTHON = '''"""Payroll of the company.

More.
"""
import os
raise SystemExit("this must not run")

class Payroll:
    """Pays everyone on the 25th"""

    @property
    async def taxes(self):
        """Computes the \\d taxes (in euros). Slowly."""
        def inner():
            "Rounds half cents up."

    def no_docstring(self): pass

    def short(self):
        """Pays."""

if True:
    def hidden_in_a_branch():
        """>>> an example first"""
'''


def test_python_is_asked_about_its_docstrings_and_never_run() -> None:
    nested = "".join(f"{' ' * depth}if x:\n" for depth in range(90)) + " " * 90 + "1"
    assert asked("payroll.py", f"{PYTHON}{nested}") == {
        "Payroll of the company": "payroll: Payroll of the company.",
        "Pays everyone on the 25th": "Payroll: Pays everyone on the 25th",
        "Computes the \\d taxes (in euros)": "Payroll.taxes: Computes the \\d taxes (in euros).",
        "Rounds half cents up": "Payroll.taxes.inner: Rounds half cents up.",
    }


@pytest.mark.parametrize(
    ("file", "text", "answer"),
    [
        ("a.js", "/**\n * Adds many points.\n * @param x\n */\nexport function add(x) {", "add: Adds many points."),
        ("a.ts", "import x;\n\n// Renders the shop list.\nconst list = () => {", "list: Renders the shop list."),
        ("a.go", "// Close drains the brew queue.\nfunc (q *Queue) Close() {", "Close: Close drains the brew queue."),
        ("a.java", "class A {\n  /** Sums all orders. */\n  @Override\n  public int sum() {", "sum: Sums all orders."),
        ("a.sh", "#!/bin/sh\n# Backs up every shop.\nset -e\n", "a: Backs up every shop."),
        ("a.sql", "-- Stock of every shop.\nCREATE TABLE stock (", "stock: Stock of every shop."),
        ("a.h", "/*!\n * @brief Steam valve limits\n *\n * Details.\n */\n#ifndef A", "a: Steam valve limits"),
    ],
)
def test_code_is_asked_about_the_comments_of_its_definitions(file: str, text: str, answer: str) -> None:
    assert list(asked(file, text).values()) == [answer]


def test_a_table_is_asked_about_its_columns() -> None:
    table = 'id,rent_lisbon,"Sick days, total",empty column,plain\n1,1400,3,,x\n2,1,2,3,4\n'
    assert asked("a.csv", table) == {"Rent lisbon": "rent_lisbon: 1400", "Sick days, total": "Sick days, total: 3"}
    assert asked("a.tsv", "rent_lisbon\tx\n1\t2\n") == {"Rent lisbon": "rent_lisbon: 1"}


def test_long_sentences_and_answers_are_cut() -> None:
    tail = "and so on " * 20
    [(subject, answer)] = asked("a.md", f"# Roasting dark beans, {tail}\n\n{'very slowly ' * 1000}").items()
    assert subject == "Roasting dark beans"  # cut where it pauses
    assert len(answer) <= 300
    assert answer.endswith("...")
    assert asked("a.md", f"# Roasting dark beans {tail}\n\nText here.") == {}
    assert asked("a.md", f"# Roasting{'g' * 112}\n\nText here.") == {}


def test_wordings_vary_by_no_word_by_which_a_file_is_found() -> None:
    for wording in (*ABOUT_TEXT, *ABOUT_CODE, *ABOUT_TABLE):
        assert content_words(wording.format("")) == frozenset()
    text = "".join(f"# Roasting plan {name}\n\nSlowly.\n\n" for name in "abcdefghijklmnopqrstuvwxyz")
    questions = write_questions("a.md", text)
    assert questions == write_questions("a.md", text)
    assert len({question.partition(". ")[2] for question, _ in questions}) == 3
    assert questions[0] == ("Roasting plan a. Where can I read about it?", "Slowly.")


SORTED = "Sort drinks: Nils keeps it since 2021."


@pytest.mark.parametrize(
    ("file", "text", "asked"),
    [
        (
            "people/lisbon.md",
            "# People in Lisbon\n\n## People in Lisbon: job titles\n\nQuestions go to Ana, extension 949. More.\n",
            "Job titles: Questions go to Ana, extension 949.",
        ),
        ("tax/oslo.md", "# VAT rebates\n\nOlga decides about VAT rebates.\n", "Olga decides about VAT rebates"),
        ("pay/mocha.csv", "month,pay of Mocha: hourly wage\n2017-01,519.6\n", "Hourly wage: 519.6 in 2017-01."),
        ("web/menu.js", "// Sort drinks for the menu.\n// Nils keeps it since 2021.\nfunction a() {\n}\n", SORTED),
        ("web/menu.py", '"""Sort drinks.\n\nNils keeps it since 2021.\n"""\n', SORTED),
        ("tax/oslo.md", "# VAT rebates\n\nOslo pays them in 3 days.\n", None),  # the fact names the file
        ("tax/oslo.md", "# Tax in Oslo\n\nThey are paid in 3 days.\n", None),  # nothing is left of the subject
        ("tax/oslo.md", "# VAT rebates\n\n## Import duties\n", None),  # nothing stands below
        ("web/menu.js", "// Sort the drinks.\nfunction a() {\n}\n", None),  # nothing more is said
        ("pay/mocha.csv", "month\n2017-01\n", None),  # no other column
    ],
)
def test_a_question_by_content_avoids_the_words_of_the_path(file, text, asked):
    questions = [question for question, _ in write_content_questions(file, text)]
    assert len(questions) == (asked is not None)
    assert all(question.startswith(asked) for question in questions)
