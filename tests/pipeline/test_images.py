"""A policy that reads pictures, from the recipe to the evaluation and a loaded agent."""

from __future__ import annotations

import shutil

import pytest
from interruptions import kill_and_resume_rlft
from run_folders import pictures
from trained_runs import SHORT, play_stages

import reflectrl as rl
from reflectrl.config import check_recipe, load_recipe
from reflectrl.core import Observation
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS, POLICY, sft_rows_file, training_episodes_file
from reflectrl.data_gen import read_rows
from reflectrl.pipeline import STAGES
from reflectrl.report import report
from reflectrl.rollout.record import read_trajectories
from reflectrl.share.export import export_run
from reflectrl.share.server import load_served_agent

pytestmark = pytest.mark.slow

RECIPE = "gym_cards/nano_number_line_image_nothought"
SMALL = (
    *SHORT,
    "model.builtin.width=32",
    "model.builtin.image_size=30",
    "model.builtin.patch_size=15",
    "rlft.update.num_iterations=2",
    "rlft.update.num_minibatches=2",
    "rlft.validation.episodes=6",
    "data.samples=100",
    "eval.episodes=6",
)
BRIEF = ("data.samples=60", "rlft.lessons.0.iterations=2", "eval.policies=[rlft]", "eval.episodes=4")
WITH_TEXT = (
    "env.options.observation=both",
    "players.reflector.player=local",
    "players.reflector.max_new_tokens=4",
)
TEXT_MODEL = "reflector_model={name: builtin/nano, max_length: 160, builtin: {layers: 1, width: 32}}"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    path = tmp_path_factory.mktemp("begun") / "pictured"
    play_stages(load_recipe(RECIPE, SMALL), path, *STAGES[:2])
    return path


@pytest.fixture(scope="module")
def run(begun, tmp_path_factory):
    path = shutil.copytree(begun, tmp_path_factory.mktemp("runs") / "pictured")
    play_stages(load_recipe(RECIPE, SMALL), path)
    return path


def episodes_in(file):
    return [] if file.name.startswith("advantages") else read_trajectories(file)[1]


def shown(observation="image"):
    env = rl.make_env("gym_cards", game="number_line", observation=observation)
    env.reset(seed=0)
    return env.observation


def test_pictures_are_stored_once_by_hash(run):
    assert max(line["logprob_gap"] for _, line in read_jsonl(run / METRICS)) < 1e-4  # ratios are 1 before an update
    file = run / training_episodes_file(0)
    header, played = read_trajectories(file)
    assert header.prompt.images == ("policy", "reflector")
    images = {image.sha256 for episode in played for turn in episode.turns for image in turn.observation.images}
    assert images <= {path.stem for path in (file.parent / "images").iterdir()}
    assert not any(turn.observation.text for episode in played for turn in episode.turns)
    rows = run / sft_rows_file("policy")
    pictured = {image.sha256 for row in read_rows(rows) for image in row.prompt.images}
    assert pictured <= {path.stem for path in (rows.parent / "images").iterdir()}
    assert b"data" not in rows.read_bytes()


def test_a_report_holds_each_picture_of_its_episodes_once(run, tmp_path):
    page = report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    found = pictures(page)
    assert len(set(found)) == len(found)
    played = [each for file in (run / "trajectories").glob("*.jsonl") for each in episodes_in(file)]
    assert set(found) == {image.data for each in played for turn in each.turns for image in turn.observation.images}


def test_no_sample_shows_a_held_out_start(run):
    rows = read_rows(run / sft_rows_file("policy-no-reflection"))
    env = rl.make_env("gym_cards", game="number_line", observation="image")
    for task in (*env.tasks("test"), *env.tasks("validation")):
        env.reset(seed=0, options={"task": task})
        assert all(row.prompt.images != env.observation.images for row in rows)


def test_an_agent_plays_pictures_and_refuses_states_without(run):
    agent, state = rl.load_agent(run), shown()
    assert agent.act(state).decision.action in state.actions
    with pytest.raises(rl.InvalidInput, match=r"model\.images"):
        agent.act(Observation("Target number: 1. Current number: 2.", state.actions))


@pytest.mark.parametrize("use", [load_served_agent, export_run])
def test_uses_that_know_only_text_refuse_it(run, use):
    with pytest.raises(rl.InvalidInput, match=r"model\.images"):
        use(run)


def test_a_policy_of_text_is_refused_before_it_is_trained_on_pictures(tmp_path):
    recipe = load_recipe(RECIPE, [*SMALL, "model.images=false"])
    with pytest.raises(rl.InvalidInput, match=r"Observation\.text"):
        play_stages(recipe, tmp_path / "run", *STAGES[:2])
    with pytest.raises(rl.InvalidInput, match="remote"):
        load_recipe(RECIPE, ["eval.policies=[remote]"])


def test_an_environment_without_pictures_is_refused():
    check_recipe(load_recipe(RECIPE))
    with pytest.raises(rl.InvalidInput, match=r"env\.options: the policy reads pictures.*observation"):
        check_recipe(load_recipe(RECIPE, ["env.options.observation=text"]))


UNVALIDATED = ["rlft.validation=null", "rlft.keep=last"]
THINKS = ["prompt.action_mode=thought_choice", "rlft.terms.sft_thought.coef=1.0"]


@pytest.mark.parametrize(
    ("overrides", "blind"),
    [
        (["model.images=false"], "policy"),
        (["players.reflector.player=remote"], "reflector"),
        (["players.memory={}"], "memory"),
        (["players.planner={player: expert}"], "planner"),
        (["players.rater={player: remote}", "rlft.rewards={rater: 1.0}", *UNVALIDATED], "rater"),
        ([*THINKS, "players.corrector={player: remote}"], "corrector"),
    ],
)
def test_x2_players_that_read_text_are_refused_where_pictures_have_none(overrides, blind):
    with pytest.raises(rl.InvalidInput, match=rf"env\.options: .* read text: {blind}; .* observation to both"):
        check_recipe(load_recipe(RECIPE, overrides))
    check_recipe(load_recipe(RECIPE, [*overrides, "env.options.observation=both"]))


def test_a_memory_finds_past_episodes_by_their_pictures(tmp_path):
    recipe = load_recipe("rap/nano_images", [*SMALL, *BRIEF])
    play_stages(recipe, tmp_path / "run")
    header, played = read_trajectories(tmp_path / "run" / training_episodes_file(0))
    assert header.prompt.images == ("policy", "memory", "reflector")
    words = [turn.said["memory"].text for each in played for turn in each.turns]
    assert len(set(words)) > 1
    assert all(said.startswith("Done before: >") for said in words)
    assert max(line["logprob_gap"] for _, line in read_jsonl(tmp_path / "run" / METRICS)) < 1e-4
    state = shown()
    assert rl.load_agent(tmp_path / "run").act(state).decision.action in state.actions
    with pytest.raises(rl.InvalidInput, match="a memory's key is picture"):
        load_recipe("rap/nano_images", ["model.images=false"])


@pytest.mark.parametrize(
    ("roles", "settings"),
    [
        (("policy",), (*WITH_TEXT, TEXT_MODEL)),
        (("policy", "reflector"), WITH_TEXT),
        (
            ("policy", "reflector"),
            (
                *("prompt.action_mode=thought_choice", "players.policy.max_new_tokens=8"),
                *("model.lora={r: 4}", "rlft.advantage={kind: gae}"),
            ),
        ),
    ],
    ids=["a text reflector", "a reflector of pictures", "a thought, adapters and a value head"],
)
def test_pictures_go_with(roles, settings, tmp_path):
    play_stages(load_recipe(RECIPE, [*SMALL, *BRIEF, *settings]), tmp_path / "run")
    assert max(line["logprob_gap"] for _, line in read_jsonl(tmp_path / "run" / METRICS)) < 1e-4
    header, played = read_trajectories(tmp_path / "run" / training_episodes_file(0))
    assert header.prompt.images == roles
    assert all(("reflector" in turn.said) == (settings[0] in WITH_TEXT) for each in played for turn in each.turns)


def test_a_killed_run_of_pictures_goes_on_to_the_same_weights(run, begun, tmp_path):
    copy = shutil.copytree(begun, tmp_path / "small")
    kill_and_resume_rlft(load_recipe(RECIPE, SMALL), copy)
    assert (copy / METRICS).read_bytes() == (run / METRICS).read_bytes()
    assert (copy / POLICY / "model.safetensors").read_bytes() == (run / POLICY / "model.safetensors").read_bytes()


def test_a_tiny_model_learns_to_read_two_digits_from_pixels(tmp_path):
    """That RL then makes it better is published: ``thoughts_pictures`` of ``benchmarks/siblings.py``."""
    alone = ["rlft=null", "eval.policies=[sft]", "eval.controls=[]", "eval.episodes=100"]
    play_stages(load_recipe(RECIPE, alone), tmp_path / "run")
    rates = [row["metrics"]["success"] for _, row in read_jsonl(tmp_path / "run" / "eval.jsonl")]
    assert len(rates) == 2
    assert min(rates) >= 0.85  # on five deals that were never shown; chance is 0.17
