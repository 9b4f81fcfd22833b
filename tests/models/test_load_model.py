import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from tiny_models import CORPUS, LABELS, MAX_LENGTH, logits, save_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel, BloomConfig

from reflectrl.config.schema import BuiltinSection, LoraSection, ModelSection
from reflectrl.core import InvalidInput
from reflectrl.models.builtin import make_base
from reflectrl.models.load import BUILTIN, LanguageModel, load_model, new_model, save_model
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
    """Train whatever is trainable, so that a reloaded base would be noticed."""
    optimizer = torch.optim.AdamW([p for p in lm.model.parameters() if p.requires_grad], lr=0.05)
    ids = torch.tensor([lm.tokenizer(CORPUS[0])["input_ids"]])
    for _ in range(2):
        lm.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("quantization", ["none", "8bit", "4bit"])
def test_adapters_train_and_come_back_with_the_same_logits(section, quantization, tmp_path):
    section = section.model_copy(update={**LORA, "quantization": quantization})
    lm = new_model(section, labels=LABELS, seed=0)
    before = logits(lm)
    two_steps(lm)
    after = logits(lm)
    save_model(lm, tmp_path / "policy")
    assert (before - after).abs().max() > 1e-3
    assert torch.equal(logits(load_model(tmp_path / "policy", section, trainable=False)), after)


def test_all_weights_train_and_come_back_with_the_same_logits(section, tmp_path):
    lm = new_model(section, labels=LABELS, seed=0)
    two_steps(lm)
    save_model(lm, tmp_path / "policy")
    assert torch.equal(logits(load_model(tmp_path / "policy", section, trainable=True)), logits(lm))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert torch.equal(logits(LanguageModel(plain, lm.tokenizer)), logits(lm))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft asks transformers for it
def test_peft_itself_loads_a_saved_adapter(gpt2, tmp_path):
    lm = new_model(gpt2.model_copy(update=LORA), labels=LABELS, seed=0)
    two_steps(lm)
    save_model(lm, tmp_path / "policy")
    plain = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "policy"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    assert torch.equal(logits(LanguageModel(plain, tokenizer)), logits(lm))


def test_a_trainable_adapter_is_continued_and_a_frozen_one_is_not(gpt2, tmp_path):
    section = gpt2.model_copy(update=LORA)
    lm = new_model(section, labels=LABELS, seed=0)
    save_model(lm, tmp_path / "policy")
    names = {name for name, value in lm.model.named_parameters() if value.requires_grad}
    again = load_model(tmp_path / "policy", section, trainable=True)
    assert {name for name, value in again.model.named_parameters() if value.requires_grad} == names
    frozen = load_model(tmp_path / "policy", section, trainable=False)
    assert not any(value.requires_grad for value in frozen.model.parameters())


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
    save_model(lm, tmp_path / "policy")
    again = load_model(tmp_path / "policy", section, trainable=True)
    with torch.no_grad():
        assert torch.equal(again.model.eval()(text).logits, lm.model.eval()(text).logits)
    if lora:
        assert (tmp_path / "policy" / "adapter_model.safetensors").stat().st_size < 40_000


def test_the_same_seed_makes_the_same_adapter_and_leaves_other_random_numbers_alone(gpt2):
    section = gpt2.model_copy(update=LORA)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (new_model(section, labels=LABELS, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_builtin_base_is_an_ordinary_folder_with_the_same_bytes_each_time(tmp_path):
    one, two = nano(tmp_path / "one"), nano(tmp_path / "two")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "model.safetensors" in files
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    assert one.name == str(tmp_path / "one")
    assert AutoModelForCausalLM.from_pretrained(two.name).config.n_embd == 16


def test_another_seed_makes_another_builtin_base(tmp_path):
    one, two = (new_model(nano(tmp_path / str(seed), seed=seed), labels=LABELS, seed=0) for seed in (0, 1))
    assert not torch.equal(logits(one), logits(two))


def test_other_models_need_no_base(gpt2, tmp_path):
    assert make_base(gpt2, tmp_path / "base", corpus=CORPUS, labels=LABELS, seed=0) == gpt2
    assert not (tmp_path / "base").exists()


def test_an_adapter_on_the_builtin_base_is_found_again_after_its_run_was_moved(tmp_path):
    recipe = NANO.model_copy(update=LORA)
    lm = new_model(nano(tmp_path / "run" / "base", recipe), labels=LABELS, seed=0)
    two_steps(lm)
    save_model(lm, tmp_path / "run" / "policy")
    assert torch.equal(logits(load_model(tmp_path / "run" / "policy", recipe, trainable=True)), logits(lm))
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert torch.equal(logits(load_model(tmp_path / "moved" / "policy", recipe, trainable=True)), logits(lm))


def test_saving_replaces_an_older_model_whole_and_leaves_nothing_beside_it(gpt2, tmp_path):
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "old.txt").write_text("old", encoding="utf-8")
    lm = new_model(gpt2, labels=LABELS, seed=0)
    save_model(lm, folder)
    save_model(lm, folder)
    assert not (folder / "old.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def refused(call, *words):
    with pytest.raises(InvalidInput) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_name_is_refused_and_says_what_was_tried():
    refused(lambda: new_model(ModelSection(name="nobody/nothing"), labels=LABELS, seed=0), "'nobody/nothing'", "hub")


def test_a_folder_without_a_config_is_refused(tmp_path):
    refused(lambda: new_model(ModelSection(name=str(tmp_path)), labels=LABELS, seed=0), "has no config.json")
    refused(lambda: load_model(tmp_path, NANO, trainable=True), "has no config.json")


def test_a_missing_player_is_refused(tmp_path):
    refused(lambda: load_model(tmp_path / "policy", NANO, trainable=True), "does not exist", "train this player")


def test_pickled_weights_are_refused(gpt2, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(gpt2.name, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    section = gpt2.model_copy(update={"name": str(folder)})
    refused(lambda: new_model(section, labels=LABELS, seed=0), "no *.safetensors", "save_pretrained")


def test_broken_weights_are_refused(gpt2, tmp_path):
    shutil.copytree(gpt2.name, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"not a tensor at all")
    section = gpt2.model_copy(update={"name": str(tmp_path / "broken")})
    refused(lambda: new_model(section, labels=LABELS, seed=0), "broken", "cannot be loaded")


def test_a_model_that_is_no_causal_language_model_is_refused(gpt2, tmp_path):
    shutil.copytree(gpt2.name, tmp_path / "bert")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=400, **shape)).save_pretrained(tmp_path / "bert")
    section = gpt2.model_copy(update={"name": str(tmp_path / "bert")})
    refused(lambda: new_model(section, labels=LABELS, seed=0), "bert", "weights of its own architecture")


def test_more_layers_than_weights_are_refused_before_they_are_made(gpt2, tmp_path):
    shutil.copytree(gpt2.name, tmp_path / "deep")
    path = tmp_path / "deep" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "n_layer": 10**9}), encoding="utf-8")
    section = gpt2.model_copy(update={"name": str(tmp_path / "deep")})
    refused(lambda: new_model(section, labels=LABELS, seed=0), "16 weights but config.json says n_layer=1000000000")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", "[" * 100_000, ("the model", "cannot be loaded")),
        ("config.json", "[]", ("the model", "cannot be loaded")),
        ("tokenizer.json", '{"version": 3}', ("the tokenizer", "cannot be loaded")),
        ("tokenizer_config.json", '{"tokenizer_class": [1]}', ("the tokenizer", "cannot be loaded")),
    ],
)
def test_a_damaged_part_of_a_model_is_named(gpt2, tmp_path, file, text, words):
    shutil.copytree(gpt2.name, tmp_path / "damaged")
    (tmp_path / "damaged" / file).write_text(text, encoding="utf-8")
    section = gpt2.model_copy(update={"name": str(tmp_path / "damaged")})
    refused(lambda: new_model(section, labels=LABELS, seed=0), *words, str(tmp_path / "damaged"))


def test_a_damaged_adapter_is_named(gpt2, tmp_path):
    section = gpt2.model_copy(update=LORA)
    save_model(new_model(section, labels=LABELS, seed=0), tmp_path / "policy")
    path = tmp_path / "policy" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "bias": 3}), encoding="utf-8")
    words = ("the adapter", str(tmp_path / "policy"), "cannot be loaded", "train that player again")
    refused(lambda: load_model(tmp_path / "policy", section, trainable=True), *words)


def test_a_context_shorter_than_max_length_is_refused(section):
    longer = section.model_copy(update={"max_length": 65})
    refused(lambda: new_model(longer, labels=LABELS, seed=0), "reads 64 tokens but model.max_length=65")


def test_an_adapter_on_the_lm_head_is_refused(section):
    asked = section.model_copy(update={"lora": LoraSection(r=4, target_modules=["lm_head"])})
    refused(lambda: new_model(asked, labels=LABELS, seed=0), "adapter on 'lm_head'", "leave it out")


def test_unknown_target_modules_are_refused_with_the_nearest(gpt2):
    asked = gpt2.model_copy(update={"lora": LoraSection(r=4, target_modules=["c_atn"])})
    refused(lambda: new_model(asked, labels=LABELS, seed=0), "c_atn", "did you mean 'c_attn'?")


def test_an_adapter_given_as_a_base_is_refused(gpt2, tmp_path):
    save_model(new_model(gpt2.model_copy(update=LORA), labels=LABELS, seed=0), tmp_path / "policy")
    section = gpt2.model_copy(update={"name": str(tmp_path / "policy")})
    refused(lambda: new_model(section, labels=LABELS, seed=0), "holds an adapter, not a model")


def test_full_weights_where_the_recipe_wants_an_adapter_are_refused(gpt2):
    section = gpt2.model_copy(update=LORA)
    refused(lambda: load_model(Path(gpt2.name), section, trainable=True), "holds no adapter", "model.lora=null")


def test_an_adapter_of_another_base_is_refused(tmp_path):
    sections = {kind: save_tiny(kind, tmp_path / kind).model_copy(update=LORA) for kind in ("gpt2", "llama")}
    save_model(new_model(sections["llama"], labels=LABELS, seed=0), tmp_path / "policy")
    refused(lambda: load_model(tmp_path / "policy", sections["gpt2"], trainable=True), "does not fit the base")


@pytest.mark.parametrize(
    ("kind", "kernel", "cure"), [("gpt2", "flash_attention_2", "sdpa or eager."), ("bloom", "sdpa", "eager.")]
)
def test_an_attention_kernel_that_the_model_lacks_is_refused_with_one_that_it_has(tmp_path, kind, kernel, cure):
    section = save_tiny("gpt2", tmp_path).model_copy(update={"attn_implementation": kernel})
    if kind == "bloom":
        AutoModelForCausalLM.from_config(
            BloomConfig(vocab_size=400, hidden_size=8, n_layer=1, n_head=1)
        ).save_pretrained(tmp_path)
    refused(lambda: new_model(section, labels=LABELS, seed=0), "set model.attn_implementation to " + cure)


def test_the_builtin_name_needs_its_base_first():
    refused(lambda: new_model(ModelSection(), labels=LABELS, seed=0), BUILTIN, "make_base")
