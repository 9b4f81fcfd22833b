"""The page in a real browser at the widths of a phone and of desks: nothing is cut, whatever runs it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import faults_at_widths
from run_folders import episode, evaluated, iteration, make_run, write_ledger

from reflectrl.report.page import write_report
from reflectrl.report.runs import read_runs

PHONE, DESKS = 390, (1280, 1400, 1920)

OUTSIDE = """() => {
    const inside = (inner, outer) => inner.left >= outer.left - 0.5 && inner.right <= outer.right + 0.5
        && inner.top >= outer.top - 0.5 && inner.bottom <= outer.bottom + 0.5;
    const scrolls = element => element && (getComputedStyle(element).overflowX !== "visible"
        || scrolls(element.parentElement));
    const width = document.documentElement.clientWidth, found = [];
    if (document.documentElement.scrollWidth > width) found.push("the page scrolls sideways");
    for (const element of document.querySelectorAll("body *")) {
        const box = element.getBoundingClientRect();
        if (box.width && (box.right > width + 0.5 || box.left < -0.5) && !scrolls(element.parentElement))
            found.push(element.outerHTML.slice(0, 100));
    }
    for (const svg of document.querySelectorAll("figure svg"))
        for (const text of svg.querySelectorAll("text"))
            if (!inside(text.getBoundingClientRect(), svg.getBoundingClientRect()))
                found.push(svg.getAttribute("aria-label") + ": " + text.textContent);
    return found;
}"""
"""Script that returns what leaves the page, or its picture, but for the contents of boxes that scroll."""

TABLES = """() => [...document.querySelectorAll(".wide")].filter(box => box.clientWidth).map(box => {
    const own = box.getBoundingClientRect();
    const hidden = cell => { const at = cell.getBoundingClientRect();
        return at.left < own.left - 0.5 || at.right > own.right + 0.5; };
    const heads = [...box.querySelectorAll("th")];
    const success = heads.filter(head => head.textContent.startsWith("success")).some(hidden);
    box.scrollLeft = box.scrollWidth;
    const first = [...box.querySelectorAll("tr > :first-child")].some(hidden);
    return { label: box.getAttribute("aria-label"), wide: box.scrollWidth > box.clientWidth, success, first };
})"""
"""Script that scrolls each table to its right end, and returns which columns are hidden at either end."""

EXTREMES = {
    "thousandths": (3e-4, 1e-3),
    "tiny": (-6e-9, 2e-9),
    "least": (1e-12, 3e-12),
    "large": (-1e12, 1e12),
    "narrow": (123456.0, 123456.001),
    "zero": (0.0, 0.0),
    "constant": (1e-3, 1e-3),
    "negative": (-0.00012, -0.00012),
}


def one_run(folder: Path) -> list[Path]:
    won = [episode(f"t-{n}", success=n % 3 > 0) for n in range(30)]
    played = {"random": won, "sft": won, "rlft": won, "expert": won}
    run = make_run(folder / "dangerous_taxi-nano", played, [iteration(n) for n in range(30)], [won], "12 of 134 games")
    done = {"done": True, "inputs": {}, "wall_seconds": 1234.56, "cpu_seconds": 99.0}
    write_ledger(run, sft=done, rlft=done)
    return [run]


def three_seeds(folder: Path) -> list[Path]:
    return [
        evaluated(folder / f"number_line-nano-seed{n}", 0.99, 0.9, f"seed={n}", metrics=[*map(iteration, range(9))])
        for n in range(3)
    ]


def many_arms(folder: Path) -> list[Path]:
    return [
        evaluated(folder / f"arm{n}-{seed}", 0.9, 0.5, f"rlft.gamma={n / 16}", f"data.samples={n + 9}", f"seed={seed}")
        for n in range(12)
        for seed in range(1 + n % 2)
    ]


def long_names(folder: Path) -> list[Path]:
    name = "dangerous_taxi_with_an_underscore_" * 4
    lessons = ("W" * 40, "a lesson with a long name, of the whole ride", "短い段階の名前がここにある")
    line = [iteration(n, lesson=lessons[n // 10], success_by_group={"W" * 60: 0.5}) for n in range(30)]
    return [evaluated(folder / f"{name}{n}", 0.9, 0.5, f"name={name}{n}", metrics=line) for n in range(2)]


def extremes(folder: Path) -> list[Path]:
    fields = ("episode_return", "loss", "kl", "grad_norm", "learning_rate", "length", "rater_std", "entropy_coef")

    def values(names: tuple[str, ...], at: int) -> dict[str, float]:
        return {field: EXTREMES[name][at] for field, name in zip(fields, names, strict=True)}

    names = tuple(EXTREMES)
    return [
        evaluated(
            folder / f"run{turn}",
            0.9,
            0.5,
            f"seed={turn}",
            metrics=[iteration(n * 123456, **values(names[turn:] + names[:turn], n % 2)) for n in range(6)],
        )
        for turn in range(2)
    ]


@pytest.mark.slow
def test_axe_finds_nothing_wrong(browser, tmp_path: Path) -> None:
    runs = [*one_run(tmp_path), *three_seeds(tmp_path)]
    page = browser.new_page()
    page.goto(f"file://{write_report(read_runs(runs), tmp_path / 'report.html')}")
    page.wait_for_selector(".episode")
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    page.select_option("#beside", "1")
    page.wait_for_selector("#episodes.two")
    assert faults_at_widths(page) == []
    page.close()


SHAPES = (one_run, three_seeds, many_arms, long_names, extremes)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_nothing_is_cut_at_any_width(browser, shape, tmp_path: Path) -> None:
    runs = shape(tmp_path)
    pages = [write_report(read_runs(given), tmp_path / f"{len(given)}.html") for given in (runs, runs[:1])]
    page = browser.new_page()
    for path, width in ((path, width) for path in pages for width in (PHONE, *DESKS)):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"file://{path}")
        assert page.evaluate(OUTSIDE) == [], width
        tables = page.evaluate(TABLES)
        assert [table["label"] for table in tables if table["first"]] == [], width
        assert [table["label"] for table in tables if table["success"]] == [], width
        if width != PHONE:
            assert [table["label"] for table in tables if table["wide"]] == [], width
    page.close()
