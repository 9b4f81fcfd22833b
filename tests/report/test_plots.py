from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.report.arms import (
    FIGURES,
    arms_by_label,
    arms_of,
    last_stage,
    lines,
    mean_over_seeds,
    smoothed,
    stage_starts,
)
from reflectrl.report.plots import write_plot
from reflectrl.report.runs import read_runs


def make_run(
    folder: Path,
    success: Mapping[str, Sequence[float]],
    recipe: str = "dangerous_taxi/nano",
    overrides: Sequence[str] = (),
    steps: int = 10,
) -> Path:
    """A run folder with so much success in the iterations of each stage."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe, overrides)))
    rows: list[dict[str, Any]] = []
    for stage, values in success.items():
        for value in values:
            numbers = {"episode_return": 2 * value - 1, "length": 4.0, "illegal": 0.0, "entropy": 0.5, "loss": 0.0}
            rows.append(
                {"iteration": len(rows), "stage": stage, "success": value, "kl": 0.0, "clipped": 0.0, **numbers}
            )
            rows[-1] |= {"replayed": 0, "env_steps": steps * len(rows)}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


CURRICULUM = [
    "rlft.stages=[{name: pickup, iterations: 2, env: {stage: pickup}}, {name: full, iterations: 3}]",
]


def svg(path: Path) -> ET.Element:
    return ET.fromstring(path.read_text(encoding="utf-8"))


def texts(root: ET.Element) -> list[str]:
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def ids(root: ET.Element) -> set[str]:
    return {node.attrib["id"] for node in root.iter() if "id" in node.attrib}


# ---- the numbers ------------------------------------------------------------------------------------------------


def test_seeds_become_their_mean_with_a_t_interval() -> None:
    x, mean, half = mean_over_seeds([([0, 1], [1.0, 4.0]), ([0, 1], [3.0, 4.0]), ([0, 1], [5.0, 4.0])])
    assert x == [0, 1]
    assert mean == [3.0, 4.0]
    assert half == pytest.approx([4.303 * 2 / 3**0.5, 0.0])


def test_a_single_seed_has_no_interval() -> None:
    assert mean_over_seeds([([0, 1], [1.0, 4.0])]) == ([0, 1], [1.0, 4.0], [])


def test_seeds_count_only_where_all_of_them_are() -> None:
    x, mean, _ = mean_over_seeds([([0, 1, 2], [0.0, 0.0, 9.0]), ([1, 2, 3], [2.0, 1.0, 5.0])])
    assert (x, mean) == ([1, 2], [1.0, 5.0])


def test_seeds_of_different_paces_are_read_between_their_points() -> None:
    x, mean, _ = mean_over_seeds([([0, 10], [0.0, 10.0]), ([0, 5, 10], [0.0, 0.0, 0.0])])
    assert (x, mean) == ([0, 5, 10], [0.0, 2.5, 5.0])


def test_more_seeds_than_the_table_of_quantiles_has() -> None:
    *_, half = mean_over_seeds([([0], [float(seed % 2)]) for seed in range(20)])
    assert half == pytest.approx([2.093 * 0.51299 / 20**0.5], rel=0.01)


def test_smoothing_takes_what_came_before() -> None:
    assert smoothed([0.0, 2.0, 4.0, 6.0], 2) == [0.0, 1.0, 3.0, 5.0]
    assert smoothed([0.0, 2.0], 1) == [0.0, 2.0]


def test_smoothing_begins_anew_with_each_stage(tmp_path: Path) -> None:
    read = read_runs([make_run(tmp_path / "a", {"pickup": [1.0, 1.0], "full": [0.0, 0.5]})])
    (line,) = lines(arms_by_label(read, ["a"]), what="success", x="iteration", smooth=5)
    assert line.mean == [100.0, 100.0, 0.0, 25.0]
    assert line.raw == [100.0, 100.0, 0.0, 50.0]


def test_a_stage_is_counted_from_its_beginning(tmp_path: Path) -> None:
    read = read_runs([make_run(tmp_path / "a", {"pickup": [1.0, 1.0], "full": [0.0, 0.5]}, steps=7)])
    arms = arms_by_label(read, ["a"])
    (line,) = lines(arms, what="return", x="iteration", stage="full", smooth=1)
    assert (line.x, line.mean) == ([0, 1], [-1.0, 0.0])
    (line,) = lines(arms, what="return", x="env_steps", stage="full", smooth=1)
    assert line.x == [7, 14]
    (line,) = lines(arms, what="return", x="env_steps", smooth=1)
    assert line.x == [7, 14, 21, 28]


def test_stages_are_marked_where_all_runs_agree(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", {"pickup": [1, 1], "ride": [0], "full": [0]})
    b = make_run(tmp_path / "b", {"pickup": [1, 1], "ride": [0, 1], "full": [0]})
    assert stage_starts(read_runs([a, b]), "iteration") == [(2, "ride")]


# ---- the figures of the paper -----------------------------------------------------------------------------------


def test_figure_2_tells_methods_apart_and_takes_seeds_together(tmp_path: Path) -> None:
    values = {"pickup": [0.1, 0.2]}
    runs = [
        make_run(tmp_path / "only", values, "dangerous_taxi/nano_rlft_only"),
        make_run(tmp_path / "s0", values),
        make_run(tmp_path / "s1", values, overrides=["seed=1"]),
        make_run(tmp_path / "plain", values, "dangerous_taxi/nano_no_reflection"),
    ]
    arms = {arm.label: arm for arm in arms_of(FIGURES[2], read_runs(runs))}
    assert {label: [run.name for run in arm.runs] for label, arm in arms.items()} == {
        "Reflect-RL": ["s0", "s1"],
        "SFT + RL": ["plain"],
        "RL": ["only"],
    }
    assert {label for label, arm in arms.items() if arm.dashed} == {"SFT + RL", "RL"}
    assert next(iter(arms)) == "Reflect-RL"


def test_figure_3_tells_negative_examples_apart(tmp_path: Path) -> None:
    values = {"pickup": [0.1, 0.2]}
    runs = [make_run(tmp_path / "no", values, "dangerous_taxi/nano_no_negatives"), make_run(tmp_path / "with", values)]
    assert [(arm.label, arm.dashed) for arm in arms_of(FIGURES[3], read_runs(runs))] == [
        ("Positive + negative examples", False),
        ("Positive examples only", True),
    ]


def test_figure_4_draws_the_last_stage_of_runs_with_and_without_a_curriculum(tmp_path: Path) -> None:
    with_ = make_run(tmp_path / "cl", {"pickup": [1, 1], "full": [0.25, 0.5, 0.75]}, overrides=CURRICULUM)
    without = make_run(tmp_path / "direct", {"full": [0.0, 0.25]}, "dangerous_taxi/nano_full")
    plain = make_run(tmp_path / "plain", {"full": [0, 0]}, "dangerous_taxi/nano_full", ["players.reflector=none"])
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
    assert "Training success with and without curriculum, stage full" in "".join(root.itertext())


def test_runs_that_are_no_seeds_of_each_other_are_not_averaged(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", {"pickup": [1]}),
        make_run(tmp_path / "b", {"pickup": [0]}, overrides=["rlft.gamma=0.5"]),
    ]
    with pytest.raises(InvalidInput, match=r"a and b would both be 'Reflect-RL', but differ in rlft\.gamma"):
        write_plot(runs, tmp_path / "x.png", figure=2)


def test_curricula_that_end_differently_ask_for_a_stage(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", {"pickup": [1]}),
        make_run(tmp_path / "b", {"full": [1]}, "dangerous_taxi/nano_full"),
    ]
    with pytest.raises(InvalidInput, match=r"\(a with 'pickup', b with 'full'\); choose one: --stage"):
        last_stage(read_runs(runs))


def test_a_recipe_of_an_older_version_still_says_what_a_figure_asks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", {"pickup": [0.5]})
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("micro_batch_tokens:", "micro_batch_size:"))
    write_plot([run], tmp_path / "x.svg", figure=2)
    assert "Reflect-RL" in texts(svg(tmp_path / "x.svg"))


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


@pytest.mark.parametrize(
    ("what", "title"), [("return", "Return"), ("entropy", "Entropy (nats a step)"), ("length", "Steps an episode")]
)
def test_other_quantities_have_axes_of_their_own(seeds: list[Path], tmp_path: Path, what: str, title: str) -> None:
    write_plot(seeds, tmp_path / "x.svg", what=what, x="env_steps")
    assert {title, "Environment steps"} <= set(texts(svg(tmp_path / "x.svg")))


def test_stages_are_marked_in_a_figure_of_all_of_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1, 1], "full": [0, 0]}, overrides=CURRICULUM)
    write_plot([run], tmp_path / "all.svg")
    write_plot([run], tmp_path / "one.svg", stage="full")
    assert " full" in texts(svg(tmp_path / "all.svg"))
    assert " full" not in texts(svg(tmp_path / "one.svg"))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_runs_give_the_same_bytes_in_any_process_whatever_the_user_set(
    seeds: list[Path], tmp_path: Path, suffix: str
) -> None:
    write_plot(seeds, tmp_path / f"a.{suffix}")
    if suffix == "svg":  # one process is enough to see that nothing outside matters
        (tmp_path / "matplotlibrc").write_text("font.size: 30\nlines.linewidth: 9\n")
        code = (
            "from pathlib import Path; from reflectrl.report.plots import write_plot\n"
            f"write_plot([Path(p) for p in {list(map(str, seeds))}], Path('b.svg'))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=tmp_path)
    else:
        write_plot(seeds, tmp_path / f"b.{suffix}")
    a, b = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert hashlib.sha256(a).digest() == hashlib.sha256(b).digest()


def test_a_png_is_as_wide_as_a_column_at_300_dots_an_inch(seeds: list[Path], tmp_path: Path) -> None:
    write_plot(seeds, tmp_path / "x.PNG")
    assert struct.unpack(">II", (tmp_path / "x.PNG").read_bytes()[16:24]) == (990, 720)


HOSTILE = [
    "<script>alert(1)</script>",
    "$x^2",
    "_hidden",
    "a & b \"c\" 'd'",
    "tab\tand\nline",
    "字",
    "\x1b[31mred\ufffe",
]


def test_hostile_labels_are_text_and_nothing_else(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{n}", {"pickup": [0.5, 0.6]}) for n in range(len(HOSTILE))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("svg", "png", "pdf"):
            write_plot(runs, tmp_path / f"x.{suffix}", labels=dict(zip(runs, HOSTILE, strict=True)))
    root = svg(tmp_path / "x.svg")
    shown = set(texts(root))
    assert {*HOSTILE[:4], "tab and line", "字", "␛[31mred�"} <= shown
    assert not [node for node in root.iter() if node.tag.endswith("script")]


def test_a_long_label_is_cut(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [0.5]})
    write_plot([run], tmp_path / "x.svg", labels={run: "x" * 5000})
    assert "x" * 59 + "…" in texts(svg(tmp_path / "x.svg"))


def test_more_arms_than_colours_are_still_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{n}", {"pickup": [0.5, 0.6]}) for n in range(9)]
    write_plot(runs, tmp_path / "x.svg")
    styles = {}
    for node in svg(tmp_path / "x.svg").iter():
        if node.attrib.get("id", "").startswith("arm-"):
            styles[node.attrib["id"]] = next(child.attrib["style"] for child in node.iter() if "style" in child.attrib)
    assert len(styles) == len(set(styles.values())) == 9


# ---- what cannot be drawn ---------------------------------------------------------------------------------------


def test_a_run_without_metrics_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "young", {})
    (run / "metrics.jsonl").unlink()
    with pytest.raises(InvalidInput, match="run young has no metrics yet; run `reflectrl rlft` first"):
        write_plot([run], tmp_path / "x.png")


def test_an_unknown_stage_names_those_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1], "full": [0]})
    with pytest.raises(InvalidInput, match="run a has no iteration of stage 'ful' so far; did you mean 'full'"):
        write_plot([run], tmp_path / "x.png", stage="ful")


def test_a_run_that_recorded_no_lengths_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", {"pickup": [1]})
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({k: v for k, v in r.items() if k != "length"}) + "\n" for r in rows)
    )
    with pytest.raises(InvalidInput, match="run old was made by an older version"):
        write_plot([run], tmp_path / "x.png", what="length")


def test_a_recipe_that_says_nothing_asks_for_labels(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"pickup": [1]})
    (run / "recipe.yaml").write_text("name: something else\n")
    with pytest.raises(InvalidInput, match="lacks one of players.reflector.*LABEL=RUN"):
        write_plot([run], tmp_path / "x.png", figure=3)


def test_a_foreign_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no run folder"):
        write_plot([tmp_path], tmp_path / "x.png")


@pytest.mark.parametrize("name", ["plot.jpg", "plot", "plot.svgz"])
def test_other_suffixes_are_refused_with_those_that_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"has the suffix .*Known: pdf, png, svg"):
        write_plot([make_run(tmp_path / "a", {"pickup": [1]})], tmp_path / name)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file or directory.*choose another --out"):
        write_plot([make_run(tmp_path / "a", {"pickup": [1]})], tmp_path / "nowhere" / "x.png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match=r"pip install 'reflectrl\[plots\]'"):
        write_plot([make_run(tmp_path / "a", {"pickup": [1]})], tmp_path / "x.png")
