"""Both sides of the comparison with TRL train and are scored; the one of TRL trains what the policy wrote, alone."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import peers
import peers_trl
import pytest
from peers import Score, Trial, compare
from peers_trl import Episode
from tiny import tokenizer

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, Task


def test_an_episode_of_trl_is_one_sequence_whose_actions_alone_are_trained() -> None:
    recipe, words = (
        load_recipe(
            "number_line/nano", ["prompt.action_mode=text", "prompt.history=0", "sft.policy.label_smoothing=0"]
        ),
        tokenizer(),
    )
    task = Task("5-to-8", {"start": 5, "target": 8})
    episode = Episode(recipe, words, task, seed=0)
    for text in (" add one", " nothing"):
        episode.say([*words(text, add_special_tokens=False)["input_ids"], words.eos_token_id], random.Random(0))
    written = [token for token, ours in zip(episode.ids, episode.ours, strict=True) if ours]
    assert words.decode(written, skip_special_tokens=True) == " add one nothing"
    shown = words.decode([token for token, ours in zip(episode.ids, episode.ours, strict=True) if not ours])
    assert [line for line in shown.splitlines() if "Number" in line][:2] == [
        "Number 5, target 8.",
        "Action:Number 6, target 8.",
    ]
    assert (episode.steps, episode.unparsed) == (2, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # of transformers, in TRL
def test_trl_is_trained_for_its_time_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(peers_trl, "EPISODES", 10)
    trial = Trial("line", "trl", 0, 1e-3, 1.0, tmp_path)
    trial.folder.mkdir()
    score = trial.run(2.0)
    assert 0 <= score.sampled <= 1
    assert score.steps > 32
    assert 0.5 < score.seconds < 20


def test_the_table_has_the_rate_that_validated_best_and_the_worst_seed(tmp_path: Path) -> None:
    reached = Score(0.5, 0.8, 0.9, 0.7, 0.0, 30.0, 60.0, 6000)
    scores = {(peers.RATES[0], 100): reached, (peers.RATES[1], 100): replace(reached, validation=0.9)}
    scores |= {(peers.RATES[1], seed): replace(reached, sampled=sampled) for seed, sampled in ((0, 1.0), (1, 0.6))}
    for (rate, seed), score in scores.items():
        trial = Trial("line", "text", seed, rate, 60.0, tmp_path)
        trial.folder.mkdir()
        asked = json.dumps({**asdict(trial), "out": str(tmp_path), "sft_seconds": 0.0})
        (trial.folder / "asked.json").write_text(asked)
        (trial.folder / "score.json").write_text(json.dumps(asdict(score)))
    [row] = compare("line", ["text"], [0, 1], 60.0, 0.0, tmp_path)
    assert row == ["text", "0.001", "30", "50% (50%)", "80% (60%)", "90% (90%)", "0.0%", "6,000", "10.0"]
    with pytest.raises(InvalidInput, match="other times"):
        compare("line", ["text"], [0, 1], 240.0, 0.0, tmp_path)
