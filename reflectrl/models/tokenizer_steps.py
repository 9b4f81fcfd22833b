"""Bounds what the steps that a ``tokenizer.json`` declares can make of a text, before any text is given to them.

Steps can multiply: 60 replacements of "a" by "aa" make 10^18 letters of one, in a call that nothing can stop.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from reflectrl.core import InvalidInput
from reflectrl.core.text import shown

MOST_GROWTH = 10_000
"""Maximum factor by which all steps of reading, or all of decoding, may lengthen a text; XLNet's reach about 2,600."""
MOST_CHARACTERS = 10_000
"""Maximum length of a token."""
_GROWTH = {
    # normalizers, in characters
    **{"BertNormalizer": 24, "ByteLevel": 5, "Lowercase": 2, "NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18},
    **{"Nmt": 1, "Strip": 1, "StripAccents": 1},
    # pre-tokenizers, which divide a text; two of them put a letter before each part
    **{"BertPreTokenizer": 1, "CharDelimiterSplit": 1, "Digits": 1, "FixedLength": 1, "Metaspace": 2},
    **{"Punctuation": 1, "Split": 1, "UnicodeScripts": 1, "Whitespace": 1, "WhitespaceSplit": 1},
    # post-processors, which put tokens around a text
    **{"BertProcessing": 3, "RobertaProcessing": 3},
    # decoders
    **{"BPEDecoder": 2, "ByteFallback": 3, "CTC": 1, "Fuse": 1, "WordPiece": 2},
}
"""Upper bounds of the factor by which a step lengthens a text."""
_NESTED = ("normalizers", "pretokenizers", "processors", "decoders")


def check_steps(path: Path) -> None:
    """Check a ``tokenizer.json``, of a size that can be parsed.

    Raises:
        InvalidInput: the file is not JSON, declares a step that is not known, or its steps or tokens are too long.

    """
    found = path.stat()
    _check(path, found.st_size, found.st_mtime_ns)


@lru_cache
def _check(path: Path, _size: int, _mtime_ns: int) -> None:
    try:
        file = json.loads(path.read_bytes())
        reading = math.prod(growth(file.get(each)) for each in ("normalizer", "pre_tokenizer", "post_processor"))
        factor = max(reading, growth(file.get("decoder")))
        longest = max(map(len, _tokens(file)), default=0)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
        raise InvalidInput(
            f"the tokenizer in {path} cannot be read ({type(error).__name__}: {error}); save or download it again."
        ) from error
    if factor > MOST_GROWTH:
        raise InvalidInput(
            f"the tokenizer in {path} declares steps that can make a text {factor:.1g} times as long; expected at most "
            f"{MOST_GROWTH:,}: it cannot be used, so choose another model."
        )
    if longest > MOST_CHARACTERS:
        raise InvalidInput(
            f"the tokenizer in {path} has a token of {longest:,} characters; expected at most {MOST_CHARACTERS:,}: it "
            "cannot be used, so choose another model."
        )


def growth(step: Any) -> float:
    """Return the maximum factor by which a step, as ``tokenizer.json`` declares it, lengthens a text; 1 for none.

    Raises:
        ValueError: a type of step that is not known.

    """
    if step is None:
        return 1
    kind = step["type"]
    if kind == "Sequence":
        return math.prod(growth(each) for name in _NESTED for each in step.get(name, ()))
    if kind == "Replace":
        pattern = step["pattern"].get("String")  # an expression may match the nothing beside each letter
        return max(1, len(step["content"]) / len(pattern)) if pattern else 1 + len(step["content"])
    if kind == "Prepend":
        return 1 + len(step["prepend"])
    if kind == "Precompiled":
        return _precompiled(base64.b64decode(step["precompiled_charsmap"] or ""))
    if kind == "TemplateProcessing":
        return max(sum(_pieces(each, step) for each in step[texts]) for texts in ("single", "pair"))
    if kind not in _GROWTH:
        raise ValueError(f"the step {shown(kind)} is not known")
    return _GROWTH[kind]


def _pieces(item: Any, template: Any) -> int:
    """Return how many tokens an item of a template stands for; 1 for the text itself."""
    return len(template["special_tokens"][item["SpecialToken"]["id"]]["ids"]) if "SpecialToken" in item else 1


def _precompiled(charsmap: bytes) -> int:
    """Return the length of the longest text that a map of sentencepiece has for a character: after its trie."""
    trie = int.from_bytes(charsmap[:4], "little")
    return max(1, *(len(text.decode(errors="replace")) for text in charsmap[4 + trie :].split(b"\0")))


def _tokens(file: Any) -> list[str]:
    words = (file.get("model") or {}).get("vocab") or ()  # a mapping, or for Unigram rows of token and score
    return [
        *(word if isinstance(word, str) else word[0] for word in words),
        *(token["content"] for token in file.get("added_tokens") or ()),
    ]
