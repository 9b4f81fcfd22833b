import json
import random
import shutil
from pathlib import Path
from statistics import fmean

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from tiny_models import CORPUS, LABELS, MAX_LENGTH, logits, save_tiny
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from reflectrl.core import InvalidInput
from reflectrl.lm.builtin import make_base
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import BUILTIN, LanguageModel, load_model, new_model, save_model
from reflectrl.lm.section import BuiltinSection, LoraSection, ModelSection
from reflectrl.prompts import labels

LORA = {"lora": LoraSection(r=4)}
NANO = ModelSection(max_length=MAX_LENGTH, builtin=BuiltinSection(layers=1, width=16, vocabulary=400))


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def section(request, tmp_path_factory):
    return save_tiny(request.param, tmp_path_factory.mktemp("base") / request.param)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return save_tiny("gpt2", tmp_path_factory.mktemp("base") / "gpt2")


def nano(folder: Path, section: ModelSection = NANO, seed: int = 0) -> ModelSection:
    return make_base(section, folder, corpus=CORPUS, labels=LABELS, seed=seed)


def two_steps(lm: LanguageModel) -> None:
    """Train all trainable weights for two steps, so that a base reloaded by mistake would be noticed."""
    optimizer = torch.optim.AdamW([p for p in lm.model.parameters() if p.requires_grad], lr=0.05)
    ids = torch.tensor([lm.tokenizer(CORPUS[0])["input_ids"]])
    for _ in range(2):
        lm.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(lm: LanguageModel) -> set[str]:
    return {name for name, weight in lm.model.named_parameters() if weight.requires_grad}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft asks transformers for it
@pytest.mark.parametrize("quantization", ["none", "8bit", "4bit"])
def test_adapters_train_and_come_back_with_the_same_logits(section, quantization, tmp_path):
    section = section.model_copy(update={**LORA, "quantization": quantization})
    lm = new_model(section, labels=LABELS, seed=0)
    before = logits(lm)
    two_steps(lm)
    after = logits(lm)
    save_model(lm, tmp_path / "policy")
    adapted = json.loads((tmp_path / "policy" / "adapter_config.json").read_text())["target_modules"]
    assert adapted == sorted(adapted)  # not in the order of a set, which differs between processes
    assert (before - after).abs().max() > 1e-3
    frozen = load_model(tmp_path / "policy", section, trainable=False)
    assert frozen.adapted == (quantization != "none")  # merged if the base is not quantised
    torch.testing.assert_close(logits(frozen), after, rtol=0, atol=1e-5 if quantization == "none" else 0)
    assert trained(frozen) == set()
    again = load_model(tmp_path / "policy", section, trainable=True)
    assert torch.equal(logits(again), after)
    assert trained(again) == trained(lm)
    if quantization == "4bit":  # bitsandbytes itself sets a number
        packs = {getattr(layer, "support_avx512bf16_for_cpu", None) for layer in lm.model.modules()}
        assert packs == {None, False}
    if quantization == "none":
        plain = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "policy"))
        plain_logits = logits(LanguageModel(plain, AutoTokenizer.from_pretrained(tmp_path / "policy")))
        torch.testing.assert_close(plain_logits, after, rtol=0, atol=1e-5)


def test_all_weights_train_and_come_back_with_the_same_logits(section, tmp_path):
    lm = new_model(section, labels=LABELS, seed=0)
    two_steps(lm)
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "old.txt").write_text("old", encoding="utf-8")
    save_model(lm, folder)
    save_model(lm, folder)  # replaces an older model completely
    assert not (folder / "old.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert torch.equal(logits(load_model(folder, section, trainable=True)), logits(lm))
    plain = AutoModelForCausalLM.from_pretrained(folder)
    # transformers computes GPT-2's activation in another order
    torch.testing.assert_close(logits(LanguageModel(plain, lm.tokenizer)), logits(lm), rtol=0, atol=1e-5)


@pytest.mark.parametrize("lora", [None, LoraSection(r=4)])
def test_added_labels_are_trained_saved_and_loaded(section, lora, tmp_path):
    section = section.model_copy(update={"lora": lora})
    added = labels("added", 3)
    lm = new_model(section, labels=added, seed=0)
    ids = torch.tensor(lm.tokenizer.convert_tokens_to_ids(list(added)))
    before = lm.model.get_input_embeddings().weight.detach().clone()
    word = torch.tensor(lm.tokenizer("row")["input_ids"])
    text = torch.cat([word, ids, word])[None]
    lm.model(input_ids=text, labels=text).loss.backward()
    torch.optim.SGD([p for p in lm.model.parameters() if p.requires_grad], lr=1.0).step()
    moved = (lm.model.get_input_embeddings().weight - before).abs().amax(1) > 1e-6
    assert moved[ids].all()
    assert lora is None or moved.sum() == len(ids)
    folder = tmp_path / "policy"
    save_model(lm, folder)
    again = load_model(folder, section, trainable=True)
    with torch.no_grad():
        assert torch.equal(again.model.eval()(text).logits, lm.model.eval()(text).logits)
        merged = load_model(folder, section, trainable=False).model(text).logits
    torch.testing.assert_close(merged, lm.model(text).logits.detach(), rtol=0, atol=1e-5)
    if lora:
        assert (folder / "adapter_model.safetensors").stat().st_size < 40_000


@pytest.mark.parametrize("trainable", [True, False])
def test_adapters_are_loaded_without_dropout(gpt2, tmp_path, trainable):
    dropout = gpt2.model_copy(update={"lora": LoraSection(r=4, dropout=0.5)})
    lm = new_model(dropout, labels=LABELS, seed=0)
    save_model(lm, tmp_path / "player")
    for each in (lm, load_model(tmp_path / "player", dropout, trainable=trainable)):
        assert not any(module.training for module in each.model.modules())
        add_choice_head(each.base)


@pytest.mark.parametrize(
    ("published_in", "computes", "merged"),
    [("bfloat16", "bfloat16", False), ("float32", "bfloat16", True), ("bfloat16", "float32", True)],
)
def test_an_adapter_is_not_merged_where_rounding_would_undo_it(tmp_path, published_in, computes, merged):
    section = save_tiny("llama", tmp_path / "base").model_copy(update={**LORA, "compute": computes})
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    base.to(getattr(torch, published_in)).float().save_pretrained(tmp_path / "base")
    lm = new_model(section, labels=LABELS, seed=0)
    two_steps(lm)
    save_model(lm, tmp_path / "player")
    player = load_model(tmp_path / "player", section, trainable=False)
    assert player.adapted != merged
    assert not any(weight.requires_grad for weight in player.model.parameters())
    assert torch.allclose(logits(player), logits(lm), rtol=0.05, atol=0.05)


def test_an_output_matrix_with_a_bias_is_refused(tmp_path):
    made = save_tiny("gpt2", tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    config = PhiConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    PhiForCausalLM(config).save_pretrained(tmp_path / "base")
    with pytest.raises(InvalidInput, match="has a bias"):
        new_model(made.model_copy(update=LORA), labels=labels("added", 3), seed=0)


def test_the_same_seed_makes_the_same_adapter(gpt2):
    section = gpt2.model_copy(update=LORA)
    state = torch.get_rng_state()
    one, two, other = (new_model(section, labels=LABELS, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_builtin_base_is_an_ordinary_folder(gpt2, tmp_path):
    one, two, other = (nano(tmp_path / name, seed=name == "other") for name in ("one", "two", "other"))
    files = sorted(path.name for path in Path(one.name).iterdir())
    assert "model.safetensors" in files
    assert all((Path(one.name) / name).read_bytes() == (Path(two.name) / name).read_bytes() for name in files)
    assert AutoModelForCausalLM.from_pretrained(two.name).config.n_embd == 16
    assert not torch.equal(*(logits(new_model(section, labels=LABELS, seed=0)) for section in (one, other)))
    assert make_base(gpt2, tmp_path / "base", corpus=CORPUS, labels=LABELS, seed=0) == gpt2  # needs no new base
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize(("width", "spread"), [(64, 0.0693), (768, 0.02)])
def test_narrow_models_begin_with_larger_weights(tmp_path, width, spread):
    section = NANO.model_copy(update={"builtin": BuiltinSection(layers=1, width=width, heads=2, vocabulary=400)})
    model = load_model(Path(nano(tmp_path / "base", section).name), section, trainable=False).model
    for weight in (model.transformer.wte.weight, model.transformer.h[0].attn.c_attn.weight):
        assert weight.std().item() == pytest.approx(spread, rel=0.05)


def lookups(rng: random.Random, names: int) -> tuple[list[list[int]], list[int]]:
    """Return 64 texts of four tokens with a value each, in any order, and one of the four; and its values."""
    texts, values = [], []
    for _ in range(64):
        keys, told = rng.sample(range(names), 4), [names + rng.randrange(names) for _ in range(4)]
        asked = rng.randrange(4)
        texts.append([*(token for pair in zip(keys, told, strict=True) for token in pair), 2 * names, keys[asked]])
        values.append(told[asked])
    return texts, values


@pytest.mark.numerical
def test_pretrained_blocks_learn_lookups_that_random_ones_do_not(tmp_path):
    right = {}
    for pretrained in (True, False):
        section = ModelSection(max_length=16, builtin=BuiltinSection(vocabulary=400, pretrained=pretrained))
        model = new_model(nano(tmp_path / str(pretrained), section), labels=LABELS, seed=0).model
        optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-3), random.Random(0)
        hits = []
        for _ in range(150):
            texts, values = lookups(rng, 12)
            logits = model(input_ids=torch.tensor(texts)).logits[:, -1]
            torch.nn.functional.cross_entropy(logits, torch.tensor(values)).backward()
            optimizer.step()
            optimizer.zero_grad()
            hits.append((logits.argmax(1) == torch.tensor(values)).float().mean().item())
        right[pretrained] = fmean(hits[-50:])
    assert right[True] > 0.95
    assert right[False] < 0.6


def test_pretrained_blocks_fit_any_vocabulary_and_context(tmp_path):
    long, short = (
        ModelSection(max_length=length, builtin=BuiltinSection(vocabulary=words, pretrained=True))
        for length, words in ((1100, 400), (64, 300))
    )
    one, two, other = (
        new_model(nano(tmp_path / name, section, seed), labels=LABELS, seed=0).model.state_dict()
        for name, section, seed in (("one", long, 0), ("two", short, 0), ("other", short, 1))
    )
    places = "transformer.wpe.weight"
    assert len(one[places]) == 1100
    assert torch.equal(one[places][:64], two[places])
    assert not torch.equal(two["transformer.wte.weight"], other["transformer.wte.weight"])


def test_blocks_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match=r"layers=3, .*choose a shape that has them \(2x64x2\)"):
        BuiltinSection(layers=3, pretrained=True)
    with pytest.raises(ValueError, match="blocks read text"):
        ModelSection(images=True, prefix_reuse=False, builtin=BuiltinSection(pretrained=True))


def test_an_adapter_is_found_after_its_run_was_moved(tmp_path):
    recipe = NANO.model_copy(update=LORA)
    lm = new_model(nano(tmp_path / "run" / "base", recipe), labels=LABELS, seed=0)
    two_steps(lm)
    save_model(lm, tmp_path / "run" / "policy")
    assert torch.equal(logits(load_model(tmp_path / "run" / "policy", recipe, trainable=True)), logits(lm))
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert torch.equal(logits(load_model(tmp_path / "moved" / "policy", recipe, trainable=True)), logits(lm))


def test_the_settings_of_a_base_for_generating_are_neither_kept_nor_in_the_way_of_saving(tmp_path):
    section = save_tiny("gpt2", tmp_path / "base")
    unusual = {"temperature": 0.6, "no_repeat_ngram_size": 2, "eos_token_id": [1, 2]}  # a temperature for greedy texts
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(unusual))
    save_model(new_model(section, labels=LABELS, seed=0), tmp_path / "player")
    saved = json.loads((tmp_path / "player" / "generation_config.json").read_text())
    assert saved.keys() == {"eos_token_id", "pad_token_id", "transformers_version"}
    assert saved["eos_token_id"] == [1, 2]


# ---- refusals --------------------------------------------------------------------------------------------------------


def rewrite(folder, file="config.json", **fields):
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}), encoding="utf-8")


def bert(folder):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=400, **shape)).save_pretrained(folder)


def bloom(folder):
    BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=8, n_layer=1, n_head=1)).save_pretrained(folder)


UNLOADABLE = {
    "no config": (lambda folder: (folder / "config.json").unlink(), {}, ["config.json"]),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
        {},
        ["no tokenizer", "tokenizer.save_pretrained"],
    ),
    "pickled weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        {},
        ["*.safetensors", "save_pretrained"],
    ),
    "broken weights": (lambda folder: (folder / "model.safetensors").write_bytes(b"not a tensor at all"), {}, []),
    "no language model": (bert, {}, ["lacks", "save or download it again"]),
    "more layers than weights, before any is made": (
        lambda folder: rewrite(folder, n_layer=10**9),
        {},
        ["16 weights", "n_layer=1000000000"],
    ),
    "deep config": (lambda folder: (folder / "config.json").write_text("[" * 100_000), {}, ["the model"]),
    "other tokenizer": (lambda folder: rewrite(folder, "tokenizer.json", version=3), {}, ["the tokenizer"]),
    "short context": (lambda _: None, {"max_length": 65}, ["64 tokens", "max_length=65", "set it to 64"]),
    "adapter on the head": (
        lambda _: None,
        {"lora": LoraSection(r=4, target_modules=["lm_head"])},
        ["model.lora.target_modules", "'lm_head'"],
    ),
    "unknown module": (
        lambda _: None,
        {"lora": LoraSection(r=4, target_modules=["c_atn"])},
        ["model.lora.target_modules", "c_atn", "and try again; did you mean 'c_attn'?"],
    ),
    "unknown layer": (
        lambda _: None,
        {"lora": LoraSection(r=4, layers="0-1")},
        ["lora.layers=0-1", "has 1 layers", "0 to 0"],
    ),
    "adapter for a base": (lambda folder: (folder / "adapter_config.json").touch(), {}, ["adapter", "model.name"]),
    "no flash attention": (
        lambda _: None,
        {"attn_implementation": "flash_attention_2"},
        ["set model.attn_implementation to sdpa or eager."],
    ),
    "no sdpa": (bloom, {"attn_implementation": "sdpa"}, ["set model.attn_implementation to eager."]),
}


@pytest.mark.parametrize("case", UNLOADABLE)
def test_a_model_that_cannot_be_loaded_is_refused_with_its_fault(gpt2, tmp_path, case):
    damage, options, facts = UNLOADABLE[case]
    folder = tmp_path / "given"
    shutil.copytree(gpt2.name, folder)
    damage(folder)
    with pytest.raises(InvalidInput) as caught:
        new_model(gpt2.model_copy(update={"name": str(folder), **options}), labels=LABELS, seed=0)
    for fact in facts or ["given", "cannot be loaded"]:
        assert fact in str(caught.value)


@pytest.mark.parametrize(("name", "facts"), [("no/model", "'no/model'.*hub"), (BUILTIN, "make_base")])
def test_a_name_that_leads_nowhere_is_refused(name, facts):
    with pytest.raises(InvalidInput, match=facts):
        new_model(ModelSection(name=name), labels=LABELS, seed=0)


def test_a_player_that_does_not_fit_its_recipe_is_refused(gpt2, tmp_path):
    adapted = gpt2.model_copy(update=LORA)
    save_model(new_model(adapted, labels=LABELS, seed=0), tmp_path / "adapter")
    llama = save_tiny("llama", tmp_path / "llama").model_copy(update=LORA)
    shutil.copytree(tmp_path / "adapter", tmp_path / "damaged")
    rewrite(tmp_path / "damaged", "adapter_config.json", bias=3)
    for folder, section, facts in (
        (tmp_path / "missing", gpt2, "missing"),
        (tmp_path, gpt2, "config.json"),
        (Path(gpt2.name), adapted, "adapter_config.json.*model.lora"),
        (tmp_path / "adapter", llama, "base.*llama"),
        (tmp_path / "damaged", adapted, "the adapter.*damaged.*train that player again"),
    ):
        with pytest.raises(InvalidInput, match=facts):
            load_model(folder, section, trainable=True)
