"""What a saved policy read of its prompts, found with its tokenizer alone, as a report shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from records import policy_prompt_of
from tiny import LAYOUT, encoder, gpt2, tokenizer
from tiny_models import CHAT, save_tiny

from reflectrl.core import InvalidInput, Observation
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel, new_model, save_model
from reflectrl.lm.plain_text import SavedReader
from reflectrl.lm.thinking import writing_policy
from reflectrl.prompts.format import ActionMode

STATE = Observation("The number is 3. The target is 7.", ("add one", "subtract one"))
PROMPT = policy_prompt_of(LAYOUT, STATE, ["add one"] * 3, "Good. It is too low.", LAYOUT.menu_of(STATE))


@pytest.fixture
def saved(tmp_path: Path) -> SavedReader:
    tokenizer().save_pretrained(tmp_path)
    return SavedReader(tmp_path)


@pytest.mark.parametrize("mode", ["enumerated", "thought_choice", "json", "text", "thought_text"])
def test_it_reads_the_tokens_that_the_policy_reads(saved: SavedReader, mode: ActionMode) -> None:
    fitting = len(encoder(1000).tokens(PROMPT))
    for limit in (1000, fitting - 2 + (0 if mode == "enumerated" else 8)):
        [read] = saved.read([PROMPT], limit, mode, 8)
        if mode == "enumerated":
            expected = encoder(limit).tokens(PROMPT)
        else:
            lm = LanguageModel(gpt2(n_positions=1024), tokenizer())
            policy: Any = writing_policy(mode, lm, encoder(limit), max_new_tokens=8, temperature=1.0)
            [expected] = policy._prompts([type("View", (), {"prompt": PROMPT})])
        assert read.ids == expected
        assert "".join(map(saved.text, read.ids)) == read.prompt.text
        assert (read.prompt == PROMPT) is (limit == 1000)


@pytest.mark.parametrize("template", [CHAT, f"{CHAT}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"])
def test_it_reads_a_chat_without_running_its_template(template: str, tmp_path: Path) -> None:
    section = save_tiny("llama", tmp_path / "base", max_length=1000, template=template)
    lm = new_model(section, labels=(), seed=0)
    save_model(lm, tmp_path / "policy")
    (tmp_path / "policy" / "chat_template.jinja").write_text("{{ raise_exception('it was run') }}")
    saved = SavedReader(tmp_path / "policy")
    [read] = saved.read([PROMPT], 1000, "enumerated", 8)
    assert read.ids == PromptEncoder(lm.tokenizer, [], 1000).tokens(PROMPT)
    shown = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT.text.rstrip()}], tokenize=False, add_generation_prompt=True
    )
    assert "".join(map(saved.text, read.ids)) == shown


def test_a_template_that_no_run_has_shown_is_not_run(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, template=CHAT)
    with pytest.raises(InvalidInput, match="is not run for a report"):
        SavedReader(tmp_path)


def test_a_folder_without_a_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no tokenizer.json that can be loaded"):
        SavedReader(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInput, match="has no tokenizer.json that can be loaded"):
        SavedReader(tmp_path)


def test_it_needs_no_torch() -> None:
    code = "import reflectrl.lm.plain_text, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
