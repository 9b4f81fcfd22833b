"""``reflectrl play`` as a user runs it: with piped input, in a real terminal, and as demonstrations for gen-data."""

from __future__ import annotations

import codecs
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import Done, reflectrl, refused

from reflectrl.core import NatLangEnv, Observation, Outcome, Task, register_env
from reflectrl.data_gen import read_rows
from reflectrl.data_gen.rows import read_samples
from reflectrl.envs.number_line import NumberLine

HOSTILE = "\x1b[2J[bold red]boo[/] :smile: \x07\u202e\ttab"
SHOWN = "\u241b[2J[bold red]boo[/] :smile: \u2407\ufffd"


class Hostile(NatLangEnv):
    """Environment whose texts contain terminal escapes and markup; it has an expert only if it is ``wise``."""

    name = "hostile_to_terminals"

    def __init__(self, wise: bool = False) -> None:
        super().__init__(horizon=2)
        self.wise = wise

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task("train-\x1b[31m")] if split == "train" else []

    def start(self, task: Task) -> None:
        pass

    def observe(self) -> Observation:
        return Observation(HOSTILE, (HOSTILE, "wait"), f"Task {HOSTILE}")

    def act(self, action: str) -> Outcome:
        return Outcome(0.0, illegal=action == "wait")

    def expert(self) -> str | None:
        return HOSTILE if self.wise else None


register_env(Hostile.name, Hostile)


def play(*arguments: object, typed: str = "") -> Done:
    return reflectrl("play", *arguments, typed=typed)


def test_the_expert_carries_its_words_from_step_to_step() -> None:
    """Regression: an expert that keeps notes seemed to forget them, because it was never told what it had said."""
    shown = play("note:Note", "corridor=2", "--expert", "--task", "train-left")
    assert re.findall(r"Door left\.", shown.out) == ["Door left."] * 4


class Terminal:
    """A real terminal, 30 columns wide, in which the command runs."""

    def __init__(self, *arguments: str) -> None:
        self._keyboard, inside = pty.openpty()
        termios.tcsetwinsize(inside, (24, 30))
        # it becomes the controlling terminal, so that Ctrl-C reaches the process
        own = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        self._seen = ""
        self._playing = subprocess.Popen(
            [sys.executable, "-c", own + "from reflectrl.cli import main; main()", "play", *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
            | {"TERM": "xterm"},
        )
        os.close(inside)

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def until(self, text: str) -> str:
        """Wait for ``text`` after the text of the last wait, and return everything on the screen so far."""
        began = len(self._seen)
        while text not in self._seen[began:]:
            assert self._read(), f"{text!r} never came: {self._seen}"
        return self._seen

    def end(self) -> tuple[int, str]:
        """Wait for the end, and return the exit code and everything that was on the screen."""
        while self._read():
            pass
        os.close(self._keyboard)
        return self._playing.wait(timeout=300), self._seen.replace("\r\n", "\n")

    def _read(self) -> bool:
        try:
            more = os.read(self._keyboard, 100_000)
        except OSError:  # the other side is closed
            return False
        self._seen += self._decoder.decode(more)
        return bool(more)


def test_the_expert_plays_with_its_reflections_and_bars() -> None:
    done = play("number_line", "size=8", "--expert", "--task", "1-to-0")
    assert done.code == 0, done.err
    assert done.out == (
        "Environment: number_line size=8\n"
        "Player: expert\n"
        "Rules: Reach the target by adding or subtracting one at a time.\n"
        "\n"
        "Episode 1 of 1: 1-to-0\n"
        "\n"
        "Step 1\n"
        "  Number 1, target 0.\n"
        "  Reflection: The target is lower.\n"
        "  Menu:\n"
        "      0%                        0. add one\n"
        "    100%  ████████████████████  1. subtract one\n"
        "  Action: subtract one\n"
        "  Reward: +1\n"
        "\n"
        "End\n"
        "  Number 0, target 0.\n"
        "Outcome: success after 1 step, return +1\n"
    )


def test_a_person_plays_through_a_pipe_with_or_without_hints() -> None:
    done = play("number_line", "size=4", "--task", "0-to-3", typed="add\n0\nwhat\nadd one\n")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("Reach the target by adding") == 1
    assert "Number 1, target 3.\n0. add one\n1. subtract one\nAction:\n" in done.out
    assert "'what'" in done.out
    assert "Reflection" not in done.out
    assert "\x1b" not in done.out
    assert done.out.endswith("Outcome: success after 3 steps, return +0.9\n")
    hinted = play("number_line", "--task", "0-to-2", "--hints", typed="0\nsub\n0\n0\n")
    assert hinted.code == 0, hinted.err
    assert "Reflection: The target is higher.\n" in hinted.out
    assert "Reflection: Mistake. The target is higher.\n" in hinted.out


def test_what_is_lost_is_shown() -> None:
    done = play("number_line", "size=4", "--task", "3-to-0", typed="sub\nadd\nsub\nadd\n")
    assert "Outcome: out of time after 4 steps, return -0.2" in done.out
    taxi = play("dangerous_taxi", "--seed", "1", typed="drop\n")
    assert "  Reward: -0.5, an illegal action\n" in taxi.out
    assert "Outcome: failure after 1 step, return -0.5\n" in taxi.out


def test_chance_plays_the_same_by_the_same_seed() -> None:
    first, again, other = (play("number_line", "--random", "--episodes", "3", "--seed", seed).out for seed in (4, 4, 5))
    assert first == again != other
    assert " 50%  ██████████" in first
    assert len(set(re.findall(r"Episode \d of 3: (\S+)", first))) == 3
    assert re.search(r"\n\d of 3 episodes succeeded\.\n$", first)


@pytest.mark.parametrize(("typed", "steps", "code"), [("\n\n", 2, 130), ("\n" * 9, 3, 0), ("\nq\n\n", 1, 130)])
def test_each_step_waits_for_enter_and_q_leaves(typed: str, steps: int, code: int) -> None:
    done = play("number_line", "--expert", "--task", "0-to-3", "--step", typed=typed)
    assert (done.code, done.out.count("\nStep ")) == (code, steps)


@pytest.mark.parametrize("player", ["--expert", "--hints"])
def test_nothing_that_an_environment_says_is_obeyed(player: str) -> None:
    done = play("hostile_to_terminals", "wise=true", player, typed="1\n0\n")
    assert done.code == 0, done.err
    assert f"0. {SHOWN}" in done.out
    if player == "--expert":
        for line in (f"  {SHOWN}", f"  Task {SHOWN}", f"Reflection: Next: {SHOWN}", f"Action: {SHOWN}"):
            assert line in done.out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.out + done.err)


def test_a_person_demonstrates_and_gen_data_learns_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = "5-to-7"
    assert task in {task.id for task in NumberLine(10).tasks("train")}
    arguments = ("number_line", "size=10", "--task", task, "--save", "demonstrations.jsonl")
    done = play(*arguments, typed="Two to go up.\nadd\n\n0\n")
    assert (done.code, done.err) == (0, "")
    assert "Your reflection, or Enter for: The target is higher.\nReflection: Two to go up.\n0. add one\n" in done.out
    assert done.out.endswith("Saved: 2 samples in demonstrations.jsonl\n")
    again = play(*arguments, "--expert")
    assert "Saved: 2 samples" in again.out
    _, samples = read_samples(tmp_path / "demonstrations.jsonl")
    assert [sample.reflection for sample in samples] == [
        *("Two to go up.", "Good. The target is higher.", "The target is higher.", "Good. The target is higher.")
    ]
    held_out = [*NumberLine(10).tasks("test"), *NumberLine(10).tasks("validation")]
    starts = {f"Number {task.options['start']}, target {task.options['target']}." for task in held_out}
    usable = [sample for sample in samples if sample.observation.text not in starts]
    assert "Two to go up." in {sample.reflection for sample in usable}

    def gen_data(run: str) -> Done:
        return reflectrl("gen-data", "--recipe", "number_line/nano_demonstrations", "--run", run, "data.samples=20")

    made = gen_data("one")
    assert made.code == 0, made.err
    assert f"20 samples, {len(usable)} of them demonstrated, " in made.err
    said = read_rows(tmp_path / "runs" / "one" / "sft" / "reflector.jsonl")
    assert [row.completion for row in said[: len(usable)]] == [f" {sample.reflection}" for sample in usable]
    acted = read_rows(tmp_path / "runs" / "one" / "sft" / "policy.jsonl")
    assert acted[0].prompt.text.endswith("Reflection: Two to go up.\nA. add one\nB. subtract one\nAction:\n")
    assert acted[0].completion == "A"
    unchanged = gen_data("one").err
    assert "skipped" in unchanged
    play(*arguments, "--expert")
    assert "skipped" in (changed := gen_data("one").err)
    assert "demonstrations.jsonl" in changed
    assert "demonstrations.jsonl" not in unchanged
    (tmp_path / "demonstrations.jsonl").unlink()
    assert gen_data("one").err == unchanged
    assert "demonstrations.jsonl" in refused("gen-data", "-r", "number_line/nano_demonstrations", "--run", "two")


def test_only_success_is_saved_and_without_an_expert_a_person_reflects(tmp_path: Path) -> None:
    new = tmp_path / "new.jsonl"
    assert "Not saved" in play("dangerous_taxi", "--save", new, typed="Odd.\ndrop\n").out
    done = play("hostile_to_terminals", "--save", new, typed="\nDark.\n1\nDark.\n1\n")
    assert done.code == 0, done.err
    assert "Nothing was typed" in done.out
    assert not new.exists()


def test_lucky_random_episodes_teach_a_policy_without_a_reflector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = play("number_line", "--random", "--episodes", "12", "--save", "lucky.jsonl")
    _, samples = read_samples(tmp_path / "lucky.jsonl")
    assert 0 < len({(sample.task.id, sample.seed) for sample in samples}) < 12, "only the successful ones"
    assert {sample.reflection for sample in samples} == {""}
    given = ("gen-data", "--recipe", "number_line/nano", "data.teacher=random", "data.demonstrations=[lucky.jsonl]")
    assert "lucky.jsonl, line 2 has no reflection" in refused(*given, "data.negatives=0.0")
    made = reflectrl(*given, "data.negatives=0.0", "players.reflector.player=none", "--run", "lucky")
    assert made.code == 0, made.err
    assert "no teacher is asked" in made.err
    rows = read_rows(tmp_path / "runs" / "lucky" / "sft" / "policy-no-reflection.jsonl")
    assert 0 < len(rows) <= len(samples), "the random teacher's own actions are not imitated"
    assert done.code == 0


@pytest.mark.parametrize("keys", ["", "quit\n"], ids=["the input ends", "quit"])
def test_a_person_leaves_and_what_is_saved_stays(keys: str, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    done = play("number_line", "--task", "3-to-2", "--save", path, "--episodes", "2", typed=f"\nsub\n{keys}")
    assert done.code == 130
    assert re.fullmatch(rf"\nstopped: .* Saved in {re.escape(str(path))}: 1 episode\.\n", done.err)
    assert len(read_samples(path)[1]) == 1


@pytest.mark.slow
def test_a_terminal_has_colours_a_width_and_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    options = ("--expert", "--step", "--episodes", "2", "--save", str(path))
    terminal = Terminal("number_line", "--task", "3-to-2", *options)
    assert "\x1b[1mEpisode 1 of 2" in terminal.until("3-to-2")
    terminal.type("\n")
    seen = terminal.until("Episode 2 of 2")
    assert "\x1b[32m" in seen
    assert "100%  ███████  1. subtract" in seen
    terminal.type("\x03")
    code, seen = terminal.end()
    assert code == 130
    assert seen.endswith("1 episode.\n")
    assert "Traceback" not in seen
    assert len(read_samples(path)[1]) == 1
