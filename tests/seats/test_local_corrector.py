"""A local model as the corrector: it must choose an answer, and is asked once about each thought."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from thinkers import Thinks
from tiny import LAYOUT, gpt2, tokenizer

from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.writer import LocalModel
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.corrector import CUE, JUDGED, LocalCorrector
from reflectrl.seats.table import Seat


def corrected(verdict: int, thought: str = "The target is lower.") -> tuple[LocalCorrector, list[str]]:
    """Return a corrector that finds all thoughts wrong (0) or right (1), and its words in a rollout."""
    model = gpt2(spread=0.3, n_positions=512)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    model.lm_head.bias = None
    level = tokenizer().convert_tokens_to_ids(str(verdict))
    corrector = LocalCorrector(LocalModel(LanguageModel(model, tokenizer()), JUDGED, max_length=512, cue=CUE))
    with torch.no_grad():
        model.transformer.ln_f.bias.add_(5 * model.lm_head.weight[level])
    env = NumberLine(size=8)
    episodes = [Episode(task, seed) for seed, task in enumerate(env.tasks("train")[:4])]
    seats, layout = [Seat("corrector", corrector)], replace(LAYOUT, history=0)
    played = rollout([env], episodes, policy=Thinks(thought), seats=seats, layout=layout)
    return corrector, [turn.said["corrector"].text for each in played for turn in each.turns]


@pytest.mark.slow
def test_an_empty_thought_is_corrected_too() -> None:
    _, words = corrected(0, "")
    assert all(words)


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [0, 1])
def test_right_thoughts_are_left_and_wrong_ones_rewritten(verdict: int) -> None:
    corrector, words = corrected(verdict)
    assert {bool(text) for text in words} == {verdict == 0}
    assert len(corrector._known) < len(words)  # equal thoughts about equal states are judged once
