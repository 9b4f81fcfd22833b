from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory):
    """Translations are kept in a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
