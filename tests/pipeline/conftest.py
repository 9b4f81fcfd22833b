from __future__ import annotations

from collections.abc import Iterator

import pytest
from prepared_runs import TAUGHT, Prepared
from scripted_endpoint import ScriptedEndpoint
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.pipeline import STAGES


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("prepared")
    with ScriptedEndpoint() as endpoint:
        endpoint.reply = lambda chat: f"{chat[1]['content'].splitlines()[-3][:60]} {'I think about it. ' * 12}".strip()
        overrides = [*TAUGHT, f"data.endpoint.base_url={endpoint.url}"]
        made = Prepared(load_recipe("number_line/nano", overrides), overrides, folder, endpoint)
        (folder / "nothing").mkdir()
        for stage in STAGES:
            play_stages(made.recipe, made.copy_before(stage, made.after(stage)), stage)
        yield made
