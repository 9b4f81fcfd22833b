"""Learning curves: the numbers of a line, the figures of the paper, and the files."""

from __future__ import annotations

import struct
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import pytest
from command_line import refused
from run_folders import iteration

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import write_jsonl
from reflectrl.report.arms import FIGURES, WHATS, arms_by_label, arms_of, last_stage, lines, stage_starts
from reflectrl.report.plots import write_plot
from reflectrl.report.runs import read_runs
from reflectrl.report.series import mean_over_seeds, running_mean

CURRICULUM = ["rlft.stages=[{name: pickup, iterations: 2, env: {stage: pickup}}, {name: full, iterations: 3}]"]


def make_run(
    folder: Path,
    success: Mapping[str, Sequence[float]],
    recipe: str = "dangerous_taxi/nano",
    overrides: Sequence[str] = (),
) -> Path:
    """Write a run folder with the given success in each iteration of each stage, and 7 steps per iteration."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe, overrides)))
    pairs = [(stage, value) for stage, values in success.items() for value in values]
    numbers = [{"stage": stage, "success": value, "episode_return": 2 * value - 1} for stage, value in pairs]
    write_jsonl(folder / "metrics.jsonl", [iteration(n, **each, env_steps=7 * n + 7) for n, each in enumerate(numbers)])
    return folder


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    values = [[0.1 * seed, 0.2, 0.3 + 0.1 * seed] for seed in range(3)]
    return [make_run(tmp_path / f"s{n}", {"pickup": each}, overrides=[f"seed={n}"]) for n, each in enumerate(values)]


def texts(path: Path) -> list[str]:
    nodes = ET.fromstring(path.read_text(encoding="utf-8")).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(node.itertext()) for node in nodes]


# ---- the numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ([([0, 1], [1.0, 4.0])], ([0, 1], [1.0, 4.0], [])),  # one seed has no interval
        (
            [([0, 1], [1.0, 4.0]), ([0, 1], [3.0, 4.0]), ([0, 1], [5.0, 4.0])],
            ([0, 1], [3.0, 4.0], pytest.approx([4.303 * 2 / 3**0.5, 0.0])),
        ),
        (  # more seeds than the table of quantiles has
            [([0], [float(seed % 2)]) for seed in range(20)],
            ([0], [0.5], pytest.approx([2.093 * 0.51299 / 20**0.5], rel=0.01)),
        ),
    ],
)
def test_seeds_become_their_mean_with_a_t_interval(curves, expected) -> None:
    assert mean_over_seeds(curves) == expected


def test_a_schedule_is_not_smoothed_unless_that_is_asked_for(tmp_path: Path) -> None:
    rates = [1e-3 * 0.8**number for number in range(20)]
    run = make_run(tmp_path / "run", {"pickup": [0.5] * 20})
    write_jsonl(run / "metrics.jsonl", [iteration(n, learning_rate=rate) for n, rate in enumerate(rates)])
    arms = arms_by_label(read_runs([run]), ["run"])
    (line,) = lines(arms, what="learning_rate", x="iteration")
    assert (line.mean, line.raw) == (rates, [])
    (smoothed,) = lines(arms, what="learning_rate", x="iteration", smooth=2)
    assert smoothed.mean[1] == pytest.approx((rates[0] + rates[1]) / 2)


def test_seeds_are_averaged_where_all_of_them_are_and_between_their_points() -> None:
    assert mean_over_seeds([([0, 1, 2], [0.0, 0.0, 9.0]), ([1, 2, 3], [2.0, 1.0, 5.0])])[:2] == ([1, 2], [1.0, 5.0])
    assert mean_over_seeds([([0, 10], [0.0, 10.0]), ([0, 5, 10], [0.0] * 3)])[:2] == ([0, 5, 10], [0.0, 2.5, 5.0])


def test_seeds_without_a_common_place_have_no_mean() -> None:
    with pytest.raises(InvalidInput, match="no mean"):
        mean_over_seeds([([0, 1], [0.0, 0.0]), ([2, 3], [1.0, 1.0])])


def test_a_running_mean_covers_earlier_iterations_of_the_same_stage(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "a", {"pickup": [1, 1, 0], "full": [0.0, 0.5]})])
    assert running_mean(run.points, [0.0, 2.0, 4.0, 6.0, 8.0], 2) == [0.0, 1.0, 3.0, 6.0, 7.0]
    validated = run.points[1::3]  # iterations 1 and 4
    assert running_mean(validated, [2.0, 8.0], 3) == [2.0, 8.0]
    (line,) = lines(arms_by_label([run], ["a"]), what="success", x="iteration", smooth=5)
    assert line.mean == pytest.approx([100, 100, 200 / 3, 0, 25])
    assert line.raw == [100.0, 100.0, 0.0, 0.0, 50.0]


def test_a_stage_is_counted_from_its_beginning_and_marked_where_all_runs_agree(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", {"pickup": [1, 1], "ride": [0], "full": [0, 0.5]})
    b = make_run(tmp_path / "b", {"pickup": [1, 1], "ride": [0, 1], "full": [0]})
    read = read_runs([a, b])
    arms = arms_by_label(read[:1], ["a"])
    (line,) = lines(arms, what="return", x="iteration", stage="full", smooth=1)
    assert (line.x, line.mean) == ([0, 1], [-1.0, 0.0])
    assert lines(arms, what="return", x="env_steps", stage="full")[0].x == [7, 14]
    assert lines(arms, what="return", x="env_steps")[0].x == [7, 14, 21, 28, 35]
    assert stage_starts(read, "iteration") == [(2, "ride")]


# ---- the figures of the paper -----------------------------------------------------------------------------------


def test_figures_sort_runs_into_arms_by_their_recipes(seeds: list[Path], tmp_path: Path) -> None:
    values = {"pickup": [0.1, 0.2]}
    only = make_run(tmp_path / "only", values, "dangerous_taxi/nano_rlft_only")
    plain = make_run(tmp_path / "plain", values, "dangerous_taxi/nano_no_reflection")
    positive = make_run(tmp_path / "no", values, "dangerous_taxi/nano_no_negatives")
    arms = arms_of(FIGURES[2], read_runs([only, *seeds[:2], plain]))
    assert [(arm.label, [run.name for run in arm.runs], arm.dashed) for arm in arms] == [
        ("Reflect-RL", ["s0", "s1"], False),
        ("RL", ["only"], True),
        ("SFT + RL", ["plain"], True),
    ]
    assert [(arm.label, arm.dashed) for arm in arms_of(FIGURES[3], read_runs([positive, seeds[0]]))] == [
        ("Positive + negative examples", False),
        ("Positive examples only", True),
    ]
    recipe = seeds[1] / "recipe.yaml"  # a folder of an older version has these facts too
    recipe.write_text(recipe.read_text().replace("micro_batch_tokens:", "micro_batch_size:"))
    assert [arm.label for arm in arms_of(FIGURES[2], read_runs(seeds[1:2]))] == ["Reflect-RL"]
    with pytest.raises(InvalidInput, match=r"s0 and s1 .*rlft\.micro_batch_size"):  # they are not seeds of one arm
        arms_of(FIGURES[2], read_runs(seeds[:2]))


@pytest.mark.slow
def test_figure_4_draws_the_last_stage_of_runs_with_and_without_a_curriculum(tmp_path: Path) -> None:
    with_ = make_run(tmp_path / "cl", {"pickup": [1, 1], "full": [0.25, 0.5, 0.75]}, overrides=CURRICULUM)
    without = make_run(tmp_path / "direct", {"full": [0.0, 0.25]}, "dangerous_taxi/nano_full")
    plain = make_run(
        tmp_path / "plain", {"full": [0, 0]}, "dangerous_taxi/nano_full", ["players.reflector.player=none"]
    )
    read = read_runs([with_, without, plain])
    drawn = lines(arms_of(FIGURES[4], read), what="success", x="iteration", stage=last_stage(read), smooth=1)
    assert {line.label: (line.x, line.mean, line.dashed) for line in drawn} == {
        "Reflect-RL (w/ CL)": ([0, 1, 2], [25, 50, 75], False),
        "Reflect-RL (w/o CL)": ([0, 1], [0, 25], False),
        "SFT + RL": ([0, 1], [0, 0], True),
    }
    write_plot([with_, without, plain], tmp_path / "4.svg", figure=4)
    assert {"Reflect-RL (w/ CL)", "Reflect-RL (w/o CL)", "SFT + RL"} <= set(texts(tmp_path / "4.svg"))
    assert "stage full" in (tmp_path / "4.svg").read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="--stage"):  # the curricula end with different stages
        last_stage(read_runs([make_run(tmp_path / "pickup", {"pickup": [1]}), without]))


# ---- the files --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_figure_has_a_line_an_arm_intervals_of_seeds_raw_values_of_a_single_run_and_its_stages(
    seeds: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "x.svg"
    write_plot(seeds, out, labels=dict.fromkeys(seeds[:2], "both"), what="return", x="env_steps")
    ids = {node.get("id") for node in ET.fromstring(out.read_text(encoding="utf-8")).iter()}
    assert {"arm-0", "interval-0", "arm-1", "raw-1"} <= ids
    assert not {"raw-0", "interval-1", "arm-2"} & ids
    assert {"both", "s2", "Environment steps", "Return"} <= set(texts(out))
    run = make_run(tmp_path / "a", {"pickup": [1, 1], "full": [0, 0]}, overrides=CURRICULUM)
    for stage, marked in ((None, True), ("full", False)):
        write_plot([run], out, stage=stage)
        assert (" full" in texts(out)) == marked
        assert {"Iterations", "Success rate (%)"} <= set(texts(out))
    assert {"success", "return", "length", "illegal", "entropy", "loss", "kl", "clipped"} <= set(WHATS)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_whatever_the_user_set(seeds: list[Path], tmp_path: Path) -> None:
    for kind in ("png", "svg", "pdf"):
        write_plot(seeds, tmp_path / f"a.{kind}")
        with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": None}):
            write_plot(seeds, tmp_path / f"b.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes(), kind
    assert struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24]) == (990, 720)  # a column at 300 dots per inch
    assert b"Date" not in (tmp_path / "a.pdf").read_bytes()


HOSTILE = ["<script>alert(1)</script>", "$x^2", "_hidden", "a & b \"c\" 'd'", "tab\tand\nline", "字"]
HOSTILE += ["\x1b[31mred\ufffe", "x" * 5000, "ninth"]


def test_a_run_has_one_label(tmp_path: Path) -> None:
    said = refused("plot", "before=run", "after=run", "--out", tmp_path / "x.svg")
    assert "run was given as 'before' and as 'after'" in said


@pytest.mark.slow
def test_hostile_labels_are_text_and_more_arms_than_colours_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{n}", {"pickup": [0.5, 0.6]}) for n in range(len(HOSTILE))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("svg", "pdf"):
            write_plot(runs, tmp_path / f"x.{suffix}", labels=dict(zip(runs, HOSTILE, strict=True)))
    assert {*HOSTILE[:4], "tab and line", "字", "␛[31mred�", "x" * 59 + "…"} <= set(texts(tmp_path / "x.svg"))
    root = ET.fromstring((tmp_path / "x.svg").read_text(encoding="utf-8"))
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    drawn = [node for node in root.iter() if node.attrib.get("id", "").startswith("arm-")]
    styles = [next(child.attrib["style"] for child in node.iter() if "style" in child.attrib) for node in drawn]
    assert len(styles) == len(set(styles)) == 9


def test_runs_that_cannot_be_drawn_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1], "full": [0]})
    young, old = make_run(tmp_path / "young", {}), make_run(tmp_path / "old", {})
    line = [{name: value for name, value in iteration(0).items() if name != "length"} | {"new_metric": 1.0}]
    write_jsonl(old / "metrics.jsonl", line)
    write_plot([old], tmp_path / "x.svg")
    strange = make_run(tmp_path / "strange", {"pickup": [1]})
    (strange / "recipe.yaml").write_text("name: something else\n")
    for given, options, fact in (
        (run, {"stage": "ful"}, "'full'"),
        (young, {}, "young .*`reflectrl rlft`"),
        (old, {"what": "length"}, "old .*'Steps an episode'"),
        (strange, {"figure": 3}, r"strange .*players\.reflector.*LABEL=RUN"),
    ):
        with pytest.raises(InvalidInput, match=fact):
            write_plot([given], tmp_path / "x.png", **options)


def test_files_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1]})
    kinds = "pdf, png, svg"
    for name, fact in (("plot.jpg", kinds), ("plot", kinds), ("nowhere/x.png", "choose another file")):
        with pytest.raises(InvalidInput, match=fact):
            write_plot([run], tmp_path / name)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match=r"reflectrl\[plots\]"):
        write_plot([run], tmp_path / "x.png")
