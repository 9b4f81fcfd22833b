from __future__ import annotations

import pytest

from reflectrl.core.chat import BadReply
from reflectrl.prompts import Menu
from reflectrl.prompts.chat import read_label

MENU = Menu(("0", "1", "2", "3"), ("cat 'a b.md'", "turn left.", "use (lamp)", "turn left"))


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("around", ["{}", "`{}`", "**{}**.", '"{}"\n', "({})", " [{}] "])
def test_a_whole_line_is_read_whatever_signs_its_action_ends_with(place: int, around: str) -> None:
    line = MENU.text.splitlines()[place]
    assert read_label(around.format(line), MENU) == place
    assert read_label(around.format(MENU.labels[place]), MENU) == place


@pytest.mark.parametrize("reply", ["", "...", "4", "turn left", "1. turn right.", "0 or 1"])
def test_anything_else_is_no_label(reply: str) -> None:
    with pytest.raises(BadReply, match="Answer with exactly one of: 0, 1, 2, 3"):
        read_label(reply, MENU)
