"""Tokenizers: the one trained for ``builtin/nano``, and checks that menu labels are single tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from reflectrl.core import InvalidInput
from reflectrl.lm.chat import turn_of
from reflectrl.prompts.format import ACTION_CUE

PAD, EOS = "<|pad|>", "<|eos|>"

PIECES = {
    # phrases stay whole, so ". move south\n" can become one token
    "phrases": r"[.,:;]? ?[A-Za-z]{2,}(?: [A-Za-z]+)*[.,:;]?\n?|[\s\S]",
    # and a name with its number, so "go to countertop 12" can
    "names": r"[.,:;]? ?[A-Za-z]+(?: [A-Za-z]+)*(?: \d+)?[.,:;]?\n?|[\s\S]",
    # phrases as above, and a number with the marks around it, so that coordinates are few tokens
    "numbers": r"[.,:;]? ?[A-Za-z]+(?: [A-Za-z]+)*[.,:;]?\n?|[^A-Za-z\d\n]*\d+[^A-Za-z\d\n]*|[\s\S]",
    # a word is the same token in a question, a file name and a reflection
    "words": r" ?[A-Za-z]{2,}|\.[a-z]+\n?|[\s\S]",
}
"""Pieces of text, never merged with each other; everything else (grid cells, digits) is one character."""


CORPUS = 10_000_000
"""About the largest number of characters that a tokenizer is trained on; of a larger corpus, texts are drawn. On all
240 million of a run of the suite's catalogue, training took minutes."""


def train_tokenizer(
    corpus: Sequence[str], labels: Sequence[str], *, pieces: str, vocabulary: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of at most ``vocabulary`` tokens for ``corpus``; every label is one token.

    ``pieces`` is a key of ``PIECES``. Any text survives ``decode(encode(text))``; equal corpora give equal tokenizers.
    """
    long_labels = [label for label in labels if len(label) > 1]
    if (size := sum(map(len, corpus))) > CORPUS:
        corpus = random.Random(0).sample(corpus, max(len(corpus) * CORPUS // size, 1))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES[pieces]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(long_labels),
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    # single_word keeps "100" from becoming "10", "0"
    words = [label for label in long_labels if label.isalnum()]
    tokenizer.add_tokens([AddedToken(label, single_word=True, normalized=False) for label in words])
    # a label that is not a word ("<|3|>") may stand anywhere, and is never read into the text of others
    tokenizer.add_special_tokens([AddedToken(label, normalized=False) for label in long_labels if label not in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def add_label_tokens(tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]) -> list[int]:
    """Add missing labels of the kind "added" to ``tokenizer``; return the ids of all of them, none for other kinds."""
    if not are_added(labels):
        return []
    tokenizer.add_tokens([AddedToken(label, normalized=False, special=True) for label in labels], special_tokens=True)
    return [tokenizer.get_vocab()[label] for label in labels]


def are_added(labels: Sequence[str]) -> bool:
    """Return whether ``labels`` are of the kind "added"."""
    return len(labels) > 0 and all(label.startswith("<|") for label in labels)


def end_with_text(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make ``tokenizer`` append no token to a text, as those with ``add_eos_token`` do; what it puts before one stays.

    After a token that ends the text, a model has nothing to answer.

    Raises:
        InvalidInput: a tokenizer in Python that appends a token.
    """
    before, after = _around(tokenizer)
    if not after:
        return
    if getattr(tokenizer, "add_eos_token", False):
        tokenizer.add_eos_token = False  # which also resets what is put before a text
    if hasattr(tokenizer, "backend_tokenizer"):
        names = tokenizer.convert_ids_to_tokens(before)
        # a template cannot hold every name
        names = [
            str(number) if ":" in name or "$" in name else name for name, number in zip(names, before, strict=True)
        ]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[*(f"{name}:0" for name in names), "$A:0"], special_tokens=[*zip(names, before, strict=True)]
        )
    if _around(tokenizer) != (before, []):
        raise InvalidInput(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'!r} appends "
            f"{tokenizer.convert_ids_to_tokens(after)} to each text, after which nothing can be answered, and cannot "
            "be told not to; choose another model."
        )


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids of the tokens that ``tokenizer`` puts before and after a text."""
    whole = list(tokenizer(ACTION_CUE)["input_ids"])
    text = list(tokenizer(ACTION_CUE, add_special_tokens=False)["input_ids"])
    for at in range(len(whole) - len(text) + 1):
        if whole[at : at + len(text)] == text:
            return whole[:at], whole[at + len(text) :]
    return [], []


def label_ids(tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]) -> list[int]:
    """Return the token id of each label as it follows the action cue and, in a chat, begins the assistant's turn.

    Raises:
        InvalidInput: a label is not exactly one known token there, two labels are the same token, or the chat template
            cannot be used.
    """
    found = _after(tokenizer, labels, ACTION_CUE)
    turn = turn_of(tokenizer)
    if turn is not None and _after(tokenizer, labels, turn.after, add_special_tokens=False) != found:
        raise InvalidInput(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'!r} gives the labels {list(labels)} other tokens "
            "at the beginning of the assistant's turn than in a text: set prompt.labels=letters, or "
            "prompt.labels=added to add tokens, or model.chat=none to leave out the chat template."
        )
    if len(set(found)) < len(found):
        raise InvalidInput(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'!r} gives the labels {list(labels)} the tokens "
            f"{found}, not all different: set prompt.labels=letters, or prompt.labels=added to add tokens."
        )
    return found


def _after(tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], text: str, **options: Any) -> list[int]:
    """Return the token id of each label after ``text``; raise ``InvalidInput`` for one that is not one token."""
    cue = list(tokenizer(text, **options)["input_ids"])
    ids = [list(tokenizer(text + label, **options)["input_ids"]) for label in labels]
    for label, row in zip(labels, ids, strict=True):
        if len(row) != len(cue) + 1 or row[:-1] != cue or row[-1] == tokenizer.unk_token_id:
            raise InvalidInput(
                f"the tokenizer of {tokenizer.name_or_path or 'the model'!r} writes the label {label!r} as "
                f"{tokenizer.convert_ids_to_tokens(row)} after {text!r}; a label must be one token of its own: "
                "set prompt.labels=letters, or prompt.labels=added to add tokens."
            )
    return [row[-1] for row in ids]
