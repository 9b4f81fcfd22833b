"""Questions in other words."""

from __future__ import annotations

import pytest

from reflectrl.envs.auto_explore.ambiguity import REPLACEMENTS, paraphrase

LOADER = "Loader returns the parsed string of red tables, quickly (xyzzy1)."
TEXTS = {"src/loader.py": LOADER, "a.py": "returns parsed red", "b.py": "string quickly loader", "c.py": "tables red"}


def asked(question: str, **changes: str) -> list[str]:
    pairs = {"src/loader.py": [(f"{question} Where is it?", "so")]}
    return [question for question, _ in paraphrase({**TEXTS, **changes}, pairs).get("src/loader.py", ())]


def test_a_word_has_a_synonym_in_each_of_its_forms():
    forms = ("return", "returns", "verified", "copies", "checking", "classes", "creating", "reading")
    others = ["yield", "yields", "checked", "duplicates", "verifying", "types", "constructing", "loading"]
    assert [REPLACEMENTS[form] for form in forms] == others


def test_paraphrases_avoid_the_words_of_the_path():
    assert asked(LOADER) == ["Yields the interpreted text of red grids, quickly. Where is it?"]


@pytest.mark.parametrize(
    ("question", "changes"),
    [
        ("Loader returns red.", {}),  # two words are left
        ("Loader returns the parsed string.", {"d.py": "it returns a parsed string"}),  # which stand there together too
    ],
)
def test_a_question_that_does_not_stay_clear_is_left_out(question, changes):
    assert asked(question, **changes) == []


def test_two_files_with_the_same_question_in_other_words_have_none():
    texts = {"l.py": "remove red tables quickly", "d.py": "delete red tables quickly", "a.py": "remove, delete"}
    pairs = {file: [(f"{texts[file]}.", "so")] for file in ("l.py", "d.py")}
    assert [*paraphrase(texts, {"l.py": pairs["l.py"]})] == ["l.py"]
    assert paraphrase(texts, pairs) == {}
