"""Curves over other axes and under the pointer, and what saves them as SVG and tables as CSV, in a real browser."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_folders import iteration, make_run

from reflectrl.report.page import write_report
from reflectrl.report.runs import read_runs

NAMES = ["one <b>&", "two"]


def run_of_its_own_recipe(folder: Path, metrics: list[dict[str, object]]) -> Path:
    """Write a run that is no other seed of another one."""
    run = make_run(folder, metrics=metrics)
    (run / "recipe.yaml").write_text(f"name: {folder.name!r}\n", encoding="utf-8")
    return run


def saved(browser, report: Path, out: Path, scheme: str) -> bytes:
    """Return the file that the link at the first curve of a report saves."""
    page = browser.new_page(color_scheme=scheme)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"file://{report}")
    assert page.get_by_text("save SVG").count() == page.locator(".panels figure").count() > 5
    with page.expect_download() as download:
        page.get_by_text("save SVG").first.click()
    assert download.value.suggested_filename == "success-rate.svg"
    download.value.save_as(out)
    page.close()
    assert faults == []
    return out.read_bytes()


@pytest.mark.slow
def test_a_saved_curve_is_whole_without_the_page(browser, tmp_path: Path) -> None:
    lines = [iteration(number, lesson=("pickup", "full")[number > 3], success=number / 9) for number in range(9)]
    runs = [run_of_its_own_recipe(tmp_path / name, lines) for name in NAMES]
    report = write_report(read_runs(runs), tmp_path / "x.html")
    light, dark = (saved(browser, report, tmp_path / f"{scheme}.svg", scheme) for scheme in ("light", "dark"))
    assert light == dark
    root = ElementTree.fromstring(light)
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Success rate", "iteration", "100%", "full", *NAMES} <= set(texts)
    for element in root.iter():
        assert not [name for name in element.attrib if name == "class" or name.startswith("data-")]
        if element.tag.endswith(("path", "text")):
            assert {element.get("fill"), element.get("stroke")} != {"none"}, element.attrib  # it is seen
    means = [each.get("stroke") for each in root.findall("{*}g/{*}path[@stroke-width='2.2px']")]
    assert means == ["rgb(37, 99, 235)", "rgb(217, 72, 15)"]  # the first two light colours of style.css
    page = browser.new_page()
    page.goto(f"file://{tmp_path / 'light.svg'}")
    left_out = """() => { const edge = document.documentElement.getBoundingClientRect();
        return [...document.querySelectorAll("text")].filter(each => { const box = each.getBoundingClientRect();
            return box.left < edge.left || box.right > edge.right || box.top < edge.top || box.bottom > edge.bottom;
        }).map(each => each.textContent); }"""
    assert page.evaluate(left_out) == []
    page.close()


@pytest.fixture
def two_paces(browser, tmp_path: Path):
    """A report of two runs of five iterations, with 10 and 40 steps an iteration, and half a second for each."""
    runs = [
        run_of_its_own_recipe(
            tmp_path / name, [iteration(n, success=n / 4, env_steps=steps * (n + 1)) for n in range(5)]
        )
        for name, steps in (("slow", 10), ("fast", 40))
    ]
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"file://{write_report(read_runs(runs), tmp_path / 'x.html')}")
    yield page
    page.close()


def places(page) -> list[list[float]]:
    """Return the horizontal places of both curves in the first figure."""
    paths = page.locator("figure").first.locator(".raw")
    return [
        [float(at.split()[0]) for at in paths.nth(n).get_attribute("d")[1:].split("L")] for n in range(paths.count())
    ]


@pytest.mark.slow
def test_curves_are_drawn_over_steps_and_minutes(two_paces) -> None:
    by_iteration = places(two_paces)
    assert by_iteration[0] == by_iteration[1]
    two_paces.select_option("#unit", label="by environment steps")
    slow, fast = places(two_paces)
    left, right = by_iteration[0][0], by_iteration[0][-1]
    assert (slow[0], fast[-1]) == (left, right)
    assert slow[-1] == pytest.approx(left + (right - left) * (50 - 10) / (200 - 10), abs=0.1)
    assert fast[0] == pytest.approx(left + (right - left) * (40 - 10) / (200 - 10), abs=0.1)
    ticks = two_paces.locator("figure").first.locator(".tick")
    assert ticks.all_text_contents() == ["50", "100", "150", "200"]
    assert two_paces.locator(".unit").all_text_contents() == ["environment steps"] * two_paces.locator("figure").count()
    two_paces.select_option("#unit", label="by minutes")
    assert places(two_paces)[0] == places(two_paces)[1]
    two_paces.select_option("#unit", label="by iteration")
    assert places(two_paces) == by_iteration


@pytest.mark.slow
def test_the_pointer_reads_values_off_the_curves(two_paces) -> None:
    svg = two_paces.locator("figure svg").first
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    two_paces.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + box["height"] / 2)
    assert two_paces.locator("#tip").inner_text().splitlines() == ["iteration 4", "slow: 50.0 %", "fast: 50.0 %"]
    two_paces.select_option("#unit", label="by environment steps")
    two_paces.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2)
    assert two_paces.locator("#tip").inner_text().splitlines()[0] == "environment steps 200"
    two_paces.mouse.move(5, 5)
    assert not two_paces.locator("#tip").is_visible()


@pytest.mark.slow
def test_a_saved_table_is_what_is_seen(two_paces, tmp_path: Path) -> None:
    table = two_paces.get_by_role("group", name="Curriculum lessons").first
    with two_paces.expect_download() as download:
        two_paces.get_by_label("save Curriculum lessons as CSV").first.click()
    assert download.value.suggested_filename == "curriculum-lessons.csv"
    named = two_paces.locator("figure .save").evaluate_all("all => all.map(each => each.download)")
    assert "entropy-nats-a-step.svg" in named
    download.value.save_as(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.reader(file)]
    assert rows == [row.split("\t") for row in table.inner_text().splitlines()]
    assert rows[0] == ["lesson", "success", "iterations", "from, to"]
