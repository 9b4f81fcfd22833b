"""Searches: the meaning of --space, and real studies of Optuna that are shared, killed, pruned and continued."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import signal
from pathlib import Path

import optuna
import pytest
from command_line import reflectrl, refused
from faulty import wait_until
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from warm_processes import WarmProcess, command_line

from reflectrl.core import InvalidInput
from reflectrl.pipeline.tune import JOURNAL, read_space

TINY = (
    *("env.options.size=8", "data.samples=20", "sft.enabled=false", "players.reflector.player=none"),
    *("model.builtin.layers=1", "rlft.lessons.0.iterations=2", "rlft.episodes=2", "rlft.validation={episodes: 6}"),
    *("eval.episodes=2", "eval.max_tasks=2", "eval.greedy=false", "eval.policies=[rlft]"),
)
RATE, GAMMA = "rlft.learning_rate", "rlft.gamma"
ASKED = ("tune", "number_line/nano", "--space", f"{RATE}=1e-4..1e-2:log", "--space", f"{GAMMA}=0.9,1")


def study(folder: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return optuna.create_study(study_name="reflectrl", storage=storage, direction="maximize", load_if_exists=True)


@pytest.mark.parametrize(
    ("values", "space"),
    [
        ("0.1..2", FloatDistribution(0.1, 2.0)),
        ("1e-4..1e-2:log", FloatDistribution(1e-4, 1e-2, log=True)),
        ("-1..3", IntDistribution(-1, 3)),
        ("8..64:log", IntDistribution(8, 64, log=True)),
        ("0.9,0.95,1", CategoricalDistribution(("0.9", "0.95", "1"))),
        ("null,{size: 8, episodes: 4}", CategoricalDistribution(("null", "{size: 8, episodes: 4}"))),
        ("[a..b]", CategoricalDistribution(("[a..b]",))),
    ],
)
def test_a_space_is_a_range_a_range_on_a_log_scale_or_choices(values: str, space: object) -> None:
    assert read_space(f"k={values}") == ("k", space)


@pytest.mark.parametrize("text", ["k", "k=", "=1..2", "k=2..1", "k=0..1:log", "k=0.0..1:log", "k=a..b"])
def test_other_spaces_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--space .* was given; expected "):
        read_space(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--space", "rlft.gamma=0.5..1.5"), "rlft.gamma"),
        (("--space", "rlft.gama=0.5..1"), "did you mean 'gamma'"),
        (("--space", "rlft.gamma=0.9,1", "rlft.gamma=1"), "set twice, by --space and once more"),
        (("--space", "rlft.gamma=0.9,1", "--space", "rlft.gamma=0.5..1"), "set twice by --space"),
        (("--space", "rlft.gamma=0.9,1", "rlft.validation=null"), "has no rlft.validation"),
        (("--space", "sft.policy.steps=1..9", "rlft=null", "eval.policies=[sft]"), "has no rlft.validation"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_the_first_trial(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert said in refused("tune", "number_line/nano", "--out", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lines", ['{"op_code": 0,\n{}\n', "{}\n", "[]\n", "null\n"])
def test_a_damaged_study_is_refused(lines: str, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(lines)
    assert "holds no study that can be read" in refused(*ASKED, "--out", tmp_path, *TINY)


def test_a_folder_that_cannot_hold_a_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "search" / JOURNAL).mkdir(parents=True)
    for out, why in (
        (tmp_path / "file", "file cannot be used (File exists)"),
        (tmp_path / "search", f"{JOURNAL} cannot be used (it is a folder)"),
        ("/proc/search", "/proc/search cannot be used (No such file or directory)"),
    ):
        assert f"{why}; choose another folder." in refused(*ASKED, "--out", out, *TINY)


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
def test_a_search_that_was_killed_goes_on_and_two_at_once_try_the_same_settings(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    killed = WarmProcess(tmp_path / "log", command_line, *ASKED, "--trials", "2", "--out", str(one), *TINY)
    wait_until((one / "trial-0000" / "metrics.jsonl").exists)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    # its process lives on, and a second one in its run folder would fail
    done = reflectrl(*ASKED, "--trials", "2", "--jobs", "2", "--out", one, *TINY)
    assert done.code == 0, done.err
    assert [each.state for each in study(one).trials] == [TrialState.COMPLETE] * 2

    both = [*ASKED, "--trials", "2", "--out", str(two), *TINY]
    others = [WarmProcess(tmp_path / f"log{number}", command_line, *both) for number in range(2)]
    assert [each.wait() for each in others] == [0, 0], [each.said for each in others]
    assert [each.state for each in study(two).trials] == [TrialState.COMPLETE] * 2
    assert [each.params for each in study(one).trials] == [each.params for each in study(two).trials]
    tables = [re.findall(r"^trial-.*", each.said, re.MULTILINE) for each in others]
    assert all(set(done.out.splitlines()[1:3]) <= set(table) for table in tables)

    for trial in study(one).trials:
        run = one / f"trial-{trial.number:04}"
        kept = json.loads((run / "policy" / "validation.json").read_text())
        assert trial.value == kept["sampled"]
        assert not (run / "eval.jsonl").exists()  # no trial has played the test tasks
    first_row = done.out.splitlines()[1].split()
    values = {f"trial-{trial.number:04}": trial.value or 0.0 for trial in study(one).trials}
    assert first_row[:3] == [max(values, key=lambda name: values[name]), "complete", f"{max(values.values()):.1%}"]

    best, again = (shlex.split(line.partition(": ")[2])[1:] for line in done.out.splitlines()[3:])
    evaluated = reflectrl(*best)
    assert (evaluated.code, evaluated.err.count("skipped")) == (0, 3)
    assert reflectrl(*again, "--until", "rlft").code == 0
    first = one / best[-1]
    assert (one / "best" / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()

    other = refused("tune", "number_line/nano", "--space", f"{GAMMA}=0.5..1", "--out", one, *TINY, "rlft.episodes=3")
    assert "was begun with other settings (--space, rlft.episodes)" in other


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
def test_a_trial_that_falls_behind_is_ended_with_a_checkpoint(tmp_path: Path) -> None:
    settings = {RATE: FloatDistribution(1e-4, 1e-2, log=True), GAMMA: CategoricalDistribution(("0.9", "1"))}
    for _ in range(5):
        done = optuna.trial.create_trial(
            params={RATE: 1e-3, GAMMA: "1"},
            distributions=settings,
            intermediate_values={step: 1.0 for step in range(1000)},
            value=1.0,
        )
        study(tmp_path).add_trial(done)
    long = [each.replace("iterations=2", "iterations=1000").replace("{ep", "{every: 1, ep") for each in TINY]
    ended = reflectrl(*ASKED, "--trials", "6", "--out", tmp_path, *long)
    assert ended.code == 0, ended.err
    [*_, last] = study(tmp_path).trials
    assert last.state == TrialState.PRUNED
    assert last.last_step is not None
    assert f"trial-0005  pruned after iteration {last.last_step}: validation" in ended.err
    assert ended.out.splitlines()[6].split()[:2] == ["trial-0005", "pruned"]
    run = tmp_path / "trial-0005"
    assert len((run / "metrics.jsonl").read_text().splitlines()) < 1000
    assert list((run / "checkpoints" / "rlft").glob("checkpoint-*"))
    assert not (run / "policy").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
def test_a_trial_that_failed_is_named_and_goes_on_in_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "trial-0000").mkdir()
    with (tmp_path / "trial-0000" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = reflectrl(*ASKED, "--trials", "2", "--out", tmp_path, *TINY)
    assert failed.code == 1
    assert "another process is working in run folder" in failed.err
    assert f"1 of 2 trials failed; see the end of {tmp_path}/trial-0000/sweep.log. The same" in failed.err
    assert [line.split()[:2] for line in failed.out.splitlines()[1:3]] == [
        ["trial-0001", "complete"],
        ["trial-0000", "fail"],
    ]
    settings = study(tmp_path).trials[0].params
    assert reflectrl(*ASKED, "--trials", "2", "--out", tmp_path, *TINY).code == 0
    assert [each.state for each in study(tmp_path).trials] == [TrialState.COMPLETE] * 2
    assert study(tmp_path).trials[0].params == settings
