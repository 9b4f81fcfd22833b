"""Loading: extends, overrides, and a list of every mistake at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from reflectrl.config import check_recipe, dump_recipe, load_recipe, recipe_text
from reflectrl.config.advantage import GAE, BatchMean
from reflectrl.config.training import PPO, EntropyBonus, EntropyTarget, Reinforce, RLFTSection
from reflectrl.core import InvalidInput, Task, register_env
from reflectrl.endpoint.account import Price
from reflectrl.envs.number_line import NumberLine

MINIMAL = "name: mine\nenv: {name: number_line}\n"


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_extends_merges_mappings_replaces_everything_else_and_null_clears(tmp_path: Path) -> None:
    base = "rlft: {gamma: 0.5, lessons: [{name: a, iterations: 1}, {name: b, iterations: 2}]}"
    write(tmp_path, f"{MINIMAL}{base}", "base.yaml")
    (tmp_path / "sub").mkdir()
    child = write(tmp_path / "sub", "extends: ../base.yaml\nrlft: {episodes: 8, lessons: [{name: c, iterations: 3}]}\n")
    rlft = load_recipe(child).rlft
    assert rlft is not None
    assert (rlft.gamma, rlft.episodes, [lesson.name for lesson in rlft.lessons]) == (0.5, 8, ["c"])
    recipe = load_recipe(write(tmp_path, "extends: dangerous_taxi/nano\nname: mine\nreflector_model: null\n"))
    assert recipe.reflector_model is None
    assert recipe.data == load_recipe("dangerous_taxi/nano").data


def test_a_section_that_names_no_kind_is_of_the_default_one(tmp_path: Path) -> None:
    def rlft(text: str, *overrides: str) -> RLFTSection:
        found = load_recipe(write(tmp_path, MINIMAL + text), overrides).rlft
        assert found is not None
        return found

    found = rlft("rlft: {advantage: {gae_lambda: 0.5}, terms: {entropy: {floor: 0.2}}}", "rlft.update.epsilon=0.1")
    assert (found.advantage, found.update) == (GAE(gae_lambda=0.5), PPO(epsilon=0.1))
    assert found.terms.entropy == EntropyBonus(floor=0.2)
    assert rlft("", "rlft.advantage.gae_lambda=0.9").advantage == GAE(gae_lambda=0.9)
    assert rlft("rlft: {terms: {entropy: null}}", "rlft.terms.entropy.floor=0.2").terms == found.terms


def test_a_section_of_another_kind_replaces_the_one_above(tmp_path: Path) -> None:
    above = f"{MINIMAL}rlft: {{advantage: {{gae_lambda: 0.5, center: false}}, terms: {{entropy: {{coef_end: 0.5}}}}}}"
    write(tmp_path, above, "base.yaml")
    write(tmp_path, "extends: base.yaml\nrlft: {update: {epsilon: 0.1}}", "middle.yaml")
    changes = (
        "rlft: {advantage: {kind: batch}, update: {kind: reinforce}, terms: {entropy: {kind: target, target: 0.3}}}"
    )
    child = load_recipe(write(tmp_path, f"extends: middle.yaml\n{changes}")).rlft
    assert child is not None
    assert (child.advantage, child.update, child.terms.entropy) == (BatchMean(), Reinforce(), EntropyTarget(0.3))
    same = load_recipe(write(tmp_path, "extends: middle.yaml\nrlft: {advantage: {kind: gae, normalize: false}}")).rlft
    assert same is not None
    assert same.advantage == GAE(gae_lambda=0.5, center=False, normalize=False)
    overrides = ["rlft.advantage.kind=batch", "rlft.advantage.center=true"]
    overridden = load_recipe(str(tmp_path / "middle.yaml"), overrides).rlft
    assert overridden is not None
    assert overridden.advantage == BatchMean(center=True)


def test_an_option_of_an_environment_may_be_called_kind_too(tmp_path: Path) -> None:
    base = write(tmp_path, f"{MINIMAL[:-2]}, options: {{kind: a, size: 5}}}}", "base.yaml")
    child = load_recipe(write(tmp_path, f"extends: {base}\nenv: {{options: {{kind: b}}}}"))
    assert child.env.options == {"kind": "b", "size": 5}


@pytest.mark.parametrize(
    ("override", "fact"),
    [
        ("rlft.advantage.kind=bach", "rlft.advantage: unknown kind, given 'bach'; did you mean 'batch'"),
        ("rlft.advantage=gae", "rlft.advantage: given 'gae'; expected a mapping with a kind: gae, none, batch, leave"),
        (
            "rlft.advantage.weight=2",
            "rlft.advantage.weight: unknown key, given 2; known: .* gae_lambda, kind, ",
        ),
        ("rlft.terms.entropy={kind: target}", "rlft.terms.entropy.target: nothing was given"),
    ],
)
def test_what_does_not_suit_the_kind_of_a_section_is_refused(override: str, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        load_recipe({"name": "mine", "env": {"name": "number_line"}}, [override])


def test_options_of_another_environment_are_not_inherited(tmp_path: Path) -> None:
    base = write(
        tmp_path,
        "extends: dangerous_taxi/nano\neval: {env: {horizon: 9}}\n"
        "rlft: {lessons: [{name: a, iterations: 1, env: {stage: pickup}}]}\n",
        "base.yaml",
    )
    other = load_recipe(
        write(tmp_path, f"extends: {base}\nenv: {{name: number_line, options: {{size: 5}}}}\neval: {{split: test}}\n")
    )
    assert other.rlft is not None
    assert (other.env.options, other.eval.env, other.rlft.lessons[0].env) == ({"size": 5}, {}, {})
    check_recipe(other)
    same = load_recipe(write(tmp_path, f"extends: {base}\nenv: {{name: dangerous_taxi}}\n"))
    assert (same.env.options["stage"], same.eval.env) == ("pickup", {"horizon": 9})
    overridden = load_recipe("dangerous_taxi/nano", ["env.options.size=6", "env.name=number_line"])
    assert overridden.env.options == {"size": 6}


def test_yes_and_no_are_no_numbers(tmp_path: Path) -> None:
    text = MINIMAL + "seed: yes\ndata: {samples: on}\nrlft: {gamma: no, lessons: [{name: a, iterations: true}]}\n"
    with pytest.raises(InvalidInput) as caught:
        load_recipe(write(tmp_path, text), ["prompt.history.steps=true", "eval.greedy=yes"])
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"{key}: given {value}; expected a number."
        for key, value in {
            "seed": True,
            "data.samples": True,
            "rlft.gamma": False,
            "rlft.lessons.0.iterations": True,
            "prompt.history.steps": True,
        }.items()
    ]


def test_a_number_of_past_steps_stands_for_its_section(tmp_path: Path) -> None:
    base = write(tmp_path, MINIMAL + "prompt: {history: 7}\n")
    longer = write(tmp_path, f"extends: {base}\nprompt: {{history: {{show: transitions}}}}\n", "longer.yaml")
    said = {
        (base,): (7, "actions"),
        (longer,): (7, "transitions"),
        (longer, "prompt.history=2"): (2, "actions"),
        (base, "prompt.history=2", "prompt.history.show=transitions"): (2, "transitions"),
    }
    for (path, *overrides), (steps, show) in said.items():
        history = load_recipe(path, overrides).prompt.history
        assert (history.steps, history.show) == (steps, show)
    for wrong, fact in {
        "many": "a mapping with keys among steps",
        "-1": "steps: given -1",
        "{step: 1}": "'steps'",
    }.items():
        with pytest.raises(InvalidInput, match=f"prompt.history.*{fact}"):
            load_recipe(base, [f"prompt.history={wrong}"])
    with pytest.raises(InvalidInput, match="steps is 0"):
        load_recipe(base, ["prompt.history={steps: 0, show: transitions}"])


def test_keys_are_names_dates_are_text_and_numbers_need_no_point(tmp_path: Path) -> None:
    text = "name: 2020-01-01\nenv: {name: number_line, options: {1: 2e-4, no: 1E5, null: e5, 2020-02-30: '2e-4'}}\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.name == "2020-01-01"
    assert recipe.env.options == {"1": 2e-4, "no": 1e5, "null": "e5", "2020-02-30": "2e-4"}


def test_aliases_and_merged_mappings(tmp_path: Path) -> None:
    text = MINIMAL + "rlft: {lessons: [&lesson {name: a, iterations: 1}, *lesson]}"
    for absent in ("", "rlft: null\n"):  # overrides begin with the lesson that is there by default
        short = load_recipe(write(tmp_path, MINIMAL + absent), ["rlft.lessons.0.iterations=5"]).rlft
        assert [(lesson.name, lesson.iterations) for lesson in short.lessons] == [("main", 5)]
    rlft = load_recipe(write(tmp_path, text), ["rlft.lessons.0.iterations=5"]).rlft
    assert rlft is not None
    assert [lesson.iterations for lesson in rlft.lessons] == [5, 1]
    text = "env: {name: number_line, options: {a: &b {<<: &base {x: 1}, x: 2}, c: {<<: *b, y: 3}}}\nname: mine\n"
    assert load_recipe(write(tmp_path, text)).env.options == {"a": {"x": 2}, "c": {"x": 2, "y": 3}}


def test_all_mistakes_are_notes_at_once_with_the_nearest_names(tmp_path: Path) -> None:
    text = """
name: mine
env: {name: number_line, optoins: {}}
seed: 1
seed: 2
model: {lora: {target_modules: 3}, quantization: 9bit}
rlft: {lessons: [{name: a, iterations: many}], gama: 0.9, gamma: .nan}
data: 7
sft: null
"""
    with pytest.raises(InvalidInput) as caught:
        load_recipe(
            write(tmp_path, text), ["promt.history=3", "seed", "rlft.lessons.2.iterations=1", "name.x=1", "seed={"]
        )
    header, *lines = str(caught.value).split("\n  ")
    expected = [
        "line 5: the key 'seed' is given twice",
        "override 'seed': expected key.sub=value",
        "override 'rlft.lessons.2.iterations=1': rlft.lessons has 1 entries",
        "override 'name.x=1': name is 'mine', which has no part 'x'",
        "override 'seed={': '{' is not valid YAML",
        "env.optoins: unknown key, given {}; did you mean 'options'?",
        "model.lora.target_modules: given 3; expected a valid list or 'all-linear'.",
        "model.quantization: given '9bit'; expected 'none', '8bit' or '4bit'.",
        "rlft.lessons.0.iterations: given 'many'; expected a valid integer",
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


def test_a_dump_keeps_the_schema_order_and_fills_in_defaults() -> None:
    dumped = yaml.safe_load(dump_recipe(load_recipe("dangerous_taxi/nano_sft_only")))
    assert list(dumped)[:5] == ["name", "description", "seed", "budget", "report_to"]
    assert dumped["rlft"] is None
    assert dumped["data"]["noise"] == 0.0


@pytest.mark.parametrize(
    ("given", "trackers"),
    [
        (("report_to=wandb",), ["wandb"]),
        (("report_to=[wandb, trackio]", "report_to.group=seeds"), ["wandb", "trackio"]),
        (("report_to={trackers: [trackio]}", "report_to=none"), []),
        (("report_to.group=seeds",), []),
    ],
)
def test_trackers_are_named_alone_in_a_list_or_with_a_group(given: tuple[str, ...], trackers: list[str]) -> None:
    report_to = load_recipe("number_line/nano", given).report_to
    assert (report_to.trackers, report_to.group) == (trackers, "seeds" if "report_to.group=seeds" in given else None)


def test_a_tracker_that_accelerate_does_not_know_is_refused_with_those_that_it_knows() -> None:
    for given in ("report_to=wanb", "report_to=[tensorboard, wanb]"):
        with pytest.raises(InvalidInput, match="report_to.*given.*wanb.*'tensorboard', 'trackio' or 'wandb'"):
            load_recipe("number_line/nano", [given])


TEACHER = "dangerous_taxi/openai_teacher"


@pytest.mark.parametrize(
    ("overrides", "price"),
    [
        (["base_url=http://localhost:8000/v1"], "refused"),
        (["model=gpt-5"], "refused"),
        (["base_url=http://localhost:8000/v1", "price={prompt: 1, completion: 2}"], Price(1, 2)),
        (["base_url=http://localhost:8000/v1", "price=null"], None),
        (["base_url=null", "model=gpt-4o", "max_tokens=300"], Price(2.5, 10, 1.25)),
    ],
)
def test_a_price_is_not_applied_to_another_model_or_server(
    overrides: list[str], price: Price | str | None, tmp_path: Path
) -> None:
    changes = {key: yaml.safe_load(value) for key, _, value in (o.partition("=") for o in overrides)}
    own = write(tmp_path, yaml.safe_dump({"extends": TEACHER, "data": {"endpoint": changes}}))
    for given in ((TEACHER, [f"data.endpoint.{each}" for each in overrides]), (own, [])):  # an override, or a recipe
        if price == "refused":
            with pytest.raises(InvalidInput, match=r"data\.endpoint\.price: .*'gpt-4o'"):
                load_recipe(*given)
        else:
            recipe = load_recipe(*given)
            assert recipe.data.endpoint.price == price
            assert load_recipe(write(tmp_path, dump_recipe(recipe), "whole.yaml")) == recipe  # as in a run folder


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "None"),
        ("x: !!python/object/apply:os.getcwd []", "os.getcwd"),
        ("name: !!binary aGk=", "type bytes"),
        (MINIMAL + "extends: [a, b]", r"extends.*\['a', 'b'\]"),
        (MINIMAL + "sft: {reflector: {label_smoothing: 0.1}}", "sft.reflector.label_smoothing"),
        (f"extends: {'x' * 5000}", "mine.yaml"),
        ("extends: .", "'.'"),
        (f"name: {'[' * 1000}", "mine.yaml"),
        ("env: &env {options: {env: *env}}", "mine.yaml"),
        ("".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9)), "100,000"),
        (f"seed: 0x{'f' * 5000}", "64 bits"),
        ('name: "\\ud800"', r"'\\ud800'"),
        ('name: "a\\0b"', r"'a\\x00b'"),
        ("? [a]\n: 1", "YAML"),
        (b"\xff\xfe\x00\x80", "UTF-8"),
    ],
)
def test_a_file_that_cannot_be_a_recipe_is_refused_in_few_words(tmp_path: Path, text: str | bytes, fact: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInput, match=fact) as caught:
        load_recipe(path)
    assert len(str(caught.value)) < 1000 or "extends" in str(text)


@pytest.mark.parametrize(
    ("override", "fact"),
    [
        ("a..b=1", "'a..b=1'"),
        ("eval.controls.0=x", "eval.controls has 0"),
        (f"rlft.lessons.{'9' * 5000}.name=x", "from 0 to 0"),
        ("env.options={a: 1, a: 2}", "line 1: .*'a'"),
    ],
)
def test_overrides_and_names_that_cannot_be_used_are_refused(tmp_path: Path, override: str, fact: str) -> None:
    text = MINIMAL + "eval: {controls: []}\nrlft: {lessons: [{name: a, iterations: 1}]}\n"
    with pytest.raises(InvalidInput, match=fact):
        load_recipe(write(tmp_path, text), [override])
    for unknown in (load_recipe, recipe_text):
        with pytest.raises(InvalidInput, match="'dangerous_taxi/nano'"):
            unknown("dangerous_taxi/nanoo")


@pytest.mark.parametrize(
    ("name", "overrides", "facts"),
    [
        ("nano", ["dataset.repositories=[company:nano]"], ["dataset: .*'dangerous_taxi'"]),
        ("nano", ["eval.split=[test, unseen_destinations, x]"], ["eval.split: .*'unseen_destination'", "'x'"]),
        (
            "nano_full_curriculum",
            [
                "env.options.stag=1",
                "rlft.lessons.0.env.stage=pikup",
                "rlft.lessons.1.env={horizn: 3}",
                "eval.env.horizon=x",
            ],
            [
                "env.options.stag: .* 1; .*'stage'",
                "eval.env: .*horizon='x'",
                "rlft.lessons.0.env: .*'pikup'",
                "rlft.lessons.1.env.horizn: .* 3",
            ],
        ),
        (
            "nano",
            ["rlft.lessons.0.tasks=[nowhere]"],
            ["rlft.lessons.0.tasks: lesson 'pickup' asks for tasks that start with ..nowhere"],
        ),
        ("nano", ["eval.tasks=[nowhere]"], ["split 'test'", "split 'unseen_destination'"]),
    ],
)
def test_what_the_environment_does_not_take_is_named_all_at_once(
    name: str, overrides: list[str], facts: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_recipe(load_recipe(f"dangerous_taxi/{name}", overrides))
    lines = str(caught.value).split("\n")[1:] or [str(caught.value)]
    assert [re.search(fact, line) is not None for fact, line in zip(facts, lines, strict=True)] == [True] * len(facts)


def test_long_menus_and_empty_splits_are_refused() -> None:
    longer = ["env.options.menu=52", "rlft.lessons=[{name: a, iterations: 2, env: {menu: 60}}]"]
    with pytest.raises(InvalidInput, match="rlft.lessons.0.env: its menus have up to 60 actions, .* 52; set"):
        check_recipe(load_recipe("alfworld/nano", longer))

    class TrainingOnly(NumberLine):
        def tasks(self, split: str) -> Sequence[Task]:
            return super().tasks(split) if split == "train" else ()

    register_env("training_only", TrainingOnly)
    minimal = {"name": "x", "env": {"name": "training_only"}, "rlft": {}}
    with pytest.raises(InvalidInput) as caught:
        check_recipe(load_recipe(minimal))
    assert [f"no tasks in split {split!r}" in str(caught.value) for split in ("test", "validation")] == [True, False]


SHADOWED = {
    "env.max_memory_mb=900": "env.max_memory_mb: .*env.workers is 0",
    "players.reflector={player: remote, temperature: 0.7}": "players.reflector.temperature: .*endpoint.temperature",
    "reflector_model={}": "reflector_model: .*player is remote",
    "sft={reflector: {held_out: 0, patience: 3}, policy: {held_out: 0, check_every: 5}}": "sft.reflector.patience: .*"
    "sft.reflector.held_out is 0.*sft.policy.check_every: ",
    "rlft={learning_rate_schedule: cosine, learning_rate_end: 1}": "rlft.learning_rate_schedule: .*learning_rate_end",
    "rlft.rewards={env: 0}": "rlft.rewards: all weights are 0",
    "rlft.lessons=[{name: a, iterations: 3, success_threshold: 0.5}, {name: b, iterations: 3, window: 2},"
    " {name: c, iterations: 3, replay_threshold: 0.5}]": "rlft.lessons.0.success_threshold: .*window=5"
    ".*rlft.lessons.1.window: .*rlft.lessons.2.replay_threshold: ",
    "eval={policies: [sft], controls: [blank], groups: ['']}": "eval.groups: .*eval.controls: .*rlft",
}
BESIDE = [
    (
        "number_line/nano_value_clip",
        "rlft.update.num_minibatches=1",
        "rlft.advantage.value.clip: .* is one; raise",
    ),
    (
        "vtifa/nano",
        "players.rater.segment=3",
        "used by player local or server or remote, but players.rater.player is rule",
    ),
    ("vtifa/nano", "players.rater.include_actions=false", "players.rater.player is rule"),
    ("vtifa/nano_endpoint", "players.rater.accuracy=0.5", "used by player rule, but players.rater.player is remote"),
    (
        "smollm2/number_line_server_thoughts",
        "players.policy.server.temperature=1",
        "policy.server.temperature: a server",
    ),
    ("rap/nano_planner_local", "players.planner={player: expert, examples: 1}", "players.planner.player is expert"),
    ("rap/nano_ranked", "players.memory.key=none", "key_match: it compares words, but players.memory.key is none"),
    ("rap/nano_ranked", "players.memory.weights.key=0", "weights: all are 0, so no past episode"),
    ("rap/nano", "players.memory.weights.key=0", "memory.key: it is compared with players.memory.weights.key=0"),
    ("rap/nano", "players.memory={key: action, steps: 2, action_steps: 3}", "steps: players.memory.action_steps takes"),
    ("auto_explore/nano", "env.options.dataset=runs/other/dataset", "the section dataset makes; remove one of the two"),
    (
        "dangerous_taxi/nano_own_reflections",
        "players.reflector.player=expert",
        "own_reflections: .* players.reflector.player=expert has none",
    ),
    ("number_line/nano", "eval.trials={begin_with: teacher}", "begin_with: .*the recipe has none; add eval.memory"),
]


def test_settings_without_an_effect_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    with pytest.raises(InvalidInput) as caught:
        load_recipe(path, list(SHADOWED))
    said = str(caught.value)
    assert "12 mistakes" in said
    assert [fact for fact in SHADOWED.values() if not re.search(fact, said, re.DOTALL)] == []


@pytest.mark.parametrize(("name", "override", "fact"), BESIDE)
def test_settings_of_another_player_than_the_recipe_s_are_refused(name: str, override: str, fact: str) -> None:
    load_recipe(name)
    with pytest.raises(InvalidInput, match=fact):
        load_recipe(name, [override])


@pytest.mark.parametrize("address", ["http://me:secret@host/v1", "https://host/v1?api_key=secret"])
def test_credentials_are_refused_and_not_shown(address: str) -> None:
    sections = ("data", "players.policy", "dataset")
    repositories = ["git+https://me:secret@host/x.git", "https://secret@host/x.git", "ssh://git@host/x", "git@host:x"]
    overrides = [
        f"dataset={{repositories: {repositories}}}",
        *(f"{each}.endpoint.base_url={address}" for each in sections),
        "env.options.dataset=git+https://me:secret@host/x.git",
    ]
    with pytest.raises(InvalidInput, match="6 mistakes") as caught:
        load_recipe("number_line/nano", overrides)
    assert [f"{each}.endpoint.base_url: " in str(caught.value) for each in sections] == [True] * 3
    assert "secret" not in str(caught.value)


def test_a_model_in_the_home_folder_is_found_by_its_tilde() -> None:
    override = "model={name: ~/models/tiny.gguf, max_length: 64}"
    assert load_recipe("number_line/nano", [override]).model.name == str(Path.home() / "models" / "tiny.gguf")


def test_a_part_of_a_price_is_changed_alone() -> None:
    part = ["data.endpoint.price.prompt=1", "data.endpoint.base_url=http://localhost:8000/v1"]
    assert load_recipe(TEACHER, part).data.endpoint.price == Price(1, 10, 1.25)
