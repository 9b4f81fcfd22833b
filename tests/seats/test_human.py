from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from records import policy_prompt_of, reflector_prompt_of, shown

from reflectrl.core import Choice, Hints, Observation
from reflectrl.core.errors import PlayerLeft
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.seats.others import HumanPolicy, HumanReflector

LAYOUT = PromptFormat(instructions="Leave the house.", labels="letters")
HALL = Observation("A hall.", ("go east", "go west", "Sing", "quit smoking"))


def prompt(
    *actions: str, text: str = "A hall.", said: str | None = "East is bright.", labels: str = "letters"
) -> Prompt:
    layout = PromptFormat(instructions="Leave the house.", labels=labels)  # type: ignore[arg-type]
    here = Observation(text, actions or HALL.actions)
    return policy_prompt_of(layout, here, [], said, layout.menu_of(here))


def typing(*lines: str) -> Callable[[], str]:
    """Return a function that returns these lines as ``input`` does, and then raises EOFError."""
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
    index = asked.menu.actions.index(decision.action)
    assert (decision.choice, decision.logprob, decision.entropy) == (Choice(index), 0.0, 0.0)  # no probabilities
    return decision.action, out.getvalue()


def reflect(*lines: str, advice: str | None = "East is bright.", steps: int = 1) -> tuple[str, str]:
    """Reflect and act in each step, and return the last reflection and everything on the screen."""
    out = io.StringIO()
    policy = HumanPolicy(typing(*lines), out)
    for _ in range(steps):
        [said] = HumanReflector(policy).say(shown([reflector_prompt_of(LAYOUT, HALL)], Hints(reflection=advice)), [0.5])
        policy.act(shown([prompt(said=said.text)]), [0.5])
    return said.text, out.getvalue()


def test_a_person_reads_a_harmless_prompt() -> None:
    asked = prompt()
    assert play(asked, "A")[1] == asked.text
    assert "a\u241b[2Jb\u240dc\té\n" in play(prompt(text="a\x1b[2Jb\rc\té"), "A")[1]


@pytest.mark.parametrize(
    ("actions", "answer", "action"),
    [
        ((), "C", "Sing"),
        ((), "  c ", "Sing"),
        ((), "sing", "Sing"),
        ((), "GO  WEST", "go west"),
        ((), "go e", "go east"),
        ((), "quit s", "quit smoking"),
        (("B", "left"), "B", "left"),  # labels take precedence over actions, and the exact case over others
        (("GO", "go", "x"), "go", "go"),
        (("sing", "sing loud"), "sing", "sing"),
        (("go", "Quit"), "quit", "Quit"),
    ],
)
def test_a_person_answers_with_a_label_or_an_action(actions: tuple[str, ...], answer: str, action: str) -> None:
    assert play(prompt(*actions), answer)[0] == action


@pytest.mark.parametrize(
    ("answer", "facts"),
    [("go", ("'go'", "go east, go west")), ("sign", ("'sign'", "'Sing'")), ("7", ("'7'",)), ("", ("Nothing",))],
)
def test_nonsense_is_answered_with_a_sentence_and_asked_again(answer: str, facts: tuple[str, ...]) -> None:
    action, seen = play(prompt(), answer, answer, "A")
    assert action == "go east"
    assert all(seen.count(fact) == 2 for fact in facts)


def test_a_person_is_asked_one_prompt_after_the_other() -> None:
    out = io.StringIO()
    read, seen = typing("A", "B", "A"), []

    def watched() -> str:
        seen.append(out.getvalue())
        return read()

    policy = HumanPolicy(watched, out)
    decisions = policy.act(shown([prompt(text="Room one."), prompt(text="Room two.")]), [0.0, 0.0])
    assert [decision.action for decision in decisions] == ["go east", "go west"]
    assert ["Room two." in text for text in seen] == [False, True]
    assert out.getvalue().count("Leave the house.") == 1
    policy.act(shown([policy_prompt_of(PromptFormat("Sit."), HALL, [], None, LAYOUT.menu_of(HALL))]), [0.3])
    assert "Sit." in out.getvalue()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [((), "input"), (("nonsense",), "input"), (("quit",), "quit"), (("nonsense", " QUIT "), "quit")],
)
def test_quit_and_the_end_of_the_input_leave(lines: tuple[str, ...], reason: str) -> None:
    policy = HumanPolicy(typing(*lines, *lines), io.StringIO())
    with pytest.raises(PlayerLeft, match=reason) as caught:
        policy.act(shown([prompt()]), [0.5])
    assert caught.value.exit_code == 130
    if "nonsense" not in lines:  # which would be a reflection
        with pytest.raises(PlayerLeft, match=reason):
            HumanReflector(policy).say(shown([reflector_prompt_of(LAYOUT, HALL)]), [0.5])


def test_a_person_reflects_and_then_sees_only_what_is_new() -> None:
    said, seen = reflect("West  is\tdark.", "A", "West is dark.", "B", steps=2)
    assert said == "West is dark."
    step = (
        "Past: none\nA hall.\nYour reflection, or Enter for: East is bright.\n"
        "Reflection: West is dark.\nA. go east\nB. go west\nC. Sing\nD. quit smoking\nAction:\n"
    )
    assert seen == f"Leave the house.\n{step}{step}"


def test_a_reflection_is_typed_or_the_suggested_one_and_always_text() -> None:
    assert reflect("  ", "A")[0] == "East is bright."
    said, seen = reflect("", " ", "Dark.", "A", advice=None)
    assert (said, seen.count("Nothing was typed")) == ("Dark.", 2)
    assert reflect("Da\x1b[Drk\u202e.", "A")[0] == "Da [Drk ."
    assert "Enter for: a\u241b[2Jb\n" in reflect("", "A", advice="a\x1b[2Jb")[1]
