"""What may be read of a model: regular files inside its folder, weights in safetensors, other files of a bounded size.

A model may come from anybody. Its index, its configuration and its links may lead ``from_pretrained`` out of the
folder or to a pickle, and a pipe in the place of a file would make it wait for ever. Everything that loads a model, a
tokenizer or an adapter asks ``checked`` or ``check_folder`` first.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file, cached_files

from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import read_json
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


MOST_BYTES = 2**26
"""Maximum size in bytes of a file that is parsed whole, unlike weights; the largest real ``tokenizer.json`` have about
40 MB."""
MOST_EXTRA_TOKENS = 100_000
"""Maximum number of tokens that a tokenizer's configuration adds by their number alone."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PARSED = {".json", ".jinja", ".model", ".txt", ".tiktoken"}
_INDEX = ".safetensors.index.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS = "special_tokens_map.json"
_FROM_HUB = (
    *("config.json", ADAPTER_CONFIG, f"model{_INDEX}", "generation_config.json"),
    *(_TOKENIZER_CONFIG, "tokenizer.json", _SPECIAL_TOKENS, "added_tokens.json"),
    *("preprocessor_config.json", "processor_config.json"),
)
"""Files of a model on the hub that are fetched and checked before anything is loaded."""


def checked(name: str, *, weights: bool = False) -> dict[str, str]:
    """Check the files of a model, and return the arguments of ``from_pretrained`` that name exactly these.

    For a model of the hub, they name the commit whose files were checked.

    Args:
        name: ``model.name`` of a recipe; what it names is fetched as ``local_name`` does.
        weights: True for the weights of a model; an adapter beside them, which would be loaded too, is then refused.

    Raises:
        InvalidInput: a file that is not read, see ``check_folder``, a file in the place of a folder, or an adapter in
            that of a model; or as ``local_name`` does.
        OSError: a model of the hub that cannot be found or fetched.
    """
    from reflectrl.lm.packages import local_name  # loads torch

    found = local_name(name)
    folder = Path(found)
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{name!r} is not a folder; expected the folder of a model, or a .gguf file.")
    if not folder.exists():
        folder = _snapshot(found)
    check_folder(folder)
    if weights:
        check_no_adapter(folder, name)
    arguments = {"pretrained_model_name_or_path": found}
    return arguments if folder == Path(found) else {**arguments, "revision": folder.name}


def check_no_adapter(folder: Path, name: str) -> None:
    """Refuse an adapter in the place of the model ``name``."""
    if (folder / ADAPTER_CONFIG).is_file():
        raise InvalidInput(f"{name!r} holds an adapter, not a model; set model.name to the base it was trained on.")


def check_folder(folder: Path) -> None:
    """Check everything that is read of a model's folder; nothing of it is loaded.

    A link may lead to another file of the folder, and in the Hugging Face cache to the file that the cache keeps for
    it. Hidden files and other subfolders are never read.

    Raises:
        InvalidInput: a file that is a pipe, a device, a socket or a broken link, that lies elsewhere or is too large;
            an index or a configuration that names weights elsewhere or in another format; or a tokenizer that makes
            texts grow without bound.
    """
    for path in (*folder.iterdir(), *folder.glob("additional_chat_templates/*")):
        if not path.name.startswith(".") and not path.is_dir():
            check_file(path, folder)
    for index in folder.glob(f"*{_INDEX}"):
        weights = _object(index).get("weight_map")
        for name in dict.fromkeys(weights.values()) if isinstance(weights, dict) else ():
            _check_weights(folder, name, index)
    config = folder / "config.json"
    name = _object(config).get("transformers_weights") if config.is_file() else None
    if name not in (None, f"model{_INDEX}"):  # no other index, which may lie in a subfolder, or on the hub still
        _check_weights(folder, name, config)
    if (tokenizer := folder / _TOKENIZER_CONFIG).is_file():
        _check_tokenizer(_object(tokenizer), tokenizer)
    if (special := folder / _SPECIAL_TOKENS).is_file():
        _check_special_tokens(_object(special), special)
    for steps in folder.glob("tokenizer.*json"):
        check_steps(steps)


def check_adapter(folder: Path) -> None:
    """Check the folder of an adapter as ``check_folder`` does, and that it is a LoRA in safetensors.

    Raises:
        InvalidInput: as ``check_folder`` does; an adapter of another type, which may load others from elsewhere; or no
            weights but a pickle, which peft would load.
    """
    check_folder(folder)
    if (kind := _object(folder / ADAPTER_CONFIG).get("peft_type")) != "LORA":
        raise InvalidInput(
            f"{folder / ADAPTER_CONFIG} is of the type {shown(kind)}; expected an adapter of the type LORA."
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise InvalidInput(
            f"the adapter in {str(folder)!r} has no {ADAPTER_WEIGHTS} (pickled .bin files can run code and are not "
            "read); save it again with save_pretrained."
        )


def check_file(path: Path, folder: Path) -> None:
    """Check that ``path`` is a regular file inside ``folder``, of a size that can be read; see ``check_folder``."""
    try:
        target = path.resolve(strict=True)
        found = target.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        raise InvalidInput(f"{path} is a broken link; take it out of the model's folder, or mend it.") from error
    if not any(target.is_relative_to(place) for place in _places(folder.resolve())):
        raise InvalidInput(
            f"{path} is a link to {target}, outside of the model's folder, which is not read; copy the file into the "
            "folder."
        )
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"{path} is not a regular file, which is not read; take it out of the model's folder.")
    if path.suffix in _PARSED and found.st_size > MOST_BYTES:
        raise InvalidInput(
            f"{path} has {found.st_size:,} bytes, but at most {MOST_BYTES:,} are read; expected the file of a "
            "tokenizer or a configuration: save the model again."
        )


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model."""
    value = read_json(path, "an object of JSON: save the model, or download it, again")
    if not isinstance(value, dict):
        raise InvalidInput(f"the model's file {path} holds no JSON object; save or download it again.")
    return value


def _check_weights(folder: Path, name: object, named_by: Path) -> None:
    """Check the name of a file of weights; on the hub, the file itself may not be there yet."""
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        raise InvalidInput(
            f"{named_by} names the weights {shown(name)}; expected *.safetensors (other formats can run code and are "
            "not read): save the model again with save_pretrained."
        )
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidInput(
            f"{named_by} names the weights {shown(name)}, outside of the model's folder, which are not read; copy them "
            "into the folder."
        )
    if (folder / name).exists():
        check_file(folder / name, folder)


def _check_tokenizer(values: Mapping[str, Any], path: Path) -> None:
    """Check the files and the numbers of tokens that the configuration of a tokenizer names."""
    for name in values.get("fast_tokenizer_files") or ():
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidInput(f"{path} names the file {shown(name)}; expected names of files beside it.")
    for key in ("gguf_file", "merges", "vocab"):  # transformers opens these as they are given
        if isinstance(values.get(key), str):
            raise InvalidInput(
                f"{path} says {key}={shown(values[key])}, a file, which is not read; expected a tokenizer.json."
            )
    for key in ("extra_ids", "num_madeup_words", "offset"):
        if isinstance(values.get(key), int) and values[key] > MOST_EXTRA_TOKENS:
            raise InvalidInput(f"{path} says {key}={values[key]}; expected at most {MOST_EXTRA_TOKENS:,} such tokens.")


def _check_special_tokens(values: Mapping[str, Any], path: Path) -> None:
    """Check that a map of special tokens sets nothing else: transformers lets it replace the files of a tokenizer."""
    if others := [name for name in values if not name.endswith(("_token", "_tokens"))]:
        raise InvalidInput(f"{path} sets {shown(others[0])}; expected special tokens alone, such as eos_token.")


def _places(folder: Path) -> Iterator[Path]:
    """Yield the folders in which the files of a model may lie: its own, and where the Hugging Face cache keeps them."""
    yield folder
    for snapshots in folder.parents:
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
            yield snapshots.parent / "blobs"
            yield snapshots.parent.parent / "blobs"  # shared by the models of a cache


def _snapshot(name: str) -> Path:
    """Return the folder in the cache with the small files of the newest commit of a model on the hub."""
    config = cached_file(name, "config.json")
    if config is None:
        raise OSError(f"{name} has no config.json")
    folder = Path(config).parent
    wanted = {"revision": folder.name, "_raise_exceptions_for_missing_entries": False}
    cached_files(name, [*_FROM_HUB], **wanted)
    check_folder(folder)
    if (tokenizer := folder / _TOKENIZER_CONFIG).exists():
        versions = _object(tokenizer).get("fast_tokenizer_files") or ()
        for each in versions:
            cached_file(name, each, **wanted)
    return folder
