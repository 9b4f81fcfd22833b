"""The link at each curve that saves it as an SVG file, in a real browser."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_folders import iteration, make_run

from reflectrl.report.page import write_report
from reflectrl.report.runs import read_runs

NAMES = ["one <b>&", "two"]


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
    lines = [iteration(number, stage=("pickup", "full")[number > 3], success=number / 9) for number in range(9)]
    report = write_report(read_runs([make_run(tmp_path / name, metrics=lines) for name in NAMES]), tmp_path / "x.html")
    light, dark = (saved(browser, report, tmp_path / f"{scheme}.svg", scheme) for scheme in ("light", "dark"))
    assert light == dark
    root = ElementTree.fromstring(light)
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Success rate", "iteration", "100%", "full", *NAMES} <= set(texts)
    for element in root.iter():
        assert "class" not in element.attrib
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
