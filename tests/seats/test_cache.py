from __future__ import annotations

from records import shown

from reflectrl.core import Utterance
from reflectrl.prompts import Prompt
from reflectrl.prompts.players import CachedPlayer


class Echo(CachedPlayer):
    """Player that repeats each prompt and its draw."""

    def write(self, prompts, draws):
        return [Utterance(f"{prompt.text} {draw}") for prompt, draw in zip(prompts, draws, strict=True)]


def said(player, texts, draw=0.5):
    """Return the words about some prompts, and how many of them were newly written."""
    before = player.written
    views = shown([Prompt("", (), text) for text in texts])
    return [words.text for words in player.say(views, [draw] * len(views))], player.written - before


def test_equal_prompts_are_written_once_without_a_draw():
    player = Echo(10)
    assert player.hit_rate == 0.0
    assert said(player, "aba") == (["a 0.0", "b 0.0", "a 0.0"], 2)
    assert said(player, "cab") == (["c 0.0", "a 0.0", "b 0.0"], 1)
    assert (player.asked, player.written, player.hit_rate) == (6, 3, 0.5)
    player.clear()
    assert said(player, "a") == (["a 0.0"], 1)


def test_without_a_cache_everything_is_written_with_its_draw():
    player = Echo(0)
    assert said(player, "aa", 0.1) == (["a 0.1", "a 0.1"], 2)
    assert (player.asked, player.written, player.hit_rate) == (2, 2, 0.0)
