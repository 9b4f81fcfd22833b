import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from reflectrl.core import InvalidInput
from reflectrl.lm.tokenizer import CORPUS as CORPUS_SIZE
from reflectrl.lm.tokenizer import add_label_tokens, label_ids, train_tokenizer
from reflectrl.prompts import labels
from reflectrl.prompts.format import ACTION_CUE

CORPUS = [
    "Past: move south\n| : |T: :P|\nReflection: Mistake. Taxi at row 0 column 2.\n0. move south\n1. move north\n"
    + ACTION_CUE
] * 5
NUMBERS = labels("numbers", 12)


def nano(names=NUMBERS):
    return train_tokenizer(CORPUS, names, pieces="phrases", vocabulary=500, max_length=64)


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_phrases_of_the_corpus_are_single_tokens_and_grid_cells_stay_apart():
    tokenizer = nano()
    assert len(pieces(tokenizer, ". move south\n")) == 1
    assert len(pieces(tokenizer, " Taxi at row")) == 1
    assert len(pieces(tokenizer, "|T: :P|")) == 7


@pytest.mark.slow
def test_a_tokenizer_is_trained_on_a_part_of_a_corpus_that_would_take_minutes():
    words = [f"w{'abcde'[number // 5]}{'abcde'[number % 5]}\n" for number in range(25)]
    corpus = [word * (CORPUS_SIZE // 10 // len(word)) for word in words]
    tokenizer = train_tokenizer(corpus, NUMBERS, pieces="phrases", vocabulary=400, max_length=64)
    assert sum(len(pieces(tokenizer, word)) == 1 for word in words) == 10


def test_words_are_the_same_token_everywhere():
    text = "Question: Leave in Lisbon. Where?\nReflection: lisbon is in this folder.\n10. cat lisbon.md\n" + ACTION_CUE
    tokenizer = train_tokenizer([text] * 5, NUMBERS, pieces="words", vocabulary=500, max_length=64)
    (reflected, listed) = (pieces(tokenizer, line) for line in (" lisbon is in this folder.", "cat lisbon.md\n"))
    assert reflected[0] == listed[1]
    assert len(listed) == 3
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


TEXTS = (
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
)


@pytest.mark.parametrize("kind", ["numbers", "added"])
def test_any_text_survives_encoding_also_by_a_tokenizer_that_was_saved(tmp_path, kind):
    tokenizer = nano(labels(kind, 12))
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, CORPUS[0]):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert again(text)["input_ids"] == ids
    assert (again.pad_token, again.eos_token) == ("<|pad|>", "<|eos|>")


@pytest.mark.parametrize("kind", ["numbers", "letters", "added"])
def test_every_kind_of_label_is_one_token_after_the_cue_and_longer_numbers_are_not_broken(kind):
    tokenizer = nano(labels(kind, 30))
    ids = label_ids(tokenizer, labels(kind, 30))
    cue = tokenizer(ACTION_CUE)["input_ids"]
    assert len(set(ids)) == 30
    assert tokenizer(ACTION_CUE + labels(kind, 30)[29])["input_ids"] == [*cue, ids[29]]
    assert pieces(tokenizer, "100") == ["1", "0", "0"]
    assert len(tokenizer) <= 500


@pytest.mark.slow
def test_another_process_trains_the_same_tokenizer(tmp_path):
    text = "\n".join(f"word{chr(97 + i % 26)} {chr(97 + i % 7)}ab north {i}" for i in range(300))
    code = (
        "import sys; from reflectrl.lm.tokenizer import train_tokenizer\n"
        "tokenizer = train_tokenizer([sys.argv[1]], ['0', '10'], pieces='phrases', vocabulary=400, max_length=64)\n"
        "tokenizer.save_pretrained(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, text, tmp_path / "other"], check=True)  # sets have another order there
    here = train_tokenizer([text], ["0", "10"], pieces="phrases", vocabulary=400, max_length=64)
    here.save_pretrained(tmp_path / "here")
    one, two = (tmp_path.joinpath(name, "tokenizer.json").read_bytes() for name in ("here", "other"))
    assert one == two


def test_labels_that_are_not_a_token_each_are_refused_with_the_cure():
    for names, fact in ((labels("numbers", 13), "'12' as .*'1', '2'.*"), (["1", "1"], "'1', '1'.*")):
        with pytest.raises(InvalidInput, match=rf"{fact}prompt\.labels=added"):
            label_ids(nano(), names)


def test_added_labels_become_tokens_and_other_kinds_add_nothing():
    tokenizer = nano()
    before = len(tokenizer)
    assert add_label_tokens(tokenizer, NUMBERS) == []
    assert len(tokenizer) == before
    ids = add_label_tokens(tokenizer, labels("added", 3))
    assert ids == [before, before + 1, before + 2]
    assert label_ids(tokenizer, labels("added", 3)) == ids
    assert add_label_tokens(tokenizer, labels("added", 3)) == ids
