"""A folder from elsewhere runs no code, uses no key, reads no file and asks no server before the user has agreed."""

from __future__ import annotations

import os
import shutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from command_line import reflectrl, refused
from run_folders import forget_digests
from trained_runs import TrainedRuns, small_recipe
from transformers import dynamic_module_utils

from reflectrl.config import Recipe, dump_recipe, load_recipe, load_saved_recipe
from reflectrl.config.trust import FIELDS, TRUSTED, for_play, kind_of, remember, wishes
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import AGENT, LOCK, RECIPE
from reflectrl.core.settings import section_of, sections_of, settings_fields
from reflectrl.lm.section import ModelSection
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.run import Run

SERVER = "https://elsewhere.example/v1"
WISHES = {
    "run Python code that came with its model gpt2": ["model.name=gpt2", "model.trust_remote_code=true"],
    "run Python code that came with its model reader": [
        "reflector_model={name: reader, trust_remote_code: true}",
    ],
    "run Python code that came with its model planner": [
        "players.planner={player: local, model: {name: planner, trust_remote_code: true}}"
    ],
    "read the model /srv/model": ["players.planner={player: local, model: {name: /srv/model}}"],
    "read the model ../model.gguf": ["players.planner={player: local, model: {name: ../model.gguf}}"],
    "import others:Trainer": ["rlft.trainer=others:Trainer"],
    "send its metrics to wandb": ["report_to=wandb"],
    "send its metrics to trackio, wandb": ["report_to={trackers: [trackio, wandb], name: mine, group: a, tags: [b]}"],
    "read pypi:shop, /home": ["env.name=auto_explore", "dataset={repositories: ['pypi:shop', /home, 'company:nano']}"],
    "read ../others": ["eval.reflectors=[{name: wise, run: ../others}]"],
    "read /etc/shadow": ["data.demonstrations=[/etc/shadow]"],
    "open textworld:house.z8": ["env.name='textworld:house.z8'"],
    **{
        f"make the environment auto_explore with dataset='{source}'": [
            f"env={{name: auto_explore, options: {{dataset: '{source}'}}}}"
        ]
        for source in ("pypi:shop", "../mine", "file:///srv")
    },
    "make the environment gymnasium with make={'hook': 'others'}": [
        "env={name: gymnasium, options: {id: FrozenLake-v1, make: {hook: others}}}"
    ],
    "open openenv:my_package": ["env.name='openenv:my_package'"],
    "make the environment openenv with server='my_package'": ["env={name: openenv, options: {server: my_package}}"],
    "make the environment openenv with key='$HF_TOKEN'": ["env={name: openenv, options: {key: $HF_TOKEN}}"],
    "make the environment verifiers with environment='wordle'": [
        "env={name: verifiers, options: {environment: wordle}}"
    ],
    "send the key in AWS_SECRET_ACCESS_KEY to https://elsewhere.example/v1": [
        f"players.reflector={{player: remote, endpoint: {{base_url: {SERVER}, api_key_env: AWS_SECRET_ACCESS_KEY}}}}"
    ],
    "send the key in OPENAI_API_KEY to http://localhost:8000/v1": [
        "players.reflector={player: remote, endpoint: {base_url: 'http://localhost:8000/v1'}}"
    ],
    "send states to elsewhere.example": [
        f"players.planner={{player: remote, endpoint: {{base_url: {SERVER}}}}}",
    ],
    "send states to api.openai.com": ["players.reflector.player=remote"],
    "send states to served.example": [
        "players.reflector={player: server, endpoint: {base_url: 'https://served.example/v1'}}",
    ],
    "send states to writer.example": [
        "players.policy.server={base_url: 'https://writer.example/v1'}",
        *("model.lora={r: 4}", "prompt.action_mode=thought_choice", "players.reflector.player=none"),
        "eval.controls=[]",
    ],
    "send states to replica.example": [
        "players.reflector={player: remote, endpoint: {base_url: 'http://localhost:8000/v1', replicas: "
        "['https://replica.example/v1']}}",
    ],
}
"""Overrides by what they want."""
OF_STAGES = ("import", "send its metrics", "read pypi", "read ../others", "read /etc", "send states to writer")
"""Wishes of sections that only the stages of a run read."""


def recipe_that(wish: str) -> Recipe:
    return load_recipe("number_line/nano", WISHES[wish])


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-others")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# ---- the list of fields ------------------------------------------------------------------------------------------


def sections(section: type) -> Iterator[type]:
    """Yield a recipe section and all sections inside it."""
    yield section
    for field in settings_fields(section).values():
        for inner in sections_of(field.annotation):
            yield from sections(inner)


def is_number(annotation: Any) -> bool:
    """Return whether values of a type are numbers, or lists of them."""
    if get_origin(annotation) is Annotated:
        return is_number(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple, Union, types.UnionType):
        return all(map(is_number, get_args(annotation)))
    return annotation in (int, float, type(None))


def test_every_field_of_a_recipe_is_listed() -> None:
    unlisted, listed = set(), set()
    for section in sections(Recipe):
        for name, field in settings_fields(section).items():
            if kind_of(section, name) is not None:
                listed |= {f"{base.__name__}.{name}" for base in section.__mro__} & FIELDS.keys()
            elif section_of(field.annotation) is None and not is_number(field.annotation):
                unlisted.add(f"{section.__name__}.{name}")
    assert unlisted == set()
    assert FIELDS.keys() - listed == set()  # nothing that a recipe no longer has


class Newer(ModelSection):
    """A model section with a field that nobody has thought about."""

    hook: str = ""
    compression: Literal["none", "some"] = "none"


def test_an_unlisted_field_is_refused_once_it_is_set() -> None:
    recipe = load_recipe("number_line/nano")
    assert list(wishes(recipe.model_copy(update={"model": Newer()}))) == []
    changed = recipe.model_copy(update={"model": Newer(hook="others:run", compression="some")})
    assert [wish.text.partition(",")[0] for wish in wishes(changed)] == ["set model.hook", "set model.compression"]


def test_recipes_that_need_no_server_want_nothing() -> None:
    for name in ("number_line/nano", "dangerous_taxi/pickup", "shop/nano", "gym_cards/nano_number_line_gtr"):
        assert [wish.text for wish in wishes(for_play(load_recipe(name)))] == []
    own_server = ["players.reflector={player: remote, endpoint: {base_url: 'http://127.0.0.1:1/v1'}}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY")
        assert list(wishes(load_recipe("number_line/nano", own_server))) == []


# ---- folders -----------------------------------------------------------------------------------------------------


def folder_with(recipe: Recipe, folder: Path, *, exported: bool = False) -> Path:
    folder.mkdir()
    (folder / RECIPE).write_text(dump_recipe(recipe), encoding="utf-8")
    if exported:
        (folder / AGENT).touch()
    return folder


@pytest.mark.parametrize("wish", WISHES)
def test_a_folder_from_elsewhere_is_refused_until_the_user_names_it(
    wish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(recipe_that(wish), tmp_path / "theirs")
    for trusted in ("", "1", str(tmp_path)):
        monkeypatch.setenv(TRUSTED, trusted)
        for read in (load_saved_recipe, lambda path: Run(path.parent)):
            with pytest.raises(InvalidInput) as refusal:
                read(folder / RECIPE)
            assert wish in str(refusal.value)
            assert f"{TRUSTED}={folder}" in str(refusal.value)
    monkeypatch.setenv(TRUSTED, str(folder))
    assert load_saved_recipe(folder / RECIPE) == recipe_that(wish)


@pytest.mark.parametrize("wish", WISHES)
def test_of_an_exported_agent_only_what_playing_needs_is_read(wish: str, tmp_path: Path) -> None:
    folder = folder_with(recipe_that(wish), tmp_path / "agent", exported=True)
    if wish.startswith(OF_STAGES):
        recipe = load_saved_recipe(folder / RECIPE)
        assert (recipe.rlft, recipe.data.demonstrations, recipe.eval.reflectors) == (None, None, [])
        assert recipe.dataset is None or recipe.dataset.repositories == []
    else:
        with pytest.raises(InvalidInput, match="the exported agent"):
            load_saved_recipe(folder / RECIPE)


def test_a_recipe_that_the_user_began_is_theirs_in_that_folder_only(tmp_path: Path) -> None:
    recipe = recipe_that("import others:Trainer")
    mine = folder_with(recipe, tmp_path / "mine")
    remember(mine, recipe, dump_recipe(recipe))
    assert load_saved_recipe(mine / RECIPE) == recipe
    with pytest.raises(InvalidInput, match="were not begun here"):
        load_saved_recipe(shutil.copytree(mine, tmp_path / "copy") / RECIPE)
    (mine / RECIPE).write_text(dump_recipe(recipe_that("send its metrics to wandb")))
    with pytest.raises(InvalidInput, match="were not begun here"):
        load_saved_recipe(mine / RECIPE)


def test_a_folder_stays_the_users_once_there_is_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    recipe = recipe_that("send the key in OPENAI_API_KEY to http://localhost:8000/v1")
    mine = folder_with(recipe, tmp_path / "mine")
    remember(mine, recipe, dump_recipe(recipe))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-others")
    assert load_saved_recipe(mine / RECIPE) == recipe


def test_the_recipe_of_a_folder_extends_no_file(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "mine.yaml").write_text("extends: number_line/nano\n")
    for parent in (tmp_path / "mine.yaml", "../mine.yaml"):
        (theirs / RECIPE).write_text(f"extends: {parent}\n")
        with pytest.raises(InvalidInput, match="expected the recipe of a folder to be whole"):
            load_saved_recipe(theirs / RECIPE)
    (theirs / RECIPE).write_text("extends: number_line/nano\n")
    assert load_saved_recipe(theirs / RECIPE).env.name == "number_line"


def test_a_word_that_names_a_local_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    games = ["env={name: textworld, options: {games: private}}"]
    planner = ["players.planner={player: local, model: {name: private}}"]
    folders = [folder_with(load_recipe("number_line/nano", each), tmp_path / each[0][:7]) for each in (games, planner)]
    for folder in folders:
        assert load_saved_recipe(folder / RECIPE)
    (tmp_path / "private").mkdir()
    for folder in folders:
        with pytest.raises(InvalidInput, match="private"):
            load_saved_recipe(folder / RECIPE)


def test_servers_are_allowed_by_name_and_keys_are_not(tmp_path: Path) -> None:
    def read(wish: str, *hosts: str) -> Recipe:
        shutil.rmtree(tmp_path / "agent", ignore_errors=True)
        folder = folder_with(recipe_that(wish), tmp_path / "agent", exported=True)
        return load_saved_recipe(folder / RECIPE, hosts=hosts)

    for wish in ("send states to elsewhere.example", "send states to api.openai.com"):
        host = wish.rpartition(" ")[2]
        with pytest.raises(InvalidInput, match=f"--allow-host {host}"):
            read(wish, "other.example")
        assert read(wish, "other.example", host).players
    with pytest.raises(InvalidInput, match=TRUSTED) as refusal:
        read("send the key in AWS_SECRET_ACCESS_KEY to https://elsewhere.example/v1", "elsewhere.example")
    assert "--allow-host" not in str(refusal.value)


def test_options_of_the_environment_are_allowed_by_giving_them(tmp_path: Path) -> None:
    wish = "make the environment auto_explore with dataset='pypi:shop'"
    folder = folder_with(recipe_that(wish), tmp_path / "agent", exported=True)
    with pytest.raises(InvalidInput, match=r"give dataset=\.\.\. yourself"):
        load_saved_recipe(folder / RECIPE, given={"horizon"})
    for given in ({"dataset"}, None):
        assert load_saved_recipe(folder / RECIPE, given=given).env.name == "auto_explore"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_lock_of_a_folder_from_elsewhere_leads_nowhere(tmp_path: Path, kind: str) -> None:
    folder, mine = folder_with(load_recipe("number_line/nano"), tmp_path / "theirs"), tmp_path / "mine"
    mine.write_text("precious")
    if kind == "link":
        (folder / LOCK).symlink_to(mine)
    else:
        os.mkfifo(folder / LOCK)
    with pytest.raises(InvalidInput, match=f"is a {kind}, which is not written"), RunFolder(folder).locked():
        pass
    assert mine.read_text() == "precious"


# ---- commands ----------------------------------------------------------------------------------------------------

PLANNER = """
import pathlib
pathlib.Path({mark!r}).touch()
"""


@pytest.fixture(scope="module")
def trained(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.mark.slow
def test_an_audit_makes_no_environment_that_a_folder_from_elsewhere_describes(trained: Path, tmp_path: Path) -> None:
    run = forget_digests(shutil.copytree(trained, tmp_path / "run"))
    options = f"env={{name: textworld, options: {{games: {tmp_path}}}}}"
    (run / RECIPE).write_text(dump_recipe(load_recipe(str(run / RECIPE), [options])))
    assert f"make the environment textworld with games='{tmp_path}'" in refused("audit-reflector", str(run))


@pytest.mark.slow
def test_an_export_is_the_users_own(trained: Path, tmp_path: Path) -> None:
    server = "players.planner={player: remote, endpoint: {model: m, base_url: 'http://localhost:8000/v1'}}"
    run = forget_digests(shutil.copytree(trained, tmp_path / "run"))
    recipe = load_recipe(str(run / RECIPE), [server])
    (run / RECIPE).write_text(dump_recipe(recipe))
    remember(run, recipe, dump_recipe(recipe))
    reflectrl("export", str(run), "--out", str(tmp_path / "mine"))
    assert load_agent(tmp_path / "mine").recipe.players.planner is not None
    with pytest.raises(InvalidInput, match="send the key in OPENAI_API_KEY"):
        load_agent(shutil.copytree(tmp_path / "mine", tmp_path / "theirs"))


@pytest.mark.slow
def test_no_command_runs_the_code_of_a_foreign_model(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mark = forget_digests(shutil.copytree(trained, tmp_path / "run")), tmp_path / "ran"
    planner = tmp_path / "planner"
    planner.mkdir()
    (planner / "theirs.py").write_text(PLANNER.format(mark=str(mark)))
    (planner / "config.json").write_text('{"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}')
    model = f"{{name: {planner}, trust_remote_code: true}}"
    recipe = small_recipe(f"players.planner={{player: local, model: {model}}}")
    (run / RECIPE).write_text(dump_recipe(recipe))
    for command in (("play", "--run"), ("serve",), ("explore", ".", "where?", "--run"), ("export",)):
        assert "run Python code that came with its model" in refused(*command, str(run))
    with pytest.raises(InvalidInput, match="run Python code"):
        load_agent(run)
    assert not mark.exists()
    monkeypatch.setenv(TRUSTED, str(run))
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    reflectrl("play", "--run", str(run))
    assert mark.exists()  # it would have run
