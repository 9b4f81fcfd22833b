"""Image-text models: any family uses its own processor, and is played, scored, adapted and saved like text models."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from image_models import (
    CORPUS,
    FAMILIES,
    LABELS,
    MADE,
    MAX_LENGTH,
    MENU,
    cards,
    own_logits,
    plain,
    prompts,
    section,
)
from transformers import AutoModelForImageTextToText, AutoProcessor

import reflectrl as rl
from reflectrl.core import InvalidInput, Observation
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.builtin import make_base
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.head import add_choice_head, next_logits
from reflectrl.lm.load import load_model, new_model, save_model
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.reuse import refusal
from reflectrl.lm.section import BuiltinSection, LoraSection, ModelSection
from reflectrl.lm.sequences import padded
from reflectrl.lm.thinking import writing_policy
from reflectrl.lm.tokenizer import label_ids
from reflectrl.lm.writer import LMReflector
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.views import MenuView

PATCHES = re.compile(r"patch_embedding\.weight|patch_embed\.proj\.weight")
"""Matches the names of the first weights of a vision tower."""


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """A saved model of each family."""
    path = tmp_path_factory.mktemp("models") / request.param
    FAMILIES[request.param](path)
    return path


def load(folder, **options):
    return new_model(section(folder, **options), labels=LABELS, seed=0)


def encoder_of(lm, pictures=True):
    ids = label_ids(lm.tokenizer, LABELS)
    return PromptEncoder(lm.tokenizer, ids, MAX_LENGTH, pictures=lm.pictures if pictures else None)


def views():
    return [MenuView(prompt, Observation("", MENU.actions), (), {}, menu=MENU) for prompt in prompts()]


def read_side_by_side(lm):
    rows = encoder_of(lm).rows(prompts())
    return next_logits(lm.base.eval(), padded(rows, lm.base.device))


@torch.no_grad()
def test_pictures_are_read_in_a_batch_as_alone(folder):
    lm = load(folder)
    together = read_side_by_side(lm)
    for number, prompt in enumerate(prompts()):
        torch.testing.assert_close(together[number], own_logits(lm, prompt), rtol=1e-4, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-4  # the picture matters


@torch.no_grad()
@pytest.mark.parametrize("family", MADE)  # Qwen2-VL has positions in three dimensions
def test_families_whose_processor_needs_torchvision_read_pictures_as_their_own_code_does(family):
    lm = MADE[family]()
    together = read_side_by_side(lm)
    for number, prompt in enumerate(prompts()):
        torch.testing.assert_close(together[number], own_logits(lm, prompt), rtol=1e-4, atol=1e-5)


def test_tokens_of_a_picture_follow_from_its_hash(folder):
    lm, other = load(folder), load(folder)
    first, second, *_ = rows = encoder_of(lm).rows(prompts())
    assert rows == encoder_of(other).rows(prompts()[::-1])[::-1]
    assert {number for number in first if number < 0} == {-1 - int(cards()[0].sha256[:15], 16)}
    assert first != second
    seen = []
    read = lm.pictures.processor.image_processor
    lm.pictures.processor.image_processor = lambda images, **options: seen.append(images) or read(images, **options)
    read_side_by_side(lm)
    assert seen == []  # all three were processed when the rows were made


@pytest.fixture(params=[*FAMILIES, *MADE])
def any_family(request, tmp_path):
    """A new model of each family."""
    if request.param in MADE:
        return MADE[request.param]()
    FAMILIES[request.param](tmp_path / request.param)
    return load(tmp_path / request.param)


def test_a_policy_of_pictures_scores_what_it_played(any_family):
    lm = any_family
    add_choice_head(lm.base)
    policy = LMPolicy(lm.model, encoder_of(lm))
    decisions = policy.act(views(), [0.1, 0.3, 0.5, 0.7, 0.9])
    (part,) = policy.divide(views(), decisions, max_tokens=10_000)
    logprobs = policy.score(part).logprobs
    played = torch.tensor([decisions[index].logprob for index in part.indices])
    torch.testing.assert_close(logprobs.detach(), played, rtol=0, atol=1e-5)
    logprobs.sum().backward()
    tower = [weight.grad for name, weight in lm.model.named_parameters() if PATCHES.search(name)]
    assert tower
    assert all(gradient.abs().max() > 0 for gradient in tower)


@pytest.mark.parametrize("lora", [None, LoraSection(r=8, alpha=64)])
def test_every_family_learns_an_action_for_each_picture_also_in_adapters_alone(any_family, lora):
    lm = any_family
    add_choice_head(lm.base)
    model = lm.model if lora is None else add_lora(lm.base, lora, label_ids(lm.tokenizer, LABELS))
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    policy = LMPolicy(model, encoder_of(lm))
    pair = [Prompt("", (), f"{MENU.text}Action:\n", MENU, images=(plain(colour),)) for colour in ("black", "white")]
    seen = [MenuView(prompt, Observation("", MENU.actions), (), {}, menu=MENU) for prompt in pair]
    played = policy.act(seen, [0.5, 0.5])
    right = [replace(each, choice=replace(each.choice, index=number)) for number, each in enumerate(played)]
    optimizer, loss = torch.optim.Adam(learning, lr=3e-3), torch.tensor(1.0)
    for _ in range(100):
        (part,) = policy.divide(seen, right, max_tokens=10_000)
        loss = -policy.score(part).logprobs.mean()
        if loss < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    assert [decision.choice.index for decision in policy.act(seen, [0.5, 0.5])] == [0, 1]


def test_a_policy_that_writes_about_pictures_values_a_state_before_it_writes(folder):
    lm = load(folder)
    add_choice_head(lm.base, value_head=True)
    lm.base.value_head.weight.data.fill_(1.0)
    policy = writing_policy("json", lm, encoder_of(lm), max_new_tokens=3, temperature=1.0)
    decisions = policy.act(views(), [0.1, 0.3, 0.5, 0.7, 0.9])
    (part,) = policy.divide(views(), decisions, max_tokens=10_000)
    played = torch.tensor([decisions[index].value for index in part.indices])
    torch.testing.assert_close(policy.score(part).values.detach(), played, rtol=0, atol=1e-4)


def test_an_image_token_that_a_policy_writes_itself_is_read_as_padding(folder):
    lm = load(folder)
    token, padding = lm.base.config.image_token_id, lm.tokenizer.pad_token_id
    with torch.no_grad():
        logits = [next_logits(lm.base.eval(), padded([(5, own, 6)], lm.base.device)) for own in (token, padding)]
    assert torch.equal(*logits)


def test_a_reflector_of_pictures_writes_about_each(folder):
    lm = load(folder)
    reflector = LMReflector(lm.model, lm.tokenizer, max_length=MAX_LENGTH, max_new_tokens=4, temperature=1.0)
    together = reflector.write(prompts(), [0.1, 0.2, 0.3, 0.4, 0.5])
    alone = [
        reflector.write([prompt], [draw])[0] for prompt, draw in zip(prompts(), [0.1, 0.2, 0.3, 0.4, 0.5], strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("quantization", ["none", "4bit"])
def test_adapters_of_picture_models_are_saved_and_loaded(folder, quantization, tmp_path):
    wanted = section(folder, lora=LoraSection(r=4), quantization=quantization)
    lm = new_model(wanted, labels=LABELS, seed=0)
    assert not any(weight.requires_grad for name, weight in lm.model.named_parameters() if "lora_" not in name)
    add_choice_head(lm.base)
    policy = LMPolicy(lm.model, encoder_of(lm))
    decisions = policy.act(views(), [0.1, 0.3, 0.5, 0.7, 0.9])
    (part,) = policy.divide(views(), decisions, max_tokens=10_000)
    policy.score(part).logprobs.sum().backward()
    reached = {
        name: float(weight.grad.abs().max())
        for name, weight in lm.model.named_parameters()
        if "lora_B" in name and weight.grad is not None  # LLaVA reads its vision tower below the last layer
    }
    assert {"vision" in name for name in reached} == {True, False}
    assert min(reached.values()) > 0
    with torch.no_grad():
        for name, weight in lm.model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.05)
        before = read_side_by_side(lm)
        save_model(lm, tmp_path / "policy")
        after = read_side_by_side(load_model(tmp_path / "policy", wanted, trainable=False))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_trainer_takes_a_model_with_its_processor(tmp_path):
    FAMILIES["llava"](tmp_path / "llava")
    options = {"game": "number_line", "observation": "image"}
    trainer = rl.ReflectRLTrainer(
        AutoModelForImageTextToText.from_pretrained(tmp_path / "llava"),
        rl.ReflectRLConfig(
            output_dir=str(tmp_path / "out"),
            lessons=[rl.Lesson("main", iterations=1, env=options)],
            episodes=4,
            max_length=MAX_LENGTH,
            prefix_reuse=False,
            use_cpu=True,
        ),
        AutoProcessor.from_pretrained(tmp_path / "llava"),
        env="gym_cards",
        layout=PromptFormat(images=("policy",), labels="letters", history=0),
    )
    trainer.train()
    assert trainer.iteration == 1
    assert trainer.policy.act(views(), [0.5] * 5)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_pictures_and_text_are_not_confused(folder, tmp_path):
    lm = load(folder)
    with pytest.raises(InvalidInput, match=r"model\.images=true"):
        encoder_of(lm, pictures=False).rows(prompts())
    with pytest.raises(InvalidInput, match=r"set its images=true"):
        new_model(ModelSection(name=str(folder), max_length=MAX_LENGTH), labels=LABELS, seed=0)
    shape = BuiltinSection(layers=1, width=32, heads=2, vocabulary=320)
    text = make_base(
        ModelSection(builtin=shape, max_length=MAX_LENGTH), tmp_path / "text", corpus=CORPUS, labels=LABELS, seed=0
    )
    with pytest.raises(InvalidInput, match=r"model\.images"):
        new_model(section(tmp_path / "text"), labels=LABELS, seed=0)
    assert text.name == str(tmp_path / "text")


def test_states_of_pictures_are_not_kept_between_prompts(folder):
    assert refusal(load(folder).base, MAX_LENGTH) is not None
    with pytest.raises(ValueError, match="prefix_reuse"):
        ModelSection(images=True)
