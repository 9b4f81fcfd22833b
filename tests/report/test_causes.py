"""Causes of a low success: each run here fails for one reason, which is the first that is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import reflectrl
from faulty import restored_registry
from records import chose, turn_of
from run_folders import episode, evaluated, iteration
from trained_runs import play_stages, small_recipe

from reflectrl.config import load_recipe
from reflectrl.core import NatLangEnv, Observation, Outcome, Task, Trajectory
from reflectrl.core.jsonl import write_jsonl
from reflectrl.core.registry import register_env
from reflectrl.data_gen.rows import read_rows, write_rows
from reflectrl.prompts import PromptFormat
from reflectrl.report import report
from reflectrl.report.causes import Cause, causes
from reflectrl.report.runs import read_runs
from reflectrl.report.verdict import judged_row, verdict
from reflectrl.rollout.iteration import SFTProgress
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.rollout.results import ReflectorShares, read_results, summarise, write_results

LAYOUT = PromptFormat()
SILENT = "players.reflector.player=none"
STEADY = [iteration(number, success=0.3, episode_return=0.3) for number in range(40)]


def ended(
    folder: Path,
    *overrides: str,
    success: float = 0.3,
    random: float | None = 0.05,
    expert: float | None = 1.0,
    metrics: Sequence[Any] = STEADY,
    **observed: Any,
) -> Path:
    """Write a run folder whose policy ended with a ``success``, and fields of its row."""
    evaluated(folder, success, 0.2, *overrides, metrics=metrics)
    return judged(folder, random=random, expert=expert, **observed)


def chosen(key: str) -> tuple[str, str]:
    """Overrides of a recipe in which a budget has chosen a setting."""
    return "budget.minutes=5", f"budget.chosen={{{key}: it fits}}"


def judged(folder: Path, *, random: float | None = 0.05, expert: float | None = 1.0, **observed: Any) -> Path:
    """Add the random policy and the expert to a run folder's results, and fields to the row after RLFT."""
    rows = read_results(folder / "eval.jsonl")
    rows = [replace(row, **observed) if row.policy == "rlft" else row for row in rows]
    for policy, success in (("random", random), ("expert", expert)):
        if success is not None:
            played = [episode(f"t-{n}", success=n < round(100 * success)) for n in range(100)]
            rows.append(summarise(policy, "none", "sampled", "test", played))
    write_results(folder / "eval.jsonl", rows)
    return folder


def found(folder: Path) -> list[Cause]:
    [run] = read_runs([folder])
    rows = {policy: row for policy in ("rlft", "random", "expert") if (row := judged_row(run, policy))}
    return causes(run, rows)


def first(folder: Path) -> tuple[str, str]:
    """Return name and clause of the first cause, after a check that it is the first that the verdict tells."""
    cause, *_ = found(folder)
    why = [sentence for sentence in verdict(read_runs([folder])) if sentence.startswith("Why: ")]
    assert why[0] == f"Why: {cause.why}. Try: {cause.remedy}."
    return cause.name, cause.why


# ---- when there is something to say ---------------------------------------------------------------------------------


COLLAPSING = [iteration(number, success=0.3, entropy=0.7 if number < 12 else 0.01) for number in range(40)]


@pytest.mark.parametrize(
    ("low", "run"),
    [
        (False, {"success": 0.95}),
        (True, {"success": 0.8}),
        (False, {"success": 0.8, "expert": 0.85}),
        (False, {"success": 0.5, "expert": None}),
        (True, {"success": 0.08, "expert": None}),
        (False, {"success": 0.08, "expert": None, "random": None}),
    ],
)
def test_causes_are_named_only_where_success_is_low(tmp_path: Path, low: bool, run: Any) -> None:
    assert bool(found(ended(tmp_path / "run", SILENT, metrics=COLLAPSING, **run))) == low


def test_a_threshold_says_what_is_possible_without_an_expert(tmp_path: Path) -> None:
    for threshold, low in ((0.9, True), (0.35, False)):
        lesson = f"rlft.lessons=[{{name: main, iterations: 40, success_threshold: {threshold}}}]"
        folder = ended(tmp_path / str(threshold), SILENT, lesson, success=0.5, expert=None, metrics=COLLAPSING)
        assert bool(found(folder)) == low


def test_a_low_success_without_a_proof_names_no_cause(tmp_path: Path) -> None:
    assert found(ended(tmp_path / "run", SILENT)) == []


# ---- the text --------------------------------------------------------------------------------------------------------


IN_DOORS = ("env.name=doors", SILENT, "eval.policies=[random, rlft, expert]")


class Doors(NatLangEnv):
    """Two doors, and a note on the right one, which stands in all texts, the first, the last, or none."""

    name = "doors"
    instructions = "Choose the door of the note."

    def __init__(self, note: str = "always") -> None:
        super().__init__(horizon=4)
        self._shown = note

    def tasks(self, split: str) -> Sequence[Task]:
        number = ("train", "validation", "test").index(split)
        return [Task(f"{split}-{n}", {"note": 100 * number + n}) for n in range(40)]

    def start(self, task: Task) -> None:
        self._note, self._inside = task.options["note"], False

    @property
    def _door(self) -> str:
        return ("left", "right")[self._note % 2]

    def observe(self) -> Observation:
        shown = self._shown in ("always", "last" if self._inside else "first")
        where = "in the hall" if self._inside else "outside"
        note = f" Note {self._note} says {self._door}." if shown else ""
        return Observation(f"You are {where}.{note}", ("walk in", "left", "right"))

    def act(self, action: str) -> Outcome:
        if not self._inside:
            self._inside = True
            return Outcome(0.0)
        right = action == self._door
        return Outcome(float(right), ended=True, success=right)

    def expert(self) -> str:
        return self._door if self._inside else "walk in"


def taught(folder: Path, note: str, *more: str) -> Path:
    """Write the rows of a teacher in ``Doors``, and results of a policy that fails."""
    with restored_registry():
        register_env("doors", Doors)
        play_stages(small_recipe(*IN_DOORS, f"env.options={{note: {note}}}", *more), folder, "gen-data")
    played = [episode(f"t-{n}", success=n < 30, reflection=None) for n in range(100)]
    write_results(folder / "eval.jsonl", [summarise("rlft", "none", "sampled", "test", played)])
    return judged(folder)


def test_rows_without_a_beginning_are_named(tmp_path: Path) -> None:
    source, folder = taught(tmp_path / "source", "last"), ended(tmp_path / "run", SILENT)
    for player in ("reflector", "policy"):
        rows = read_rows(source / "sft" / f"{player}.jsonl")
        write_rows(folder / "sft" / f"{player}.jsonl", [row for row in rows if row.step])
    name, why = first(folder)
    assert name == "starts"
    assert re.match(r"0 of \d+ training rows show how a game begins", why)


def test_equal_texts_that_need_different_actions_are_named(tmp_path: Path) -> None:
    folder = taught(tmp_path / "run", "first")
    name, why = first(folder)
    assert name == "ambiguous"
    share = re.search(r"different actions in (\d+) % of the cases", why)
    assert share is not None
    assert 30 < int(share[1]) < 60  # two doors, and the mistakes before them
    assert "prompt.history.show=transitions" in found(folder)[0].remedy
    write_jsonl(folder / "sft" / "policy-training.jsonl", [SFTProgress(9, 1.0, 1.0, 0.6, None)])
    assert "imitation" not in {cause.name for cause in found(folder)}  # which no player could
    folder = taught(tmp_path / "hidden", "never", "prompt.history={steps: 4, show: transitions}")
    assert first(folder)[0] == "ambiguous"
    assert found(folder)[0].remedy.endswith("or an expert that knows no more than a player")


@pytest.mark.parametrize(
    ("recipe", "overrides", "why"),
    [
        (
            "nano",
            ["env.options.turns=1"],
            "a policy without words did not learn to work it out in its one token; the words, right in 100 % of new",
        ),
        ("note", [], r"equal states ask for different actions in \d\d % .* carry what the state no longer shows"),
        ("note", ["players.reflector.carry=false"], None),
    ],
)
def test_why_words_paid_is_said_instead_of_why_the_policy_without_them_failed(
    tmp_path: Path, recipe: str, overrides: list[str], why: str | None
) -> None:
    folders = []
    for name, success, silent in (("spoken", 0.95, []), ("silent", 0.05, [SILENT, "players.reflector.carry=false"])):
        folders.append(tmp_path / name)
        changed = [*overrides, *silent, "data.samples=300", f"name={name}", "eval.controls=[]"]
        play_stages(load_recipe(f"safe/{recipe}", changed), folders[-1], "gen-data")
        played = [episode(f"t-{n}", success=n < 100 * success) for n in range(100)]
        row = summarise("rlft", "none" if silent else "local", "sampled", "test", played)
        write_results(folders[-1] / "eval.jsonl", [row])
        judged(folders[-1], **{"cut_prompts": 0.5} if silent else {"audit": shares(1.0, 1.0, 1.0, 0.1)})
    told = verdict(read_runs(folders))
    [worth] = [
        number for number, sentence in enumerate(told) if sentence.startswith("Reflections were worth 90 points")
    ]
    if why is None:
        assert any(sentence.startswith("silent: Why: ") for sentence in told)
    else:
        assert re.search(f"^Why: .*{why}", told[worth + 1])
        assert not any("silent: Why" in sentence for sentence in told)


def test_cut_prompts_are_named(tmp_path: Path) -> None:
    name, why = first(ended(tmp_path / "run", SILENT, cut_prompts=0.41))
    assert (name, why) == ("cut", "the policy's prompt was cut in 41 % of the steps, to 128 tokens")
    assert found(ended(tmp_path / "few", SILENT, cut_prompts=0.05)) == []


# ---- what was taught -------------------------------------------------------------------------------------------------


def test_a_policy_that_does_not_imitate_is_named(tmp_path: Path) -> None:
    folder = ended(tmp_path / "run", SILENT)
    measured = [(100, 1.2, 0.4), (200, 0.9, 0.62), (300, 1.1, 0.97)]
    lines = [SFTProgress(step, 1.0, loss, rate, None) for step, loss, rate in measured]
    write_jsonl(folder / "sft" / "policy-training.jsonl", lines)
    assert first(folder) == ("imitation", "SFT imitates 62 % of the expert's actions in held-out episodes")
    longer = "more of `sft.policy.steps` or `data.samples`"
    for number, (end, given, remedy) in enumerate(
        (
            ("bound", chosen("sft.policy.steps"), f"more `budget.minutes`, {longer}"),
            ("minutes", chosen("sft.policy.steps"), f"more `budget.minutes`, {longer}"),
            ("plateau", chosen("sft.policy.steps"), "more of `data.samples`"),
            ("bound", ("budget.minutes=5",), longer),
        )
    ):
        folder = ended(tmp_path / str(number), SILENT, *given)
        write_jsonl(folder / "sft" / "policy-training.jsonl", [*lines[:-1], replace(lines[-1], ended=end)])
        assert found(folder)[0].remedy == f"{remedy}, or a larger `model.builtin.width`"
    settled = ended(tmp_path / "pretrained", SILENT, "model.builtin={layers: 2, width: 64, heads: 2, pretrained: true}")
    write_jsonl(settled / "sft" / "policy-training.jsonl", [*lines[:-1], replace(lines[-1], ended="plateau")])
    assert found(settled)[0].remedy == "more of `data.samples`"
    source = taught(tmp_path / "source", "first", "prompt.history={steps: 4, show: transitions}")
    repeated = ended(tmp_path / "repeated", SILENT)
    for player in ("reflector", "policy"):
        write_rows(repeated / "sft" / f"{player}.jsonl", read_rows(source / "sft" / f"{player}.jsonl") * 5)
    write_jsonl(repeated / "sft" / "policy-training.jsonl", [*lines[:-1], replace(lines[-1], ended="plateau")])
    assert found(repeated)[0].remedy.startswith("more of the environment's training tasks")
    good = replace(lines[-1], held_out_loss=0.1)
    write_jsonl(folder / "sft" / "policy-training.jsonl", [good])
    assert found(folder) == []
    write_jsonl(folder / "sft" / "policy-training.jsonl", [replace(good, hardest="take", hardest_accuracy=0.1)])
    assert first(folder) == (
        "imitation",
        "SFT imitates 97 % of the expert's actions in held-out episodes, 10 % of those of the kind 'take'",
    )


def shares(right: float, right_new: float | None, good: float, misled: float) -> ReflectorShares:
    return ReflectorShares(200, right, 1.0, right_new, good, misled, 0.9, 0.1)


def test_wrong_reflections_that_mislead_are_named(tmp_path: Path) -> None:
    name, why = first(ended(tmp_path / "run", audit=shares(0.7, 0.2, 0.9, 0.4)))
    assert (name, why) == (
        "reflections",
        "reflections are right in new states in 20 % of the steps; the next action is good after 90 % of right ones "
        "and 40 % of wrong ones",
    )
    assert "`players.reflector.player=none`" in found(tmp_path / "run")[0].remedy
    assert "in new states" not in found(ended(tmp_path / "taught", audit=shares(0.2, None, 0.9, 0.4)))[0].why
    assert found(ended(tmp_path / "right", audit=shares(0.9, 0.9, 0.9, 0.4))) == []
    assert found(ended(tmp_path / "ignored", audit=shares(0.2, 0.2, 0.5, 0.5))) == []


# ---- what training lacked --------------------------------------------------------------------------------------------


def test_a_training_without_any_reward_is_named(tmp_path: Path) -> None:
    lost = [iteration(number, success=0.0, episode_return=-0.2) for number in range(40)]
    name, why = first(ended(tmp_path / "run", SILENT, success=0.05, expert=None, metrics=lost))
    assert name == "reward"
    assert why.startswith("none of the 1,280 training episodes succeeded or had a return above 0")
    late = [*lost[:36], *(iteration(number, success=0.1) for number in range(36, 40))]
    assert "none of the first 1,152" in first(ended(tmp_path / "late", SILENT, success=0.05, metrics=late))[1]
    paid = [{**line, "episode_return": 0.5} for line in lost]
    assert found(ended(tmp_path / "paid", SILENT, success=0.05, metrics=paid)) == []


def test_a_collapsed_entropy_is_named_with_its_iteration(tmp_path: Path) -> None:
    name, why = first(ended(tmp_path / "run", SILENT, metrics=COLLAPSING))
    assert name == "entropy"
    assert "below 5 % of its start from iteration 12 on, at a training success of 30 %" in why
    sure = [{**line, "success": 0.99} for line in COLLAPSING]
    assert [cause.name for cause in found(ended(tmp_path / "sure", SILENT, metrics=sure))] == ["memorised"]


def test_a_policy_that_knows_its_training_tasks_and_not_the_game_is_named(tmp_path: Path) -> None:
    flat = [iteration(number, success=0.7) for number in range(40)]
    name, why = first(ended(tmp_path / "run", SILENT, metrics=flat, success=0.3))
    assert name == "memorised"
    assert why.startswith("success at the end of training was 70 % in its tasks and is 30 % in new ones")
    assert found(ended(tmp_path / "alike", SILENT, metrics=flat, success=0.6)) == []


def test_minutes_that_left_no_time_for_play_are_named(tmp_path: Path) -> None:
    few = [iteration(number, success=0.3) for number in range(10)]
    few[-1]["ended"] = "iterations"
    assert found(ended(tmp_path / "stated", SILENT, "budget.minutes=5", metrics=few)) == []
    bounded = ended(tmp_path / "run", SILENT, *chosen("rlft.lessons.0.iterations"), metrics=few)
    patient = [*few[:-1], {**few[-1], "ended": "patience"}]
    assert found(ended(tmp_path / "patient", SILENT, *chosen("rlft.lessons.0.iterations"), metrics=patient)) == []
    assert first(bounded) == (
        "short",
        "the minutes left no time for more than 10 iterations of RLFT",
    )


def test_a_success_that_was_still_rising_is_named(tmp_path: Path) -> None:
    rising = [iteration(number, success=0.01 * number) for number in range(40)]
    name, why = first(ended(tmp_path / "run", SILENT, metrics=rising))
    assert (name, why) == (
        "rising",
        "training success was still rising when training ended, from 25 % to 34 % over the last 20 iterations",
    )
    unknown = ended(tmp_path / "unknown", SILENT, metrics=rising, success=0.5, expert=None, cut_prompts=0.5)
    assert [cause.name for cause in found(unknown)] == ["rising"]  # which is true whatever is possible
    risen = [iteration(number, success=min(0.2, 0.01 * number)) for number in range(40)]
    assert found(ended(tmp_path / "risen", SILENT, metrics=risen)) == []
    learned = [iteration(number, success=0.6 + 0.01 * number) for number in range(40)]
    [cause] = found(ended(tmp_path / "learned", SILENT, metrics=learned, success=0.6, expert=None))
    assert cause.name == "memorised"  # more of a training that succeeds in 94 % of its tasks would not help


# ---- how it shows ----------------------------------------------------------------------------------------------------


def walk(task: str, texts: Sequence[str], *, success: bool, values: Sequence[float] = ()) -> Trajectory:
    """Return an episode with a step in each text, and a reward at the end if it succeeds."""
    menu = ("left", "right")
    turns = tuple(
        turn_of(
            Observation(text, menu),
            menu,
            None,
            chose(0, "left", value=values[place] if values else 0.0),
            float(success and place == len(texts) - 1),
        )
        for place, text in enumerate(texts)
    )
    options = {"group": task.partition("-")[0]}
    return Trajectory(Task(task, options), 0, turns, terminated=success, truncated=not success, success=success)


def play(folder: Path, name: str, episodes: Sequence[Trajectory], layout: PromptFormat = LAYOUT) -> None:
    write_trajectories(folder / "trajectories" / name, Header("number_line", {}, layout), episodes)


def test_states_that_the_teacher_never_shows_are_named(tmp_path: Path) -> None:
    folder = taught(tmp_path / "run", "always")
    assert found(folder) == []

    def texts(note: int) -> list[str]:
        told = f"Note {note} says {('left', 'right')[note % 2]}."
        return [f"You are outside. {told}", f"You are in the hall. {told}"]

    with restored_registry():
        register_env("doors", Doors)
        layout = small_recipe(*IN_DOORS).layout(Doors.instructions)
    for where, first_note in (("rlft", 200), ("expert", 0)):
        walks = [walk(f"t-{n}", texts(first_note + n), success=True) for n in range(40)]
        play(folder, f"eval-{where}-none-sampled.jsonl", walks, layout)
    assert first(folder) == (
        "coverage",
        "the teacher's rows show 0 % of the states that the policy visits and 100 % of the expert's",
    )
    assert found(folder)[0].remedy.startswith("more of `data.noise`")  # it strays where the expert never is
    walks = [walk(f"t-{n}", texts(200 + n), success=True) for n in range(40)]
    play(folder, "eval-expert-none-sampled.jsonl", walks, layout)
    assert found(folder) == []  # every state is new, to the expert as well
    play(folder, "eval-rlft-none-sampled.jsonl", [walk(f"t-{n}", texts(n), success=True) for n in range(40)], layout)
    assert found(folder) == []


def test_a_value_head_that_knows_nothing_of_a_group_is_named(tmp_path: Path) -> None:
    for name, blind in (("blind", True), ("seeing", False)):
        folder = ended(tmp_path / name, SILENT, "rlft.advantage={kind: gae}", "rlft.gamma=1")
        played = []
        for n in range(100):
            won = bool(n % 2)
            easy, hard = [0.9 * won] * 2, [0.4] * 2 if blind else [0.9 * won] * 2
            played.append(walk(f"easy-{n}", ["a", "b"], success=won, values=easy))
            played.append(walk(f"hard-{n}", ["a", "b"], success=won, values=hard))
        play(folder, "rlft-00000.jsonl", played)
        few = [{**line, "ended": "iterations" if n == 9 else None} for n, line in enumerate(STEADY[:10])]
        short = ended(tmp_path / f"{name}-short", SILENT, *chosen("rlft.lessons.0.iterations"), metrics=few)
        play(short, "rlft-00000.jsonl", played)
        assert [cause.name for cause in found(short)] == ["short"]  # in which no head learns
        if blind:
            assert first(folder) == (
                "values",
                "the value head explains 0 % of the variance of the returns of group 'hard'",
            )
        else:
            assert found(folder) == []


def test_a_value_head_is_judged_by_all_the_rewards_that_it_estimates(tmp_path: Path) -> None:
    for weight, named in ((1.0, []), (0.0, ["values"])):
        rewards = f"rlft.rewards={{env: 1.0, novelty: {weight}}}"
        folder = ended(tmp_path / f"{weight}", SILENT, "rlft.advantage={kind: gae}", "rlft.gamma=1", rewards)
        played = []
        for n in range(100):  # an episode of novelty 9 or 5, which half of either win
            new = 9.0 if n // 2 % 2 else 5.0
            walked = walk(f"easy-{n}", ["a"], success=bool(n % 2), values=[new])
            [turn] = walked.turns
            played.append(replace(walked, turns=(replace(turn, rewards={**turn.rewards, "novelty": new}),)))
        play(folder, "rlft-00000.jsonl", played)
        assert [cause.name for cause in found(folder)] == named


def test_episodes_that_the_horizon_ends_are_named(tmp_path: Path) -> None:
    for name, success, named in (("run", False, True), ("lost", True, False)):
        folder = ended(tmp_path / name, SILENT)
        played = [walk(f"t-{n}", ["a"] * 10, success=success or n < 30) for n in range(100)]
        play(folder, "eval-rlft-none-sampled.jsonl", played)
        if named:
            assert first(folder) == ("horizon", "the horizon of 10 steps ends 70 % of the episodes")
        else:
            assert found(folder) == []


# ---- where causes are shown ------------------------------------------------------------------------------------------


def test_at_most_three_causes_are_shown(tmp_path: Path) -> None:
    rising = [iteration(n, success=0.01 * n, entropy=0.7 if n < 12 else 0.01) for n in range(40)]
    bad = ended(tmp_path / "bad", metrics=rising, cut_prompts=0.5, audit=shares(0.2, 0.2, 0.9, 0.4))
    assert [cause.name for cause in found(bad)] == ["cut", "reflections", "entropy"]
    good = ended(tmp_path / "good", "seed=1", success=0.9, cut_prompts=0.5)
    told = [sentence for sentence in verdict(read_runs([bad, good])) if "Why: " in sentence]
    assert len(told) == 3
    assert all(sentence.startswith("bad: Why: ") for sentence in told)
    shown = reflectrl("report", bad, "--out", tmp_path / "bad.html").out
    assert shown.count("Why: ") == 3
    assert "Why: the policy&#x27;s prompt was cut" in report([bad], tmp_path / "bad.html").read_text()
