from __future__ import annotations

import struct
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from run_folders import iteration

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import write_jsonl
from reflectrl.report.arms import FIGURES, WHATS, arms_by_label, arms_of, axis_title, last_stage, lines, stage_starts
from reflectrl.report.plots import write_plot
from reflectrl.report.runs import read_runs
from reflectrl.report.series import mean_over_seeds, running_mean

CURRICULUM = ["rlft.stages=[{name: pickup, iterations: 2, env: {stage: pickup}}, {name: full, iterations: 3}]"]


def make_run(
    folder: Path,
    success: Mapping[str, Sequence[float]],
    recipe: str = "dangerous_taxi/nano",
    overrides: Sequence[str] = (),
    steps: int = 10,
) -> Path:
    """A run folder with this success rate in each iteration of each stage."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe, overrides)))
    pairs = [(stage, value) for stage, values in success.items() for value in values]
    write_jsonl(
        folder / "metrics.jsonl",
        [
            iteration(n, stage=stage, success=value, episode_return=2 * value - 1, env_steps=steps * (n + 1))
            for n, (stage, value) in enumerate(pairs)
        ],
    )
    return folder


def svg(path: Path) -> ET.Element:
    return ET.fromstring(path.read_text(encoding="utf-8"))


def texts(root: ET.Element) -> list[str]:
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def ids(root: ET.Element) -> set[str]:
    return {node.attrib["id"] for node in root.iter() if "id" in node.attrib}


# ---- the numbers ------------------------------------------------------------------------------------------------


def test_seeds_become_their_mean_with_a_t_interval_where_all_of_them_are() -> None:
    x, mean, half = mean_over_seeds([([0, 1], [1.0, 4.0]), ([0, 1], [3.0, 4.0]), ([0, 1], [5.0, 4.0])])
    assert (x, mean, half) == ([0, 1], [3.0, 4.0], pytest.approx([4.303 * 2 / 3**0.5, 0.0]))
    assert mean_over_seeds([([0, 1], [1.0, 4.0])]) == ([0, 1], [1.0, 4.0], [])  # no interval of one seed
    *_, many = mean_over_seeds([([0], [float(seed % 2)]) for seed in range(20)])  # more than the table has
    assert many == pytest.approx([2.093 * 0.51299 / 20**0.5], rel=0.01)
    x, mean, _ = mean_over_seeds([([0, 1, 2], [0.0, 0.0, 9.0]), ([1, 2, 3], [2.0, 1.0, 5.0])])
    assert (x, mean) == ([1, 2], [1.0, 5.0])
    x, mean, _ = mean_over_seeds([([0, 10], [0.0, 10.0]), ([0, 5, 10], [0.0, 0.0, 0.0])])
    assert (x, mean) == ([0, 5, 10], [0.0, 2.5, 5.0])


def test_a_running_mean_covers_earlier_iterations_of_the_same_stage(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "a", {"pickup": [1, 1, 0], "full": [0.0, 0.5]})])
    assert running_mean(run.points, [0.0, 2.0, 4.0, 6.0, 8.0], 2) == [0.0, 1.0, 3.0, 6.0, 7.0]
    (line,) = lines(arms_by_label([run], ["a"]), what="success", x="iteration", smooth=5)
    assert line.mean == pytest.approx([100, 100, 200 / 3, 0, 25])
    assert line.raw == [100.0, 100.0, 0.0, 0.0, 50.0]


def test_a_stage_is_counted_from_its_beginning_and_marked_where_all_runs_agree(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", {"pickup": [1, 1], "ride": [0], "full": [0, 0.5]}, steps=7)
    b = make_run(tmp_path / "b", {"pickup": [1, 1], "ride": [0, 1], "full": [0]}, steps=7)
    read = read_runs([a, b])
    arms = arms_by_label(read[:1], ["a"])
    (line,) = lines(arms, what="return", x="iteration", stage="full", smooth=1)
    assert (line.x, line.mean) == ([0, 1], [-1.0, 0.0])
    assert lines(arms, what="return", x="env_steps", stage="full")[0].x == [7, 14]
    assert lines(arms, what="return", x="env_steps")[0].x == [7, 14, 21, 28, 35]
    assert stage_starts(read, "iteration") == [(2, "ride")]


# ---- the figures of the paper -----------------------------------------------------------------------------------


def test_figures_sort_runs_into_arms_by_their_recipes(tmp_path: Path) -> None:
    values = {"pickup": [0.1, 0.2]}
    only = make_run(tmp_path / "only", values, "dangerous_taxi/nano_rlft_only")
    seeds = [make_run(tmp_path / f"s{seed}", values, overrides=[f"seed={seed}"]) for seed in range(2)]
    plain = make_run(tmp_path / "plain", values, "dangerous_taxi/nano_no_reflection")
    positive = make_run(tmp_path / "no", values, "dangerous_taxi/nano_no_negatives")
    recipe = seeds[1] / "recipe.yaml"  # one of an older version has the facts too
    recipe.write_text(recipe.read_text().replace("micro_batch_tokens:", "micro_batch_size:"))
    arms = arms_of(FIGURES[2], read_runs([only, seeds[0], plain]))
    assert [(arm.label, [run.name for run in arm.runs], arm.dashed) for arm in arms] == [
        ("Reflect-RL", ["s0"], False),
        ("RL", ["only"], True),
        ("SFT + RL", ["plain"], True),
    ]
    assert [arm.label for arm in arms_of(FIGURES[2], read_runs(seeds[1:]))] == ["Reflect-RL"]
    both = arms_of(FIGURES[3], read_runs([positive, seeds[0]]))
    assert [(arm.label, arm.dashed) for arm in both] == [
        ("Positive + negative examples", False),
        ("Positive examples only", True),
    ]


def test_seeds_are_averaged_and_runs_that_differ_otherwise_are_not(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"s{seed}", {"pickup": [1]}, overrides=[f"seed={seed}"]) for seed in range(2)]
    (arm,) = arms_of(FIGURES[2], read_runs(runs))
    assert [run.name for run in arm.runs] == ["s0", "s1"]
    other = make_run(tmp_path / "other", {"pickup": [0]}, overrides=["rlft.gamma=0.5"])
    with pytest.raises(InvalidInput, match=r"rlft\.gamma"):
        write_plot([runs[0], other], tmp_path / "x.png", figure=2)


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
    root = svg(tmp_path / "4.svg")
    assert {"Reflect-RL (w/ CL)", "Reflect-RL (w/o CL)", "SFT + RL", "Success rate (%)"} <= set(texts(root))
    assert "stage full" in "".join(root.itertext())
    pickup = make_run(tmp_path / "pickup", {"pickup": [1]})
    with pytest.raises(InvalidInput, match="--stage"):  # the curricula end with different stages
        last_stage(read_runs([pickup, without]))


# ---- the files --------------------------------------------------------------------------------------------------


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / f"s{n}", {"pickup": [0.1 * n, 0.2, 0.3 + 0.1 * n]}) for n in range(3)]


def test_a_line_an_arm_with_an_interval_for_seeds_and_the_raw_values_of_a_single_run(
    seeds: list[Path], tmp_path: Path
) -> None:
    write_plot(seeds, tmp_path / "x.svg", labels=dict.fromkeys(seeds[:2], "both"))
    root = svg(tmp_path / "x.svg")
    assert {"arm-0", "interval-0", "arm-1", "raw-1"} <= ids(root)
    assert not {"raw-0", "interval-1", "arm-2"} & ids(root)
    assert {"both", "s2", "Iterations", "Success rate (%)"} <= set(texts(root))


def test_every_metric_can_be_drawn(seeds: list[Path], tmp_path: Path) -> None:
    assert {"success", "return", "length", "illegal", "entropy", "loss", "kl", "clipped"} <= set(WHATS)
    for what in WHATS:
        write_plot(seeds, tmp_path / "x.svg", what=what, x="env_steps")
        assert {axis_title(what), "Environment steps"} <= set(texts(svg(tmp_path / "x.svg")))


def test_stages_are_marked_in_a_figure_of_all_of_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1, 1], "full": [0, 0]}, overrides=CURRICULUM)
    write_plot([run], tmp_path / "all.svg")
    write_plot([run], tmp_path / "one.svg", stage="full")
    assert " full" in texts(svg(tmp_path / "all.svg"))
    assert " full" not in texts(svg(tmp_path / "one.svg"))


def test_the_same_runs_give_the_same_bytes_in_any_process_whatever_the_user_set(
    seeds: list[Path], tmp_path: Path
) -> None:
    kinds = ("png", "svg", "pdf")
    for kind in kinds:
        write_plot(seeds, tmp_path / f"a.{kind}")
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nlines.linewidth: 9\n")
    code = (
        "from pathlib import Path; from reflectrl.report.plots import write_plot\n"
        f"for kind in {kinds}: write_plot([Path(p) for p in {list(map(str, seeds))}], Path('b.' + kind))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=tmp_path)
    for kind in kinds:
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes(), kind
    assert struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24]) == (990, 720)  # a column at 300 dots an inch


HOSTILE = ["<script>alert(1)</script>", "$x^2", "_hidden", "a & b \"c\" 'd'", "tab\tand\nline", "字"]
HOSTILE += ["\x1b[31mred\ufffe", "x" * 5000, "ninth"]


def test_hostile_labels_are_text_and_more_arms_than_colours_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{n}", {"pickup": [0.5, 0.6]}) for n in range(len(HOSTILE))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("svg", "png", "pdf"):
            write_plot(runs, tmp_path / f"x.{suffix}", labels=dict(zip(runs, HOSTILE, strict=True)))
    root = svg(tmp_path / "x.svg")
    assert {*HOSTILE[:4], "tab and line", "字", "␛[31mred�", "x" * 59 + "…"} <= set(texts(root))
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    styles = [
        next(child.attrib["style"] for child in node.iter() if "style" in child.attrib)
        for node in root.iter()
        if node.attrib.get("id", "").startswith("arm-")
    ]
    assert len(styles) == len(set(styles)) == 9


# ---- what cannot be drawn ---------------------------------------------------------------------------------------


def test_runs_that_cannot_be_drawn_are_named_with_what_to_do(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1], "full": [0]})
    with pytest.raises(InvalidInput, match="'full'"):
        write_plot([run], tmp_path / "x.png", stage="ful")
    young = make_run(tmp_path / "young", {})
    with pytest.raises(InvalidInput, match="young .*`reflectrl rlft`"):
        write_plot([young], tmp_path / "x.png")
    lines_of_old = [{name: value for name, value in iteration(0).items() if name != "length"} | {"new_metric": 1.0}]
    write_jsonl(young / "metrics.jsonl", lines_of_old)
    write_plot([young], tmp_path / "x.png")
    with pytest.raises(InvalidInput, match="young .*'Steps an episode'"):
        write_plot([young], tmp_path / "x.png", what="length")
    (run / "recipe.yaml").write_text("name: something else\n")
    with pytest.raises(InvalidInput, match=r"players\.reflector.*LABEL=RUN"):
        write_plot([run], tmp_path / "x.png", figure=3)
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        write_plot([tmp_path], tmp_path / "x.png")


def test_places_and_kinds_of_files_that_cannot_be_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1]})
    for name in ("plot.jpg", "plot", "plot.svgz"):
        with pytest.raises(InvalidInput, match="pdf, png, svg"):
            write_plot([run], tmp_path / name)
    with pytest.raises(InvalidInput, match="--out"):
        write_plot([run], tmp_path / "nowhere" / "x.png")
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match=r"reflectrl\[plots\]"):
        write_plot([run], tmp_path / "x.png")
