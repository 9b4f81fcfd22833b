"""The estimate of an iteration: its counts, and that its seconds are close to those of a real iteration."""

from __future__ import annotations

import json

import pytest
from command_line import reflectrl

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.pipeline.costs import ShallowModels
from reflectrl.pipeline.estimate import estimate, play

TINY = ["rlft.episodes=8", "model.builtin={layers: 1, width: 32, heads: 2, vocabulary: 384}"]


def recipe(*changes):
    return load_recipe("number_line/nano", [*TINY, *changes])


def stages_of(*changes):
    return estimate(recipe(*changes)).stages


def played(tmp_path, *changes):
    of = recipe(*changes)
    return play(of, of.rlft, of.rlft.stages[0], tmp_path)


@pytest.mark.slow
def test_the_parts_of_an_iteration_are_those_that_the_recipe_has():
    (local,) = stages_of("rlft.num_minibatches=2", "rlft.terms={ppo: {epsilon: 0.2}}", "rlft.num_iterations=3")
    assert list(local.parts) == ["reflect: read", "reflect: write", "act", "update", "environments"]
    assert local.parts["update"].passes == 6  # each fits into one pass
    assert local.parts["update"].tokens > local.parts["act"].tokens
    assert (local.episodes, local.iterations) == (8, 30)
    assert local.seconds == pytest.approx(sum(part.seconds for part in local.parts.values()))
    assert all(part.seconds > 0 for part in local.parts.values())
    (silent,) = stages_of("players.reflector.player=none")
    assert list(silent.parts) == ["act", "update", "environments"]


NOT_COUNTED = {
    "rlft.record_episodes=8": "records",
    "rlft.validation={every: 5}": "rlft.validation",
    "rlft.terms.kl={coef: 0.1}": "rlft.terms.kl",
    "rlft.ema=0.9": "rlft.ema",
    "players.reflector.player=remote": "the requests of players.reflector",
    "players.planner={player: remote}": "players.planner",
    "players.memory={episodes: 1, steps: 2, max_chars: 20}": "the search of players.memory",
}


@pytest.mark.slow
def test_an_estimate_names_the_parts_of_the_recipe_that_it_leaves_out():
    brief = "rlft.record_episodes=0"
    unvalidated = "rlft.validation=null"
    assert estimate(recipe(brief, unvalidated)).not_counted == ("checkpoints",)
    assert estimate(recipe(brief, *NOT_COUNTED)).not_counted == ("checkpoints", *NOT_COUNTED.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft asks transformers for it
def test_adapters_in_upper_layers_are_estimated_with_the_few_layers_that_are_timed():
    deep = "model.builtin={layers: 6, width: 32, heads: 2, vocabulary: 384}"
    (stage,) = stages_of(deep, "model.lora={r: 2, layers: 4-5}")
    assert stage.parts["update"].seconds > 0


def test_prompts_that_the_cache_has_are_not_read_again(tmp_path):
    cached, all_of = (played(tmp_path).reflections(cached=cached)[0] for cached in (True, False))
    assert sum(map(len, all_of)) == sum(len(each.turns) for each in played(tmp_path).episodes)
    assert sum(map(len, cached)) < sum(map(len, all_of))


@pytest.mark.slow
def test_beginnings_are_counted_once_where_states_are_reused(tmp_path):
    seen = played(tmp_path)
    counts = {}
    for reuse in (True, False):
        section = recipe(f"model.prefix_reuse={str(reuse).lower()}").model
        models = ShallowModels(section, seen.corpus, seen.labels, tmp_path / str(reuse))
        rows = [models.encoder.rows([view.prompt for view in step]) for step in seen.policy_views]
        counts[reuse], _ = models.read(rows)
        assert models.sample(rows) == max(map(len, rows))  # all, because it is little work
    assert counts[True] < counts[False] == sum(len(row) for step in rows for row in set(step))


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(InvalidInput, match="rlft section"):
        estimate(load_recipe("number_line/nano", ["rlft=null"]))
    with pytest.raises(InvalidInput, match="costs money"):
        estimate(load_recipe("auto_explore/nano", ["dataset.writer=openai"]))
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        estimate(recipe("model.name=/nowhere/at/all"))


@pytest.mark.slow
def test_layers_that_are_not_measured_are_counted():
    few, many = (
        stages_of(f"model.builtin={{layers: {layers}, width: 64, heads: 2, vocabulary: 384}}")[0].parts["update"]
        for layers in (4, 16)
    )
    assert few.tokens == many.tokens
    assert 2 < many.seconds / few.seconds < 8


@pytest.mark.slow
def test_the_command_prints_a_table_or_json():
    arguments = ["estimate", "--recipe", "number_line/nano", "players.reflector.player=none", *TINY]
    table = reflectrl(*arguments)
    assert (table.code, table.err) == (0, "")
    assert table.out.splitlines()[0].split() == ["part", "of", "an", "iteration", "tokens", "passes", "seconds"]
    assert "30 iterations: about" in table.out
    assert table.out.splitlines()[-1] == "not counted: checkpoints, records, rlft.validation"
    (found,) = json.loads(reflectrl(*arguments, "--format", "json").out)["stages"]
    assert found["parts"]["act"]["tokens"] > 0
    assert found["iterations"] == 30


@pytest.mark.slow
def test_each_stage_of_a_curriculum_is_estimated():
    two = "rlft.stages=[{name: short, iterations: 2, env: {size: 4}}, {name: long, iterations: 8}]"
    found = estimate(recipe("players.reflector.player=none", two))
    short, long = found.stages
    assert (short.stage, short.iterations, long.stage, long.iterations) == ("short", 2, "long", 8)
    assert 0 < short.steps < long.steps
    lines = found.text.splitlines()
    assert [line for line in lines if line.startswith("stage ")] == ["stage short:", "stage long:"]
    whole = (2 * short.seconds + 8 * long.seconds) / 60
    assert f"all stages: about {whole:.1f} min" in lines
