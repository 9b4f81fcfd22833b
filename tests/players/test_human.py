from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from records import policy_prompt_of, reflector_prompt_of, shown

from reflectrl.core import Hints, Observation, ReflectRLError
from reflectrl.players.human import HumanPolicy, HumanReflector, PlayerLeft
from reflectrl.prompts import Prompt, PromptFormat

LAYOUT = PromptFormat(instructions="Leave the house.", labels="letters")
HALL = Observation("A hall.", ("go east", "go west", "Sing", "quit smoking"))


def prompt(
    *actions: str, text: str = "A hall.", reflection: str | None = "East is bright.", labels: str = "letters"
) -> Prompt:
    layout = PromptFormat(instructions="Leave the house.", labels=labels)
    here = Observation(text, actions or HALL.actions)
    return policy_prompt_of(layout, here, [], reflection, layout.menu(here, random.Random(0)))


def typing(*lines: str) -> Callable[[], str]:
    """What ``input`` would return for these lines, and then the end of the input."""
    rest = iter(lines)

    def read() -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    return read


def play(asked: Prompt, *lines: str) -> tuple[str, str]:
    out = io.StringIO()
    [decision] = HumanPolicy(typing(*lines), out).act(shown([asked]), [0.5])
    assert asked.menu is not None
    assert asked.menu.actions[decision.choice.index] == decision.action
    return decision.action, out.getvalue()


def test_a_person_reads_what_a_model_would_read() -> None:
    asked = prompt()
    assert play(asked, "A")[1] == asked.text
    for part in ("Leave the house.", "A hall.", "Reflection: East is bright.", "B. go west"):
        assert part in asked.text


def test_the_rules_are_shown_once_and_again_when_they_change() -> None:
    out = io.StringIO()
    policy = HumanPolicy(typing(*"AAA"), out)
    policy.act(shown([prompt(), prompt()]), [0.1, 0.2])
    assert out.getvalue().count("Leave the house.") == 1
    assert out.getvalue().count("A hall.") == 2
    policy.act(shown([policy_prompt_of(PromptFormat(instructions="Sit."), HALL, [], None, prompt().menu)]), [0.3])  # type: ignore[arg-type]
    assert "Sit." in out.getvalue()


def test_a_decision_claims_no_probabilities() -> None:
    [decision] = HumanPolicy(typing("B"), io.StringIO()).act(shown([prompt()]), [0.9])
    assert (decision.choice.index, decision.logprob, decision.entropy) == (1, 0.0, 0.0)
    assert decision.choice.probabilities == ()


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("C", "Sing"),
        ("c", "Sing"),
        ("  c ", "Sing"),
        ("sing", "Sing"),
        ("GO  WEST", "go west"),
        ("go e", "go east"),
        ("s", "Sing"),
        ("quit s", "quit smoking"),
    ],
)
def test_an_answer_is_a_label_or_an_action_or_the_beginning_of_one(answer: str, action: str) -> None:
    assert play(prompt(), answer)[0] == action


def test_a_label_goes_before_an_action_and_an_exact_case_before_another() -> None:
    assert play(prompt("B", "left"), "B")[0] == "left"
    assert play(prompt("1", "0", labels="numbers"), "1")[0] == "0"
    assert play(prompt("GO", "go", "x"), "go")[0] == "go"
    assert play(prompt("sing", "sing loud"), "sing")[0] == "sing"
    assert play(prompt("go", "Quit"), "quit")[0] == "Quit"


@pytest.mark.parametrize(
    ("answer", "facts"),
    [("go", ("'go'", "go east, go west")), ("sign", ("'sign'", "'Sing'")), ("7", ("'7'",)), ("", ("Nothing",))],
)
def test_nonsense_is_answered_with_a_sentence_and_asked_again(answer: str, facts: tuple[str, ...]) -> None:
    action, seen = play(prompt(), answer, answer, "A")
    assert action == "go east"
    assert all(seen.count(fact) == 2 for fact in facts)


def test_several_prompts_are_asked_one_after_the_other() -> None:
    out = io.StringIO()
    read, seen = typing("A", "B"), []

    def watched() -> str:
        seen.append(out.getvalue())
        return read()

    decisions = HumanPolicy(watched, out).act(shown([prompt(text="Room one."), prompt(text="Room two.")]), [0.0, 0.0])
    assert [decision.action for decision in decisions] == ["go east", "go west"]
    assert ["Room two." in text for text in seen] == [False, True]


@pytest.mark.parametrize("lines", [["quit"], [" QUIT "], ["nonsense", "quit"], ["nonsense"]])
def test_quit_and_the_end_of_the_input_leave(lines: list[str]) -> None:
    with pytest.raises(PlayerLeft, match="input" if lines[-1] == "nonsense" else "quit") as caught:
        play(prompt(), *lines)
    assert isinstance(caught.value, ReflectRLError)
    assert caught.value.exit_code == 130


def test_a_state_cannot_command_the_terminal() -> None:
    assert "a\u241b[2Jb\u240dc\té\n" in play(prompt(text="a\x1b[2Jb\rc\té"), "A")[1]


def test_standard_input_and_output_are_used_by_themselves() -> None:
    code = (
        "from records import shown; from reflectrl.players.human import HumanPolicy;"
        "from reflectrl.prompts import Menu, Prompt;"
        "views = shown([Prompt('', (), 'A hall.\\n', Menu(('0', '1'), ('go', 'wait')))]);"
        "print('played', HumanPolicy().act(views, [0.0])[0].action);"
        "HumanPolicy().act(views, [0.0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="what\nwait\n",
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout.startswith("A hall.\n'what' is no label")
    assert "played wait\nA hall.\n" in done.stdout
    assert "PlayerLeft: the input ended" in done.stderr


def reflect(*lines: str, advice: str | None = "East is bright.", text: str = "A hall.") -> tuple[str, str]:
    """What was said, and the whole screen once an action was chosen too."""
    out = io.StringIO()
    policy = HumanPolicy(typing(*lines, "A"), out)
    here = Observation(text, HALL.actions)
    [said] = HumanReflector(policy).say(shown([reflector_prompt_of(LAYOUT, here)], Hints(reflection=advice)), [0.5])
    policy.act(shown([policy_prompt_of(LAYOUT, here, [], said.text, LAYOUT.menu(here, random.Random(0)))]), [0.5])
    return said.text, out.getvalue()


def test_a_person_reflects_and_then_sees_only_what_is_new() -> None:
    said, seen = reflect("West  is\tdark.")
    assert said == "West is dark."
    assert seen == (
        "Leave the house.\nPast: none\nA hall.\nYour reflection, or Enter for: East is bright.\n"
        "Reflection: West is dark.\nA. go east\nB. go west\nC. Sing\nD. quit smoking\nAction:\n"
    )


def test_a_reflection_is_typed_or_the_suggested_one_and_always_text() -> None:
    assert reflect("  ")[0] == "East is bright."
    said, seen = reflect("", " ", "Dark.", advice=None)
    assert said == "Dark."
    assert seen.count("Nothing was typed") == 2
    assert reflect("Da\x1b[Drk\u202e.")[0] == "Da [Drk ."
    assert "Enter for: a\u241b[2Jb\n" in reflect("", advice="a\x1b[2Jb")[1]


@pytest.mark.parametrize("lines", [(), ("quit",), ("QUIT",)])
def test_they_leave_a_reflection_too(lines: tuple[str, ...]) -> None:
    reflector = HumanReflector(HumanPolicy(typing(*lines), io.StringIO()))
    with pytest.raises(PlayerLeft, match="quit" if lines else "input"):
        reflector.say(shown([reflector_prompt_of(LAYOUT, HALL, [])]), [0.5])


def test_the_same_state_is_shown_again_in_the_next_step() -> None:
    out = io.StringIO()
    policy = HumanPolicy(typing("Dark.", "A", "Dark.", "A"), out)
    reflector = HumanReflector(policy)
    for _ in range(2):
        reflector.say(shown([reflector_prompt_of(LAYOUT, HALL, [])]), [0.5])
        policy.act(shown([policy_prompt_of(LAYOUT, HALL, [], "Dark.", LAYOUT.menu(HALL, random.Random(0)))]), [0.5])
    assert out.getvalue().count("A hall.") == 2
    assert out.getvalue().count("Leave the house.") == 1
