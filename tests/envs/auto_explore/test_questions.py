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


def phrases(file: str, text: str) -> list[str]:
    """What is asked about, without the wording."""
    wordings = [wording.removeprefix("{}") for wording in (*ABOUT_TEXT, *ABOUT_CODE, *ABOUT_TABLE)]
    questions = [question for question, _ in write_questions(file, text)]
    return [question.removesuffix(next(filter(question.endswith, wordings))) for question in questions]


def answers(file: str, text: str) -> list[str]:
    return [answer for _, answer in write_questions(file, text)]


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


def test_a_document_is_asked_about_its_headings() -> None:
    assert phrases("a.md", MARKDOWN) == ["Parental leave in Lisbon", "Sick pay for contractors", "NASA telescope time"]
    assert answers("a.md", MARKDOWN) == ["You have 25 days of leave.", "We pay 80 % from the first day.", "Two hours."]


def test_restructured_text_has_underlined_headings() -> None:
    text = (
        "==========\nBrewing guide\n==========\n\n.. image:: a.png\n\nGrind the :class:`Bean` first. Then brew.\n\n"
        "Water `hardness <http://x>`_ limits\n~~~~~~~~~~~~~~~~\n\nBelow 7.\n"
    )
    assert phrases("guide.rst", text) == ["Brewing guide", "Water hardness limits"]
    assert answers("guide.rst", text) == ["Grind the Bean first.", "Below 7."]


@pytest.mark.parametrize(
    "heading",
    [
        "License",
        "Table of Contents",
        "Getting started",
        "1.2.3 - 2024-01-05",
        "[1.2.0] 2023",
        "Version 2.0",
        "January 5",
    ],
)
def test_headings_that_say_nothing_are_passed_over(heading: str) -> None:
    assert write_questions("a.md", f"# {heading}\n\nSome text.\n") == []


PYTHON = '''"""Payroll of the company.

More.
"""
import os
raise SystemExit("this must not run")

class Payroll:
    """Pays everybody on the 25th"""

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
    assert phrases("payroll.py", PYTHON) == [
        "Payroll of the company",
        "Pays everybody on the 25th",
        "Computes the \\d taxes (in euros)",
        "Rounds half cents up",
    ]
    assert answers("payroll.py", PYTHON) == [
        "payroll: Payroll of the company.",
        "Payroll: Pays everybody on the 25th",
        "Payroll.taxes: Computes the \\d taxes (in euros).",
        "Payroll.taxes.inner: Rounds half cents up.",
    ]


@pytest.mark.parametrize("text", ["def broken(:\n", "(" * 5000, "-" * 100_000 + "1", "x = 1\n" + " bad indent"])
def test_python_that_cannot_be_parsed_has_no_questions(text: str) -> None:
    assert write_questions("a.py", text) == []


def test_deeply_nested_python_is_read() -> None:
    text = (
        "def last():\n    'Roasts the last beans.'\n" + "".join(f"{' ' * n}if x:\n" for n in range(90)) + " " * 90 + "1"
    )
    assert phrases("a.py", text) == ["Roasts the last beans"]


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "a.js",
            "/**\n * Adds loyalty points.\n * @param x\n */\nexport function add(x) {",
            "add: Adds loyalty points.",
        ),
        ("a.ts", "import x;\n\n// Renders the shop list.\nconst list = () => {", "list: Renders the shop list."),
        ("a.go", "// Close drains the brew queue.\nfunc (q *Queue) Close() {", "Close: Close drains the brew queue."),
        ("a.java", "class A {\n  /** Sums all orders. */\n  @Override\n  public int sum() {", "sum: Sums all orders."),
        ("a.c", "/* Opens the steam valve. */\nstatic int\topen_valve(int a)\n{", "open_valve: Opens the steam valve."),
        ("a.rs", "/// Grinds coffee beans.\n#[inline]\npub fn grind() {", "grind: Grinds coffee beans."),
        ("a.rb", "# Greets every customer.\ndef greet", "greet: Greets every customer."),
        ("a.sh", "#!/bin/sh\n# Backs up every shop.\nset -e\n", "a: Backs up every shop."),
        ("a.sql", "-- Stock of every shop.\nCREATE TABLE stock (", "stock: Stock of every shop."),
        ("a.lua", "local x = 1\n-- Dims the shop lights.\nfunction lights.dim()", "lights.dim: Dims the shop lights."),
        ("a.h", "/*!\n * @brief Steam valve limits\n *\n * Details.\n */\n#ifndef A", "a: Steam valve limits"),
    ],
)
def test_code_is_asked_about_the_comments_of_its_definitions(file: str, text: str, expected: str) -> None:
    assert answers(file, text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "// Copyright (c) 2024 The Coffee Company\n// All rights reserved\nfunction add() {",
        "/* eslint-disable no-console */\nfunction add() {",
        "let x = 1;\n\n// Counts the cups here.\nx += 1;",
        "let x = 1;\n// Only when it rains hard.\nif (rain) {",
        "// x = old_value + 1;\nfunction add() {",
        "function add() {} // trailing remark here",
    ],
)
def test_comments_that_describe_nothing_are_passed_over(text: str) -> None:
    assert write_questions("a.js", text) == []


def test_a_comment_without_end_is_read_to_the_end_of_the_file() -> None:
    assert write_questions("a.c", "int x;\n/* Never closed comment\nint y;") == []


def test_a_table_is_asked_about_its_columns() -> None:
    table = 'id,rent_lisbon,"Sick days, total",empty column,plain\n1,1400,3,,x\n2,1,2,3,4\n'
    assert phrases("a.csv", table) == ["Rent lisbon", "Sick days, total"]
    assert answers("a.csv", table) == ["rent_lisbon: 1400", "Sick days, total: 3"]
    assert phrases("a.tsv", "rent_lisbon\tx\n1\t2\n") == ["Rent lisbon"]


@pytest.mark.parametrize("table", ["", "rent_lisbon\n", f"rent_lisbon\n{'x' * 200_000}\n"])
def test_a_table_without_readable_values_has_no_questions(table: str) -> None:
    assert write_questions("a.csv", table) == []


@pytest.mark.parametrize("file", ["LICENSE.md", "COPYING.txt", "photo.png", "Makefile", "data.json"])
def test_legal_texts_and_unknown_kinds_have_no_questions(file: str) -> None:
    assert write_questions(file, "# Terms of use here\n\nYou may copy.\n") == []


@pytest.mark.parametrize("file", ["license-server.md", "notice.md", "licenses/beans.rst"])
def test_files_that_only_sound_legal_are_asked_about(file: str) -> None:
    text = "Terms of roasting\n=================\n\nYou may copy.\n"
    assert phrases(file, text) == ["Terms of roasting"]


@pytest.mark.parametrize("number", ["1. ", "1.2 ", "1.2. ", "3) ", ""])
def test_the_number_of_a_heading_is_not_part_of_the_question(number: str) -> None:
    assert phrases("a.md", f"# {number}Dark beans - 2. roasting 2024\n\nText here.") == [
        "Dark beans - 2. roasting 2024"
    ]


def test_a_long_sentence_is_cut_where_it_pauses_or_not_asked_about() -> None:
    tail = "and so on " * 20
    assert phrases("a.md", f"# Roasting dark beans, {tail}\n\nText here.") == ["Roasting dark beans"]
    assert phrases("a.md", f"# Roasting dark beans {tail}\n\nText here.") == []
    assert phrases("a.md", f"# Roasting{'g' * 112}\n\nText here.") == []


def test_answers_are_short() -> None:
    (answer,) = answers("a.md", "# Roasting dark beans\n\n" + "very slowly " * 1000)
    assert len(answer) <= 300
    assert answer.endswith("...")


@pytest.mark.parametrize("wording", [*ABOUT_TEXT, *ABOUT_CODE, *ABOUT_TABLE])
def test_a_wording_adds_no_word_by_which_a_file_is_found(wording: str) -> None:
    assert content_words(wording.format("")) == frozenset()


def test_questions_are_the_same_each_time_and_their_wordings_vary() -> None:
    text = "".join(f"# Roasting plan {name}\n\nSlowly.\n\n" for name in "abcdefghijklmnopqrstuvwxyz")
    questions = write_questions("a.md", text)
    assert questions == write_questions("a.md", text)
    assert len({question.partition(". ")[2] for question, _ in questions}) == 3
    assert questions[0] == ("Roasting plan a. Where can I read about it?", "Slowly.")


@pytest.mark.parametrize(
    "text", ["# " + "[" * 500_000, "x" * 1_000_000, "![" * 300_000, "# a " * 250_000, "`<" * 400_000]
)
def test_odd_text_takes_no_longer_than_other_text(text: str) -> None:
    for suffix in ("md", "rst", "js", "csv", "py", "sh"):
        write_questions(f"a.{suffix}", f"{text}\n---\n{text}\n\n// {text}\nfunction {text}(")


# ---- questions by content --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "asked"),
    [
        (
            "people/lisbon.md",
            "# People in Lisbon\n\n## People in Lisbon: job titles\n\nQuestions go to Ana, extension 949. More.\n",
            "Job titles: Questions go to Ana, extension 949.",
        ),
        (
            "tax/oslo.md",
            "# VAT rebates\n\nOlga decides about VAT rebates in 3 days.\n",
            "Olga decides about VAT rebates",
        ),
        ("pay/mocha.csv", "month,pay of Mocha: hourly wage\n2017-01,519.6\n", "Hourly wage: 519.6 in 2017-01."),
        (
            "web/menu.js",
            "// Sort drinks for the menu.\n// Nils keeps it since 2021.\nfunction a() {\n}\n",
            "Sort drinks: Nils keeps it since 2021.",
        ),
        (
            "web/menu.py",
            '"""Sort drinks.\n\nNils keeps it since 2021.\n"""\n',
            "Sort drinks: Nils keeps it since 2021.",
        ),
    ],
)
def test_a_question_by_content_says_what_stands_below_and_leaves_the_words_of_the_path_out(file, text, asked):
    [(question, _)] = write_content_questions(file, text)
    assert question.startswith(asked)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tax/oslo.md", "# VAT rebates\n\nOslo pays them in 3 days.\n"),  # the fact names the file
        ("tax/oslo.md", "# Tax in Oslo\n\nThey are paid in 3 days.\n"),  # nothing is left of the subject
        ("tax/oslo.md", "# VAT rebates\n\n## Import duties\n"),  # nothing stands below
        ("web/menu.js", "// Sort the drinks.\nfunction a() {\n}\n"),  # nothing more is said
        ("pay/mocha.csv", "month\n2017-01\n"),  # no other column
        ("photo.png", "whatever"),
    ],
)
def test_what_names_the_file_or_says_nothing_is_no_question_by_content(file, text):
    assert write_content_questions(file, text) == []
