from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput, NatLangEnv, Task, check_env
from reflectrl.envs.safe import Safe


def begun(**options: object) -> Safe:
    env = Safe(**options)
    env.reset(seed=0, options={"task": env.tasks("train")[3]})
    return env


@pytest.mark.parametrize("options", [{}, {"note": "once", "turns": 0}, {"wheels": 9, "turns": 9}])
def test_it_passes_our_checks_and_its_expert_opens_it(options):
    check_env(Safe(**options))
    env = begun(**options)
    shares = [env.step(env.expert())[1] for _ in range(env.wheels)]
    assert sum(shares) == pytest.approx(1.0)
    assert (env.observation.text, env.expert(), env.reflection()) == ("The safe is open.", None, None)


def test_the_sums_are_written_one_by_one():
    env = begun()
    assert env.observation.text == "Wheel 1 is at 3. Turn it by 2, 5, 7."
    assert (env.reflection(), env.expert()) == ("3+2=5 5+5=2 2+7=1", "stop at 1")
    text, reward, terminated, _, info = env.step("stop at 1")
    assert (text, reward, terminated) == ("Wheel 2 is at 1. Turn it by 0, 7, 4.", pytest.approx(1 / 3), False)
    _, reward, terminated, _, info = env.step("stop at 0")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_a_note_that_is_shown_once_lasts_in_the_words_alone():
    env = begun(note="once", turns=0)
    assert env.observation.text == "Wheel 1 stops at 3.\nWheel 2 stops at 2.\nWheel 3 stops at 5."
    assert env.reflection() == "3; 2; 5"
    assert env.step("stop at 3")[0] == "Wheel 2."
    assert env.reflection("3; 2; 5") == "2; 5"


def test_no_task_is_in_two_splits():
    env: NatLangEnv = Safe()
    ids = [task.id for split in ("train", "validation", "test") for task in env.tasks(split)]
    assert len(ids) == len(set(ids)) == 2300


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"wheels": 0}, "wheels=0"),
        ({"turns": 10}, "turns=10"),
        ({"wheels": 2.0}, "wheels=2.0"),
        ({"note": "no"}, "'no'"),
    ],
)
def test_impossible_safes_are_refused(options, given):
    with pytest.raises(InvalidInput, match=given):
        Safe(**options)
    with pytest.raises(InvalidInput, match="'note-x'"):
        Safe().reset(options={"task": Task("note-x", {"note": 2300})})
