"""A real browser, with which tests open pages from the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]


WIDTHS = (360, 768, 1280, 1920)


def faults_at_widths(page: Any) -> list[str]:
    """Return what axe finds wrong with a page at each width, light and dark: contrast, names, keyboard, landmarks."""
    from axe_playwright_python.sync_playwright import Axe

    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for fault in Axe().run(page).response["violations"]:
                places = [node["html"][:200] for node in fault["nodes"][:3]]
                found.append(f"{fault['id']} at {width}, {scheme}: {fault['help']}: {places}")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser, or skip the test where it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
