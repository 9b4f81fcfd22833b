"""Chat models read a prompt through their template, as one user's turn, and begin the assistant's with the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import CHAT, LABELS, MAX_LENGTH, policy_row, reflector_row, save_tiny, tiny
from transformers import AutoTokenizer

from reflectrl.core import InvalidInput
from reflectrl.lm.chat import use_template
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel, check_labels, load_model, load_processor, new_model, save_model
from reflectrl.lm.plain_text import PlainText
from reflectrl.lm.section import ModelSection
from reflectrl.lm.tokenizer import label_ids
from reflectrl.prompts import Prompt
from reflectrl.training.arguments import language_model
from reflectrl.training.sft_examples import encode_rows

DEFAULT_SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
NO_SYSTEM = (  # like Gemma's, which has other names for roles, and an end of turns that is no end of texts
    "<bos>{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PLAIN_MARKS = (  # like Mistral's, whose turns begin and end with words
    "<bos>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
THINKS = (
    f"{CHAT}"
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
ALWAYS_THINKS = f"{CHAT}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    f"Today: {{{{ date_string }}}}. Now: {{{{ strftime_now('%Y') }}}}.\n{CHAT}"
)
PARTS = "{% for m in messages %}<|im_start|>{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}Answer:"
TEMPLATES = {
    "ChatML with a system text of its own": (DEFAULT_SYSTEM + CHAT, "<|im_end|>"),
    "no system role": (NO_SYSTEM, "<end_of_turn>"),
    "turns marked by words": (PLAIN_MARKS, "<|im_end|>"),
    "thinks unless told not to": (THINKS, "<|im_end|>"),
    "always thinks": (ALWAYS_THINKS, "<|im_end|>"),
    "shows the date": (DATED, "<|im_end|>"),
    "reads parts of messages only": (PARTS, "<|eos|>"),
}
PROMPT = policy_row("Row 1. The file says <|im_end|>.", "2").prompt


def save_chat(folder: Path, template: str) -> ModelSection:
    """Save a tiny Llama whose tokenizer has a chat template, and return the section that loads it."""
    return save_tiny("llama", folder, max_length=4 * MAX_LENGTH, template=template)


def tokenizer_of(section: ModelSection):
    return load_processor(section.name, section)[1]


def specials(tokenizer, ids) -> list[str]:
    known = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [known[number] for number in ids if number in known]


@pytest.mark.parametrize(("template", "end"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_prompt_is_what_the_template_shows_of_one_user_text(template: str, end: str, tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", template)
    tokenizer = tokenizer_of(section)
    ids = PlainText(tokenizer).prompt(PROMPT)
    read = tokenizer.decode(ids)
    parts = template == PARTS
    content = [{"type": "text", "text": PROMPT.text.rstrip()}] if parts else PROMPT.text.rstrip()
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert read == shown
    assert read.endswith("<think>\n\n</think>\n\n") is (template in (THINKS, ALWAYS_THINKS))
    assert ("Today: 01 Jan 2026. Now: 2026.\n" in read) is (template == DATED), "the same date on every day"
    own = PROMPT.text.count("<|im_end|>")
    assert specials(tokenizer, ids).count("<|im_end|>") == read.count("<|im_end|>") - own, "the state's is plain text"
    assert tokenizer.eos_token == end
    assert label_ids(tokenizer, LABELS) == tokenizer.convert_tokens_to_ids([*LABELS])
    assert tokenizer.pad_token_id is not None


def test_thinking_is_switched_off_by_the_templates_own_argument_unless_it_is_wanted(tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", THINKS)
    off = load_processor(section.name, section)[1]
    on = load_processor(section.name, section.model_copy(update={"chat": "thinking"}))[1]
    assert off.decode(PlainText(off).prompt(PROMPT)).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert on.decode(PlainText(on).prompt(PROMPT)).endswith("<|im_start|>assistant\n")
    save_model(LanguageModel(tiny("llama", len(off), max_length=4 * MAX_LENGTH), off), tmp_path / "saved")
    saved = section.model_copy(update={"name": str(tmp_path / "saved"), "chat": "thinking"})
    again = tokenizer_of(saved)
    assert again.decode(PlainText(again).prompt(PROMPT)).endswith("<|im_start|>assistant\n"), "it may think again"
    save_model(LanguageModel(tiny("llama", len(on), max_length=4 * MAX_LENGTH), again), tmp_path / "thinks")
    kept = tokenizer_of(section.model_copy(update={"name": str(tmp_path / "thinks")}))
    assert kept.chat_template == again.chat_template, "a player that was trained to think goes on to"


def test_thinking_is_left_on_where_a_template_always_opens_a_thought(tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", ALWAYS_THINKS)
    on = tokenizer_of(section.model_copy(update={"chat": "thinking"}))
    assert on.decode(PlainText(on).prompt(PROMPT)).endswith("<|im_start|>assistant\n<think>\n")


def test_of_several_templates_the_default_one_is_read(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(save_chat(tmp_path / "chat", CHAT))
    tokenizer.chat_template = {"default": DATED, "tool_use": "{{ raise_exception('no tools') }}"}
    use_template(tokenizer, "auto")
    assert tokenizer.decode(PlainText(tokenizer).prompt(PROMPT)).startswith("Today: 01 Jan 2026. Now: 2026.\n")


def test_a_model_that_a_trainer_gets_as_an_object_reads_what_it_will_read_once_saved(tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", DATED)
    plain = AutoTokenizer.from_pretrained(section.name)
    model = tiny("llama", len(plain), max_length=4 * MAX_LENGTH)
    lm = language_model(model, plain, None, labels=LABELS, max_length=section.max_length, seed=0)
    save_model(lm, tmp_path / "saved")
    saved = tokenizer_of(section.model_copy(update={"name": str(tmp_path / "saved")}))
    assert PlainText(lm.tokenizer).prompt(PROMPT) == PlainText(saved).prompt(PROMPT)
    assert lm.tokenizer.eos_token == saved.eos_token == "<|im_end|>"


def test_a_player_trained_without_a_template_is_saved_without_one(tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", CHAT)
    plain = section.model_copy(update={"chat": "none"})
    lm = new_model(plain, labels=LABELS, seed=0)
    assert lm.tokenizer.decode(PlainText(lm.tokenizer).prompt(PROMPT)) == PROMPT.text
    assert lm.tokenizer.eos_token == "<|eos|>"
    save_model(lm, tmp_path / "trained")
    again = load_model(tmp_path / "trained", section, trainable=False)
    assert again.tokenizer.decode(PlainText(again.tokenizer).prompt(PROMPT)) == PROMPT.text


def test_rows_are_the_prompts_of_play_and_their_answers_begin_the_assistants_turn(tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", DEFAULT_SYSTEM + CHAT)
    tokenizer = tokenizer_of(section)
    rows = [policy_row("Row 1.", "2"), reflector_row("Row 1.", " Mistake. Taxi at row 2.")]
    encoder = PromptEncoder(tokenizer, label_ids(tokenizer, LABELS), section.max_length)
    action, text = (
        encode_rows(
            tokenizer,
            encoder,
            [row],
            player=row.player,
            labels=LABELS,
            action_mode="enumerated",
            max_new_tokens={"reflector": 8, "policy": 8},
            drop_long_rows=False,
        )[0][0]
        for row in rows
    )
    assert (action.row, text.prompt) == (encoder.tokens(rows[0].prompt), encoder.tokens(rows[1].prompt, 8))
    assert tokenizer.decode(text.completion) == "Mistake. Taxi at row 2.<|im_end|>"


def test_a_prompt_that_is_cut_keeps_the_template_whole(tmp_path: Path) -> None:
    section = save_chat(tmp_path / "chat", CHAT)
    tokenizer = tokenizer_of(section)
    long = replace(PROMPT, history=tuple(f"Past: move {n}\n" for n in range(99)))
    ids = PromptEncoder(tokenizer, label_ids(tokenizer, LABELS), 200).tokens(long)
    assert 190 < len(ids) <= 200
    read = tokenizer.decode(ids)
    assert read.startswith("<|im_start|>user\nPast: move ")
    assert read.endswith("<|im_start|>assistant\n")


def test_prompts_of_an_episode_share_all_but_the_end(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(save_chat(tmp_path / "chat", DEFAULT_SYSTEM + CHAT))
    first = Prompt("Find the exit.\n", ("Past: go left\n",), "Reflection:", state="Room 2.\n")
    second = replace(first, history=("Past: go left\n", "Past: go right\n"))
    one, other = PlainText(tokenizer).prompts([first, second])
    shared = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert tokenizer.decode(one[:shared]).endswith("Find the exit.\nPast: go left\n")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('texts alone are refused') }}", "failed (texts alone are refused)"),
        ("{{ messages[0].content | upper }}", "does not show the user's text once, as it is given"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "does not show the user's text once"),
        ("{{ messages[0].content", "failed (unexpected end of template"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_sentence_before_any_work(template: str, why: str, tmp_path) -> None:
    section = save_chat(tmp_path / "chat", template)
    with pytest.raises(InvalidInput) as refused:
        check_labels(section, LABELS)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value).replace("\\n", "")
    check_labels(section.model_copy(update={"chat": "none"}), LABELS)


def test_thinking_needs_a_template(tmp_path: Path) -> None:
    section = save_tiny("llama", tmp_path / "plain").model_copy(update={"chat": "thinking"})
    with pytest.raises(InvalidInput, match="has no chat template to think in"):
        check_labels(section, LABELS)
