"""The browser of the tests of the page."""

from __future__ import annotations

import pytest
from chromium import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started
