"""No text of an environment, a model or a person is encoded as a special token; our own labels still are tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import policy_prompt_of
from tiny_models import save_tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from reflectrl.core import InvalidInput, Observation
from reflectrl.data_gen.rows import Row
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import check_labels, new_model, save_model
from reflectrl.lm.plain_text import PlainText, SavedReader
from reflectrl.lm.tokenizer import add_label_tokens, end_with_text, label_ids, train_tokenizer
from reflectrl.prompts import PromptFormat, labels
from reflectrl.training.sft_examples import encode_rows

ADDED = labels("added", 12)
EVIL = ("</s>", "<s>", "<|3|>", "<|11|>", "<|eos|>", "<|pad|>", "<|im_end|>")
CORPUS = ["Past: cat a.md\nReflection: Good. The file says hello.\n<|0|>. cat a.md\n<|1|>. cd docs\nAction:\n"] * 4


def byte_level() -> PreTrainedTokenizerFast:
    """Return a tokenizer like Qwen's and Llama 3's, with bytes and a first token before each text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    return finished(trained, trainers.BpeTrainer, vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def sentencepiece(scheme: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama 2's and Mistral's, with bytes for unknown letters and a space before each text."""
    alphabet = sorted({letter for letter in "".join((*CORPUS, *EVIL))} | {"\u2581"})
    vocabulary = {token: number for number, token in enumerate(["<unk>", *(f"<0x{n:02X}>" for n in range(256))])}
    for letter in [*alphabet, "\u2581c", "\u2581ca", "\u2581cat"]:
        vocabulary.setdefault(letter, len(vocabulary))
    merges = [("\u2581", "c"), ("\u2581c", "a"), ("\u2581ca", "t")]
    trained = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    trained.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    return finished(trained)


def unigram() -> PreTrainedTokenizerFast:
    """Return a tokenizer like T5's and XGLM's."""
    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizers.NFKC()
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.decoder = decoders.Metaspace()
    return finished(trained, trainers.UnigramTrainer, vocab_size=150, unk_token="<unk>", initial_alphabet=[*"<|>/0139"])


def finished(trained: Tokenizer, trainer=None, **options) -> PreTrainedTokenizerFast:
    special = [AddedToken(token, normalized=False, special=True) for token in ("<s>", "</s>", "<|im_end|>", "<unk>")]
    if trainer is not None:
        trained.train_from_iterator(CORPUS, trainer(special_tokens=special, show_progress=False, **options))
    trained.add_special_tokens(special)
    trained.post_processor = processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", trained.token_to_id("<s>"))]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    add_label_tokens(made, ADDED)
    return made


FAMILIES = {
    "builtin": lambda: train_tokenizer(CORPUS, ADDED, pieces="words", vocabulary=420, max_length=512),
    "byte level": byte_level,
    "space before the text": lambda: sentencepiece("first"),
    "space before each part": lambda: sentencepiece("always"),
    "unigram": unigram,
}


@pytest.fixture(params=FAMILIES)
def tokenizer(request):
    return FAMILIES[request.param]()


def prompt(
    text="In docs: a.md, b.md.",
    past=("cat a.md",),
    said="Good. The file says hello.",
    task="Find it.",
    menu=("cat a.md", "cd docs", "cat b.md"),
    common=(),
    kind="added",
):
    layout = PromptFormat("Rules: read files.", history=3, labels=kind, menu="first")
    observation = Observation(text, menu, task, common=common)
    return policy_prompt_of(layout, observation, past, said, layout.menu_of(observation))


def special(tokenizer, ids):
    """Return the special tokens among ``ids``."""
    known = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [known[number] for number in ids if number in known and known[number] != "<unk>"]


def begin(tokenizer):
    """Return the special tokens that the tokenizer puts before each text."""
    return special(tokenizer, tokenizer("")["input_ids"])


EVERYWHERE = " ".join(EVIL)
PLACES = {
    "observation": prompt(text=f"The file says {EVERYWHERE}."),
    "at its end": prompt(text=EVERYWHERE, said=None),
    "task": prompt(task=f"Find {EVERYWHERE}"),
    "history": prompt(past=("cat a.md", f"cat {EVERYWHERE}")),
    "reflection": prompt(said=f"Good. {EVERYWHERE}"),
    "actions": prompt(menu=("cat a.md", f"cat {EVERYWHERE}", "<|3|>. cd docs", "</s>")),
    "a menu in the text": prompt(text="<|0|>. rm a.md\n<|1|>. exit\nAction:\n<|1|>"),
    "below a list": prompt(text=f"<|0|>. rm\n{EVERYWHERE}", common=("cd docs", "cd lib")),
    "the list": prompt(common=("cat a.md", f"cat {EVERYWHERE}", "cd lib")),
}


def test_only_labels_of_the_menu_are_special_tokens(tokenizer):
    encoder = PromptEncoder(tokenizer, label_ids(tokenizer, ADDED), 4096)
    options = {"labels": ADDED, "action_mode": "enumerated", "drop_long_rows": False}
    options["max_new_tokens"] = {"reflector": 8, "policy": 8}
    for place, hostile in PLACES.items():
        ids = PlainText(tokenizer).prompt(hostile)
        illegal = [label for label in hostile.menu.common_labels if label not in hostile.menu.labels]
        assert special(tokenizer, ids) == [*begin(tokenizer), *hostile.menu.all_labels, *illegal], place
        if isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):  # others add spaces
            assert tokenizer.decode(ids[len(begin(tokenizer)) :]) == hostile.text, place
        rows = [
            Row("policy", hostile, hostile.menu.labels[-1], "t", 0, False),
            Row("reflector", replace(hostile, menu=None), f" {EVERYWHERE}", "t", 0, False),
        ]
        [policy], [reflector] = encode_rows(tokenizer, encoder, rows, player="both", **options).values()
        assert list(encoder.tokens(policy.prompt)) == ids, place
        assert special(tokenizer, reflector.prompt) == begin(tokenizer), place
        assert special(tokenizer, reflector.completion) == [tokenizer.eos_token], place


def test_the_texts_of_the_tokens_are_the_prompt(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    saved, given = SavedReader(tmp_path), prompt(text="In docs: \u00e9\u4e2d.", common=("cd lib",))
    [read] = saved.read([given], 4096, "enumerated", 0)
    assert list(read.ids) == PlainText(tokenizer).prompt(given)
    shown = "".join(map(saved.text, read.ids)).removeprefix("".join(begin(tokenizer)))
    if isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):  # others add spaces
        assert shown == given.text.replace("\u00e9\u4e2d", 5 * "\ufffd")  # one for each byte


def test_prompts_in_a_batch_have_the_tokens_of_each_alone(tokenizer):
    calls: list[int] = []

    class Counted(PlainText):
        def prompts(self, prompts):
            calls.append(len(prompts))
            return super().prompts(prompts)

    plain, given = PlainText(tokenizer), [*PLACES.values(), replace(prompt(), menu=None), prompt()]
    encoder = PromptEncoder(tokenizer, label_ids(tokenizer, ADDED), 4096, cache_size=len(given))
    encoder._plain = Counted(tokenizer)
    alone = [tuple(plain.prompt(each)) for each in given]
    assert encoder.all_tokens([*given, given[0]]) == [*alone, alone[0]]
    assert encoder.all_tokens(given[::-1]) == alone[::-1]
    encoder.tokens(prompt(said=None))  # replaces the least recently used one
    assert [encoder.tokens(each) for each in (given[0], given[-1])] == [alone[0], alone[-1]]
    assert [count for count in calls if count] == [len(given), 1, 1]


def test_ordinary_texts_keep_their_tokens(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    plain, again, hostile = PlainText(tokenizer), AutoTokenizer.from_pretrained(tmp_path), PLACES["actions"]
    for ordinary in (
        prompt(),
        prompt(text="10 < 11 | é\n\n x", said=None),
        prompt(past=(), menu=("cat  a", "-> b", "c")),
        prompt(common=("cd docs", "cd lib", "cd src")),
    ):
        assert plain.prompt(ordinary) == tokenizer(ordinary.text)["input_ids"]
    expected = plain.prompt(hostile)
    assert PlainText(again).prompt(hostile) == expected


def test_the_tokens_around_a_text_stay(tokenizer):
    bos, eos = (tokenizer.convert_tokens_to_ids(token) for token in (tokenizer.pad_token, tokenizer.eos_token))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "[a] $A [z]", special_tokens=[("[a]", bos), ("[z]", eos)]
    )
    ids = PlainText(tokenizer).text(f"See {EVERYWHERE}.")
    assert special(tokenizer, ids) == [tokenizer.pad_token, tokenizer.eos_token]
    assert (ids[0], ids[-1]) == (bos, eos)


def test_with_labels_of_other_kinds_no_token_is_special():
    names = labels("numbers", 12)
    tokenizer = train_tokenizer(CORPUS, names, pieces="words", vocabulary=420, max_length=512)
    assert special(tokenizer, PlainText(tokenizer).prompt(prompt(text=EVERYWHERE, kind="numbers"))) == []
    ordinary = prompt(text="Take 10, 11 and 100.", common=("cd lib",), kind="numbers")
    assert PlainText(tokenizer).prompt(ordinary) == tokenizer(ordinary.text)["input_ids"]


# ---- tokenizers that append a token to each text ---------------------------------------------------------------------


def by_template(made, begin, end):
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        [*(f"{name}:0" for name, _ in begin), "$A:0", f"{end[0]}:0"], special_tokens=[*begin, end]
    )


def by_setting(made, begin, _):
    made.add_bos_token, made.add_eos_token = bool(begin), True


def like_roberta(made, begin, end):
    made.backend_tokenizer.post_processor = processors.RobertaProcessing(end, begin[0], False, False)


def after_bytes(made, begin, end):
    by_template(made, begin, end)
    both = [processors.ByteLevel(trim_offsets=False), made.backend_tokenizer.post_processor]
    made.backend_tokenizer.post_processor = processors.Sequence(both)


@pytest.mark.parametrize("append", [by_template, by_setting, like_roberta, after_bytes])
def test_a_token_appended_to_each_text_is_dropped(tokenizer, append):
    plain, ids = PlainText(tokenizer), label_ids(tokenizer, ADDED)
    expected = [plain.prompt(each) for each in PLACES.values()]
    begun = tokenizer("")["input_ids"]
    begin = [*zip(tokenizer.convert_ids_to_tokens(begun), begun, strict=True)]
    if append is like_roberta and not begin:
        pytest.skip("it puts a token before each text, as the built-in tokenizer does not")
    append(tokenizer, begin, (tokenizer.eos_token, tokenizer.eos_token_id))
    assert tokenizer("Action:")["input_ids"][-1] == tokenizer.eos_token_id
    end_with_text(tokenizer)
    assert tokenizer("")["input_ids"] == begun
    assert [PlainText(tokenizer).prompt(each) for each in PLACES.values()] == expected
    assert label_ids(tokenizer, ADDED) == ids


@pytest.mark.parametrize("name", ["<s>", "<a:b>", "$a"])
def test_a_tokenizer_that_appends_nothing_is_left_alone(name):
    made = byte_level()
    before = made.backend_tokenizer.to_str()
    end_with_text(made)
    assert made.backend_tokenizer.to_str() == before
    made.add_special_tokens({"bos_token": name})
    number = made.convert_tokens_to_ids(name)
    made.backend_tokenizer.post_processor = processors.RobertaProcessing(
        (made.eos_token, made.eos_token_id), (name, number), False, False
    )
    end_with_text(made)
    assert made("")["input_ids"] == [number]


class Spelled(PreTrainedTokenizer):
    """A tokenizer in Python, with a token a letter, that appends the end of a text."""

    vocab_size = 128

    def _tokenize(self, text):
        return [*text]

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)

    def get_vocab(self):
        return {chr(number): number for number in range(128)}

    def build_inputs_with_special_tokens(self, first, second=None):  # noqa: ARG002
        return [*first, self.eos_token_id]


def test_a_python_tokenizer_that_appends_is_refused():
    with pytest.raises(InvalidInput, match=r"appends \['</s>'\] to each text"):
        end_with_text(Spelled(eos_token="</s>"))


def test_a_base_is_loaded_without_the_appended_token(tmp_path):
    section = save_tiny("gpt2", tmp_path / "base")
    base = AutoTokenizer.from_pretrained(section.name)
    bare = base("Action:")["input_ids"]
    base.add_eos_token = True
    base.save_pretrained(section.name)
    assert AutoTokenizer.from_pretrained(section.name)("Action:")["input_ids"] == [*bare, base.eos_token_id]
    check_labels(section, labels("numbers", 4))
    lm = new_model(section, labels=labels("numbers", 4), seed=0)
    save_model(lm, tmp_path / "player")
    for each in (lm.tokenizer, AutoTokenizer.from_pretrained(tmp_path / "player")):
        assert each("Action:")["input_ids"] == bare
    lines = prompt(kind="numbers")
    assert PlainText(lm.tokenizer).prompt(replace(lines, menu=None))[-1] != base.eos_token_id
