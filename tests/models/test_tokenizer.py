import os
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from reflectrl.core import InvalidInput
from reflectrl.models.tokenizer import add_label_tokens, label_ids, train_tokenizer
from reflectrl.prompts import labels
from reflectrl.prompts.format import ACTION_CUE

CORPUS = [
    "Past: move south\n| : |T: :P|\nReflection: Mistake. Taxi at row 0 column 2.\n0. move south\n1. move north\n"
    + ACTION_CUE
] * 5
NUMBERS = labels("numbers", 12)


def nano(names=NUMBERS, vocabulary=500):
    return train_tokenizer(CORPUS, names, pieces="phrases", vocabulary=vocabulary, max_length=64)


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_phrases_of_the_corpus_are_single_tokens_and_grid_cells_stay_apart():
    tokenizer = nano()
    assert len(pieces(tokenizer, ". move south\n")) == 1
    assert len(pieces(tokenizer, " Taxi at row")) == 1
    assert len(pieces(tokenizer, "|T: :P|")) == 7


def test_words_are_the_same_token_in_a_question_a_file_name_and_a_reflection():
    text = "Question: Leave in Lisbon. Where?\nReflection: lisbon is in this folder.\n10. cat lisbon.md\n" + ACTION_CUE
    tokenizer = train_tokenizer([text] * 5, NUMBERS, pieces="words", vocabulary=500, max_length=64)
    (reflected, listed) = (pieces(tokenizer, line) for line in (" lisbon is in this folder.", "cat lisbon.md\n"))
    assert reflected[0] == listed[1]
    assert len(listed) == 3
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "naïve café",
        "😀👩‍👩‍👧 \u200d\ufeff",
        "\x00\x7f\r\n\t  \n\n",
        "漢字かな",
        "a . b , c ;d",
        "10 100 a10 10a 010",
        "<|eos|><|3|>",
        "ﬁ ǆ e\u0301",
    ],
)
@pytest.mark.parametrize("kind", ["numbers", "added"])
def test_any_text_survives_encoding(text, kind):
    tokenizer = nano(labels(kind, 12))
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_long_label_is_one_token_and_longer_numbers_are_not_broken():
    tokenizer = nano()
    assert pieces(tokenizer, "\n10.")[1] == "10"
    assert pieces(tokenizer, "100") == ["1", "0", "0"]


@pytest.mark.parametrize("kind", ["numbers", "letters", "added"])
def test_every_kind_of_label_is_one_token_after_the_cue(kind):
    tokenizer = nano(labels(kind, 30))
    ids = label_ids(tokenizer, labels(kind, 30))
    cue = tokenizer(ACTION_CUE)["input_ids"]
    assert len(set(ids)) == 30
    assert tokenizer(ACTION_CUE + labels(kind, 30)[29])["input_ids"] == [*cue, ids[29]]


def test_the_tokenizer_of_a_saved_folder_is_the_same_tokenizer(tmp_path):
    nano().save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = CORPUS[0] + "10 é"
    assert again(text)["input_ids"] == nano()(text)["input_ids"]
    assert (again.pad_token, again.eos_token) == ("<|pad|>", "<|eos|>")
    assert again.decode(again(text)["input_ids"]) == text


@pytest.mark.slow
def test_two_processes_train_the_same_tokenizer(tmp_path):
    code = (
        "import sys; from pathlib import Path; from reflectrl.models.tokenizer import train_tokenizer\n"
        "text = Path(sys.argv[1]).read_text(encoding='utf-8')\n"
        "tokenizer = train_tokenizer([text], ['0', '10'], pieces='phrases', vocabulary=400, max_length=64)\n"
        "tokenizer.save_pretrained(sys.argv[2])"
    )
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(f"word{chr(97 + i % 26)} {chr(97 + i % 7)}ab north {i}" for i in range(300)), "utf-8")
    for name, seed in (("one", "1"), ("two", "2")):  # sets of texts have another order
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, source, tmp_path / name], check=True, env=environment)
    one, two = (tmp_path.joinpath(name, "tokenizer.json").read_bytes() for name in ("one", "two"))
    assert one == two


def test_the_vocabulary_is_not_larger_than_asked_for():
    assert len(nano(vocabulary=300)) <= 300


def test_labels_of_several_tokens_are_refused_with_the_cure():
    with pytest.raises(InvalidInput, match=r"writes the label '12' as .*'1', '2'.*prompt\.labels=added"):
        label_ids(nano(), labels("numbers", 13))


def test_labels_that_share_a_token_are_refused():
    with pytest.raises(InvalidInput, match="not all different"):
        label_ids(nano(), ["1", "1"])


def test_added_labels_become_tokens_and_other_kinds_add_nothing():
    tokenizer = nano()
    before = len(tokenizer)
    assert add_label_tokens(tokenizer, NUMBERS) == []
    assert len(tokenizer) == before
    ids = add_label_tokens(tokenizer, labels("added", 3))
    assert ids == [before, before + 1, before + 2]
    assert label_ids(tokenizer, labels("added", 3)) == ids
    assert add_label_tokens(tokenizer, labels("added", 3)) == ids
