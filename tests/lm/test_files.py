"""What is read of a model: regular files inside its folder, weights in safetensors, bounded texts and tokenizers."""

import base64
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import torch
from tiny_models import LABELS, logits, save_tiny
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from reflectrl.core import InvalidInput
from reflectrl.lm.load import load_model, new_model, no_progress_bars, save_model
from reflectrl.lm.reflecting import add_reflector
from reflectrl.lm.safe_files import MOST_BYTES, MOST_GROWTH, check_adapter, check_steps, checked, growth
from reflectrl.lm.section import LoraSection
from reflectrl.seats.neural import minilm


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tiny("gpt2", tmp_path_factory.mktemp("base") / "gpt2")


@pytest.fixture
def given(saved, tmp_path):
    """A section whose folder is a copy that may be damaged, with something beside it."""
    shutil.copytree(saved.name, tmp_path / "given")
    shutil.copyfile(tmp_path / "given" / "model.safetensors", tmp_path / "outside.safetensors")
    return saved.model_copy(update={"name": str(tmp_path / "given")})


def in_shards(folder: Path) -> dict[str, str]:
    """Write the weights in two files and an index, as large models have them; return the index's map."""
    lm = new_model(save_tiny("llama", folder), labels=LABELS, seed=0)
    (folder / "model.safetensors").unlink()
    with no_progress_bars():
        lm.model.save_pretrained(folder, max_shard_size=30_000)
    weights = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weights.values())) > 1
    return weights


def rename_weights(folder: Path, name: object) -> None:
    """Let an index name another file for one weight."""
    weights = in_shards(folder)
    path = folder / "model.safetensors.index.json"
    weights[next(iter(weights))] = name
    path.write_text(json.dumps({"metadata": {}, "weight_map": weights}))


def rewrite(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def pickled(place: Path) -> str:
    torch.save({}, place)
    return str(place)


def link(path: Path, target: Path | str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def large(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(MOST_BYTES + 1)


CONFIG, TOKENIZER, INDEX = "config.json", "tokenizer.json", "model.safetensors.index.json"
REFUSED = {
    "an index that leaves the folder": (lambda f: rename_weights(f, "../outside.safetensors"), "outside of the model"),
    "an index with an absolute path": (
        lambda f: rename_weights(f, str(f.parent / "outside.safetensors")),
        "outside of the model",
    ),
    "an index with a pickle": (
        lambda f: rename_weights(f, Path(pickled(f / "inside.bin")).name),
        r"the weights 'inside.bin'; expected \*\.safetensors",
    ),
    "an index with a number": (lambda f: rename_weights(f, 3), "the weights 3; expected"),
    "an index that is not JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), "is not JSON"),
    "a configuration that names a pickle": (
        lambda f: rewrite(f / CONFIG, transformers_weights=Path(pickled(f / "adapter_model.bin")).name),
        "adapter_model.bin'; expected",
    ),
    "a configuration that names an index in a subfolder": (
        lambda f: (
            (f / "sub").mkdir(),
            (f / "sub" / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": "../outside.bin"}})),
            rewrite(f / CONFIG, transformers_weights=f"sub/{INDEX}"),
        ),
        f"the weights 'sub/{INDEX}'; expected",
    ),
    "weights in a folder that is a link out": (
        lambda f: (rename_weights(f, "sub/outside.safetensors"), link(f / "sub", f.parent)),
        "a link to .*outside.safetensors, outside",
    ),
    "a tokenizer that is a link out": (lambda f: link(f / TOKENIZER, "/etc/passwd"), "a link to /etc/passwd, outside"),
    "a tokenizer of another folder": (
        lambda f: rewrite(f / "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.0.0.json"]),
        "names the file '../tokenizer.4.0.0.json'",
    ),
    "a vocabulary elsewhere": (
        lambda f: rewrite(f / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", vocab="/dev/zero"),
        "vocab='/dev/zero', a file, which is not read",
    ),
    "a tokenizer elsewhere, as a special token": (
        lambda f: (f / "special_tokens_map.json").write_text('{"tokenizer_file": "/etc/passwd"}'),
        "sets 'tokenizer_file'; expected special tokens alone",
    ),
    "a link to nothing": (lambda f: link(f / "vocab.json", "nothing"), "broken link"),
    "weights that are a pipe": (lambda f: fifo(f / "model.safetensors"), "not a regular file"),
    "a template that is a pipe": (
        lambda f: ((f / "additional_chat_templates").mkdir(), fifo(f / "additional_chat_templates" / "a.jinja")),
        "not a regular file",
    ),
    "a socket": (lambda f: listening(f / "vocab.json"), "not a regular file"),
    "a large configuration": (lambda f: large(f / CONFIG), "at most 67,108,864 are read"),
    "tokens by the billion": (
        lambda f: rewrite(f / "tokenizer_config.json", tokenizer_class="T5Tokenizer", extra_ids=10**9),
        "extra_ids=1000000000; expected at most 100,000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_refused_before_anything_is_loaded(given, case):
    damage, fact = REFUSED[case]
    damage(Path(given.name))
    for load in (
        lambda: new_model(given, labels=LABELS, seed=0),
        lambda: load_model(Path(given.name), given, trainable=False),
        lambda: minilm(given.name),
    ):
        with pytest.raises(InvalidInput, match=fact):
            load()


def test_weights_in_several_files_and_links_inside_the_folder_are_read(given):
    folder = Path(given.name)
    weights = in_shards(folder)
    whole = logits(new_model(given, labels=LABELS, seed=0))
    (folder / "parts").mkdir()
    for name in set(weights.values()):
        (folder / name).rename(folder / "parts" / name)
        (folder / name).symlink_to(Path("parts", name))
    link(folder.parent / "alias", folder)  # what the user names may be a link
    again = given.model_copy(update={"name": str(folder.parent / "alias")})
    assert torch.equal(logits(new_model(again, labels=LABELS, seed=0)), whole)


def test_hidden_files_and_the_folders_of_others_are_left_alone(given):
    folder = Path(given.name)
    fifo(folder / ".pipe")
    link(folder / ".#config.json", "user@host")
    link(folder / "elsewhere", "/")
    new_model(given, labels=LABELS, seed=0)


def test_a_file_in_the_place_of_a_folder_is_refused(given):
    with pytest.raises(InvalidInput, match="is not a folder; expected the folder of a model, or a .gguf file"):
        new_model(given.model_copy(update={"name": f"{given.name}/config.json"}), labels=LABELS, seed=0)


# ---- adapters --------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(given, tmp_path):
    """A section with adapters, and the folder of one."""
    section = given.model_copy(update={"lora": LoraSection(r=2)})
    save_model(new_model(section, labels=LABELS, seed=0), tmp_path / "player")
    return section, tmp_path / "player"


def in_a_pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    torch.save({}, folder / "adapter_model.bin")


ADAPTERS = {
    "a pickle": (in_a_pickle, "no adapter_model.safetensors .pickled .bin files"),
    "a pipe": (lambda folder: fifo(folder / "adapter_model.safetensors"), "not a regular file"),
    "a link out": (
        lambda folder: link(folder / "adapter_model.safetensors", folder.parent / "outside.safetensors"),
        "a link to .*outside.safetensors",
    ),
    "adapters elsewhere": (
        lambda folder: rewrite(folder / "adapter_config.json", peft_type="XLORA", adapters={"0": "/outside"}),
        "of the type 'XLORA'; expected an adapter of the type LORA",
    ),
}


@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_is_read_from_safetensors_in_its_folder_alone(adapter, case):
    section, folder = adapter
    damage, fact = ADAPTERS[case]
    policy = new_model(section, labels=LABELS, seed=0)
    damage(folder)
    with pytest.raises(InvalidInput, match=fact):
        load_model(folder, section, trainable=True)
    with pytest.raises(InvalidInput, match=fact):
        add_reflector(policy, folder)
    with pytest.raises(InvalidInput, match=fact):
        check_adapter(folder)


def test_an_adapter_beside_weights_is_not_loaded(adapter):
    section, folder = adapter
    shutil.copyfile(folder / "adapter_config.json", Path(section.name) / "adapter_config.json")
    with pytest.raises(InvalidInput, match="holds an adapter, not a model"):
        checked(section.name, weights=True)
    with pytest.raises(InvalidInput, match="holds an adapter, not a model"):
        minilm(section.name)


# ---- the cache of the hub --------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(given, tmp_path, monkeypatch):
    """A model in the cache of the hub, in its layout: links into the blobs of the model, one of which is shared."""
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    model = hub / "models--owner--tiny"
    snapshot, blobs = model / "snapshots" / COMMIT, model / "blobs"
    for folder in (snapshot, blobs, model / "refs", hub / "blobs" / "ab"):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    in_shards(Path(given.name))
    for number, path in enumerate(sorted(Path(given.name).iterdir())):
        if path.name == "tokenizer.json":
            path.rename(hub / "blobs" / "ab" / "abcd")
            (blobs / str(number)).symlink_to("../../blobs/ab/abcd")
        else:
            path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return given.model_copy(update={"name": "owner/tiny"}), snapshot


def test_a_hub_model_is_loaded_through_the_links_of_its_cache(cached):
    section, snapshot = cached
    assert checked("owner/tiny") == {"pretrained_model_name_or_path": "owner/tiny", "revision": COMMIT}
    by_name = new_model(section, labels=LABELS, seed=0)
    assert (by_name.model.name_or_path, by_name.tokenizer.name_or_path) == ("owner/tiny", "owner/tiny")
    by_folder = new_model(section.model_copy(update={"name": str(snapshot)}), labels=LABELS, seed=0)
    assert torch.equal(logits(by_name), logits(by_folder))


@pytest.mark.parametrize("case", ["pickle", "outside", "adapter", "link", "no safetensors"])
def test_a_model_of_the_hub_is_refused_for_what_its_files_name(cached, tmp_path, case):
    section, snapshot = cached
    index = snapshot / "model.safetensors.index.json"
    if case in ("pickle", "outside"):
        weights = json.loads(index.read_text())["weight_map"]
        name = Path(pickled(snapshot / "a.bin")).name if case == "pickle" else "../gone.safetensors"
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))
    elif case == "adapter":
        (snapshot / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "other/base"}')
    elif case == "link":
        link(snapshot / "tokenizer.json", tmp_path / "outside.safetensors")
    else:
        for path in snapshot.glob("*.safetensors*"):
            path.unlink()
    facts = {
        "pickle": "the weights 'a.bin'",
        "outside": "outside of",
        "adapter": "holds an adapter",
        "link": "a link to",
    }
    with pytest.raises(InvalidInput, match=facts.get(case, r"'owner/tiny' has no \*.safetensors weights")):
        new_model(section, labels=LABELS, seed=0)


# ---- tokenizers that grow --------------------------------------------------------------------------------------------


def declare(folder: Path, **steps: object) -> None:
    rewrite(folder / TOKENIZER, **{name: in_json(step) for name, step in steps.items()})


def in_json(step: object) -> object:
    """Return a step of the tokenizers library as ``tokenizer.json`` declares it."""
    return json.loads(step.__getstate__())


def nested(kind: type, step: object, times: int) -> object:
    for _ in range(times):
        step = kind([step, step])
    return step


DOUBLED = normalizers.Replace("a", "aa")
GROWING = {
    "replacements, one after another": {"normalizer": normalizers.Sequence([DOUBLED] * 60)},
    "replacements, nested": {"normalizer": nested(normalizers.Sequence, DOUBLED, 6)},
    "replacements when decoding": {"decoder": decoders.Sequence([decoders.Replace("a", "aa")] * 60)},
    "one long replacement": {"normalizer": normalizers.Replace("a", "a" * 20_000)},
    "one long beginning": {"normalizer": normalizers.Prepend("a" * 20_000)},
    "bytes of bytes": {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 60)},
    "texts twice": {
        "post_processor": processors.Sequence([processors.TemplateProcessing(single="$A $A", pair="$A $B")] * 60)
    },
    "letters in and out": {"normalizer": normalizers.Sequence([normalizers.NFKD(), normalizers.NFKC()] * 10)},
}


@pytest.mark.parametrize("case", GROWING)
def test_a_tokenizer_that_makes_texts_grow_is_refused(given, case):
    declare(Path(given.name), **GROWING[case])
    for load in (lambda: new_model(given, labels=LABELS, seed=0), lambda: minilm(given.name)):
        with pytest.raises(InvalidInput, match="times as long; expected at most 10,000"):
            load()


def test_huge_tokens_and_unknown_steps_are_refused(given):
    path = Path(given.name, TOKENIZER)
    whole = json.loads(path.read_text())
    for fields, fact in (
        ({"model": {**whole["model"], "vocab": {**whole["model"]["vocab"], "a" * 10_001: 9}}}, "of 10,001 characters"),
        ({"normalizer": {"type": "Shout"}}, "the step 'Shout' is not known"),
        ({"decoder": {"type": "Replace"}}, "cannot be read .KeyError"),
        ({"added_tokens": 3}, "cannot be read .TypeError"),
    ):
        path.write_text(json.dumps({**whole, **fields}))
        with pytest.raises(InvalidInput, match=fact):
            check_steps(path)


def xlnet() -> list[object]:
    """Return the longest row of normalizers that is published, with a map of letters to 18 others."""
    letters = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"a" * 18).decode()}
    steps = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    return [*map(in_json, steps), letters, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]


def test_published_tokenizers_stay_far_below_the_limit():
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}
    for steps, factor in (
        ([{"type": "Prepend", "prepend": "\u2581"}, space], 2),  # Llama 2
        ([split, split, in_json(pre_tokenizers.ByteLevel())], 5),  # Llama 3, Qwen, DeepSeek
        ([in_json(normalizers.BertNormalizer())], 24),
        ([*xlnet(), in_json(pre_tokenizers.Metaspace())], 2592),
        ([in_json(decoders.ByteFallback()), in_json(decoders.Fuse()), in_json(decoders.Strip(" ", 1, 0))], 3),
    ):
        assert growth({"type": "Sequence", "normalizers": steps}) == factor < MOST_GROWTH
    assert growth(None) == 1


@pytest.mark.parametrize("room", [normalizers, pre_tokenizers, processors, decoders])
def test_the_growth_of_each_step_of_the_tokenizers_library_is_known(room):
    base = {"Normalizer", "PreTokenizer", "PostProcessor", "Decoder", "DecodeStream", "NORMALIZERS"}
    parts = {"pattern": {"String": "a"}, "content": "b", "prepend": "c", "precompiled_charsmap": "AAAA"}
    template = {"single": [{"Sequence": {}}], "pair": [{"Sequence": {}}], "special_tokens": {}}
    for name in {name for name in dir(room) if name[0].isupper()} - base:
        assert growth({"type": name, **parts, **template}) >= 1


def test_a_tokenizer_that_was_checked_is_checked_again_when_it_has_changed(given):
    checked(given.name)
    declare(Path(given.name), normalizer=normalizers.Sequence([DOUBLED] * 60))
    with pytest.raises(InvalidInput, match="times as long"):
        checked(given.name)
    assert len(AutoTokenizer.from_pretrained(given.name)) > 0  # loading it is harmless, reading with it is not
