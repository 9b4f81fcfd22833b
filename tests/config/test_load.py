"""Loading: extends, overrides, and a list of every mistake at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from reflectrl.config import check_recipe, dump_recipe, load_recipe, recipe_names, recipe_text
from reflectrl.core import InvalidInput

MINIMAL = "name: mine\nenv: {name: number_line}\n"


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_shipped_recipe_loads_by_name() -> None:
    assert load_recipe("dangerous_taxi/nano").env.name == "dangerous_taxi"


def test_a_file_loads_by_path(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, MINIMAL)).name == "mine"


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'dangerous_taxi/nano'"):
        load_recipe("dangerous_taxi/nanoo")
    with pytest.raises(InvalidInput, match="did you mean 'dangerous_taxi/nano'"):
        recipe_text("dangerous_taxi/nanoo")


def test_extends_merges_mappings_and_replaces_everything_else(tmp_path: Path) -> None:
    write(
        tmp_path,
        MINIMAL + "rlft: {gamma: 0.5, stages: [{name: a, iterations: 1}, {name: b, iterations: 2}]}",
        "base.yaml",
    )
    (tmp_path / "sub").mkdir()
    child = write(tmp_path / "sub", "extends: ../base.yaml\nrlft: {episodes: 8, stages: [{name: c, iterations: 3}]}\n")
    rlft = load_recipe(child).rlft
    assert rlft is not None
    assert (rlft.gamma, rlft.episodes, [stage.name for stage in rlft.stages]) == (0.5, 8, ["c"])


def test_a_file_extends_a_shipped_recipe_and_null_clears(tmp_path: Path) -> None:
    text = "extends: dangerous_taxi/nano\nname: mine\nreflector_model: null\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.reflector_model is None
    assert recipe.data == load_recipe("dangerous_taxi/nano").data


def test_a_circle_of_extends_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    write(tmp_path, "extends: a.yaml\n", "b.yaml")
    with pytest.raises(InvalidInput, match=r"extends itself: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_recipe(str(tmp_path / "a.yaml"))


def test_a_missing_parent_names_the_child(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'gone\.yaml', which '.*mine\.yaml' extends, is neither"):
        load_recipe(write(tmp_path, "extends: gone.yaml\n"))


def test_overrides_reach_into_mappings_and_lists() -> None:
    recipe = load_recipe(
        "dangerous_taxi/nano",
        [
            "seed=7",
            "rlft.stages.0.iterations=5",
            "rlft.learning_rate=1e-3",
            "env.options.horizon=9",
            "eval.controls=[blank]",
        ],
    )
    assert recipe.rlft is not None
    assert (recipe.seed, recipe.rlft.stages[0].iterations, recipe.rlft.learning_rate) == (7, 5, 1e-3)
    assert (recipe.env.options, recipe.eval.controls) == ({"stage": "pickup", "horizon": 9}, ["blank"])


def test_numbers_without_a_point_are_numbers_in_free_options_too(tmp_path: Path) -> None:
    text = "name: mine\nenv: {name: number_line, options: {a: 2e-4, b: 1E5, c: e5, d: '2e-4'}}\n"
    assert load_recipe(write(tmp_path, text)).env.options == {"a": 2e-4, "b": 1e5, "c": "e5", "d": "2e-4"}


def test_all_mistakes_are_told_at_once_with_the_nearest_names(tmp_path: Path) -> None:
    text = """
name: mine
env: {name: number_line, optoins: {}}
seed: 1
seed: 2
model: {lora: {target_modules: 3}, quantization: 9bit}
rlft: {stages: [{name: a, iterations: many}], gama: 0.9, gamma: .nan}
data: 7
sft: null
"""
    with pytest.raises(InvalidInput) as caught:
        load_recipe(
            write(tmp_path, text), ["promt.history=3", "seed", "rlft.stages.2.iterations=1", "name.x=1", "seed={"]
        )
    header, *lines = str(caught.value).split("\n  ")
    expected = [
        "line 5: the key 'seed' is given twice",
        "override 'seed': expected key.sub=value",
        "override 'rlft.stages.2.iterations=1': rlft.stages has 1 entries",
        "override 'name.x=1': name is 'mine', which has no part 'x'",
        "override 'seed={': '{' is no valid YAML",
        "env.optoins: unknown key, given {}; did you mean 'options'?",
        "model.lora.target_modules: given 3; expected a valid list or 'all-linear'.",
        "model.quantization: given '9bit'; expected 'none', '8bit' or '4bit'.",
        "rlft.stages.0.iterations: given 'many'; expected a valid integer",
        "rlft.gama: unknown key, given 0.9; did you mean 'gamma'?",
        "rlft.gamma: given nan; expected a finite number.",
        "data: given 7; expected a mapping with keys among teacher",
        "sft: given null; expected a mapping with keys among reflector",
        "promt: unknown key, given {'history': 3}; did you mean 'prompt'?",
    ]
    assert header.endswith(f"has {len(expected)} mistakes:")
    assert [sentence for sentence in expected if not any(line.startswith(sentence) for line in lines)] == []
    assert len(lines) == len(expected)
    assert all(line.endswith(".") for line in lines)


def test_settings_that_contradict_each_other_are_told_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\n  rlft: num_iterations or num_minibatches above 1 needs epsilon"):
        load_recipe(write(tmp_path, MINIMAL + "rlft: {num_iterations: 2}"))
    with pytest.raises(InvalidInput, match=r"\n  eval.policies names rlft but"):
        load_recipe(write(tmp_path, MINIMAL + "rlft: null"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is no valid YAML: .* line 1"),
        ("- a\n- b\n", r"holds \['a', 'b'\]; expected a mapping"),
        ("", "holds None; expected a mapping"),
        ("x: !!python/object/apply:os.getcwd []", "is no valid YAML"),
        (MINIMAL + "extends: [a, b]", "expected the name or path of one recipe"),
        ("env: {name: number_line}", "name: nothing was given; expected a value"),
        (MINIMAL + "1: 2", "1: "),
    ],
)
def test_files_that_are_no_recipe_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_recipe(write(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InvalidInput, match="expected a YAML file in UTF-8"):
        load_recipe(str(path))


@pytest.mark.parametrize("name", recipe_names())
def test_a_dumped_recipe_loads_back_equal(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    assert load_recipe(write(tmp_path, dump_recipe(recipe))) == recipe


def test_a_dump_keeps_the_schema_order_and_fills_in_defaults() -> None:
    dumped = yaml.safe_load(dump_recipe(load_recipe("dangerous_taxi/nano_sft_only")))
    assert list(dumped)[:4] == ["name", "description", "seed", "env"]
    assert dumped["rlft"] is None
    assert dumped["data"]["noise"] == 0.0


def test_check_refuses_an_unknown_environment() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'dangerous_taxi'"):
        check_recipe(load_recipe("dangerous_taxi/nano", ["env.name=dangerous_tax"]))


def test_check_refuses_a_dataset_for_an_environment_that_brings_its_own_tasks() -> None:
    recipe = load_recipe("dangerous_taxi/nano", ["dataset.repositories=[company:nano]"])
    with pytest.raises(InvalidInput, match="dataset: environment 'dangerous_taxi' brings its own tasks"):
        check_recipe(recipe)


def test_check_tells_every_wrong_environment_option_at_once() -> None:
    overrides = [
        "env.options.stag=1",
        "rlft.stages.0.env.stage=pikup",
        "rlft.stages.1.env={horizn: 3}",
        "eval.env.horizon=soon",
    ]
    with pytest.raises(InvalidInput) as caught:
        check_recipe(load_recipe("dangerous_taxi/nano_full_curriculum", overrides))
    assert [line.split("; ")[0].strip() for line in str(caught.value).split("\n")[1:]] == [
        "env.options.stag: unknown option, given 1",
        "eval.env: horizon='soon' was given to 'dangerous_taxi'",
        "rlft.stages.0.env: stage 'pikup' of 'dangerous_taxi' is unknown",
        "rlft.stages.1.env.horizn: unknown option, given 3",
    ]
    assert "did you mean 'stage'" in str(caught.value)


def test_check_tells_a_wrong_option_once_however_many_stages_inherit_it() -> None:
    recipe = load_recipe("dangerous_taxi/nano", ["env.options.stage=pikup"])
    with pytest.raises(InvalidInput) as caught:
        check_recipe(recipe)
    assert str(caught.value).count("pikup") == 1
