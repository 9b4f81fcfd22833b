"""A damaged or foreign model folder is loaded, or refused with a sentence, in a short time."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import warnings
from pathlib import Path

import pytest
from damage import damaged_json, damaged_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import LABELS, save_tiny

from reflectrl.core import InvalidInput
from reflectrl.lm.load import load_model, new_model, save_model
from reflectrl.lm.section import LoraSection, ModelSection

LORA = {"lora": LoraSection(r=2)}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> ModelSection:
    return save_tiny("gpt2", tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="module")
def adapter(base) -> Path:
    folder = Path(base.name).with_name("policy")
    save_model(new_model(base.model_copy(update=LORA), labels=LABELS, seed=0), folder)
    return folder


def load(folder: Path, base: ModelSection) -> None:
    """Load a folder as a base, or as an adapter on the undamaged base; it may be refused."""
    with contextlib.suppress(InvalidInput), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers about odd settings
        if (folder / "adapter_config.json").exists():
            load_model(folder, base.model_copy(update=LORA), trainable=True)
        else:
            new_model(base.model_copy(update={"name": str(folder)}), labels=LABELS, seed=0)


@pytest.mark.slow
@settings(max_examples=60)
@given(rng=st.randoms(use_true_random=False), kind=st.sampled_from(("base", "adapter", "bytes")))
def test_a_damaged_file_is_loaded_or_refused(base, adapter, rng: random.Random, kind: str):
    whole = adapter if kind == "adapter" else Path(base.name)
    folder = whole.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    path = rng.choice(sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")))
    content = path.read_bytes()
    if kind == "bytes":
        path.write_bytes(rng.randbytes(rng.randrange(99)))
    elif path.suffix == ".json":
        path.write_bytes(damaged_json(rng, content.decode()).encode("utf-8", "surrogatepass"))
    else:
        path.write_bytes(damaged_tensors(rng, content))
    load(folder, base)


@pytest.mark.parametrize("key", ["n_layer", "num_hidden_layers", "vocab_size", "n_embd", "n_positions"])
def test_sizes_that_no_machine_has_are_refused_before_they_are_made(base, tmp_path, key):
    shutil.copytree(base.name, tmp_path / "huge")
    path = tmp_path / "huge" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), key: 10**9}), encoding="utf-8")
    with pytest.raises(InvalidInput):
        new_model(base.model_copy(update={"name": str(tmp_path / "huge")}), labels=LABELS, seed=0)
