"""A recipe with a budget: what it leaves open is chosen by measurement, once, and written with its reason."""

from __future__ import annotations

import math
import re
import shutil
import time

import pytest
import yaml
from note import Note
from trained_runs import play_stages

from reflectrl.config import load_recipe, load_saved_recipe
from reflectrl.config.advantage import GAE
from reflectrl.config.schema import MIN_SFT_STEPS
from reflectrl.config.training import PPO, Replay
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import value_at
from reflectrl.core.profile import profiling
from reflectrl.core.run_files import METRICS, POLICY, POLICY_SFT, RECIPE, STAGES
from reflectrl.pipeline import run_stages
from reflectrl.pipeline.auto import MAX_SFT_STEPS, bounded, recurring
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.live_play import chance, choose_episodes, play_episode
from reflectrl.pipeline.sft_stage import fine_tune
from reflectrl.pipeline.survey import Survey, survey
from reflectrl.pipeline.sweep import PlannedRun, unfinished
from reflectrl.prompts import History, PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.results import read_results
from reflectrl.seats.others import RandomPolicy

pytestmark = pytest.mark.slow

STATED = {"data": {"samples": 60}, "eval": {"episodes": 6, "greedy": False}, "rlft": {"episodes": 8}}


def recipe(env="corridor:Hall", *overrides, **more):
    values = {"name": "short", "budget": {"minutes": 0.1}, "env": {"name": env}, **STATED, **more}
    return load_recipe(values, overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path, began = tmp_path_factory.mktemp("auto") / "run", time.monotonic()
    play_stages(recipe(), path)
    return path, time.monotonic() - began


def test_a_recipe_of_an_environment_and_a_budget_trains_and_says_what_was_chosen_and_why(trained):
    path, _ = trained
    assert {row.policy for row in read_results(path / "eval.jsonl")} == {"random", "sft", "rlft", "expert"}
    kept = load_saved_recipe(path / RECIPE)
    for key in ("model.max_length", "rlft.gamma", "sft.policy.steps", "rlft.lessons.0.iterations"):
        assert kept.budget.chosen[key]
    assert (kept.rlft.update, kept.rlft.advantage) == (PPO(kl_of_entropy=0.05), GAE())
    assert kept.model.max_length < 1024
    assert kept.model.builtin.pretrained
    assert kept.budget.chosen["sft.policy.batch_size"] == f"prompts have up to {kept.model.max_length} tokens"
    assert kept.budget.chosen["rlft.lessons.0.iterations"].startswith("the least: an iteration takes ")
    assert kept.rlft.validation.patience >= 20
    policy = kept.sft.policy
    assert policy.own_reflections == 1.0
    assert policy.max_rows * (1 - policy.held_out) == pytest.approx(policy.steps * policy.batch_size, abs=1)


def test_actions_that_recur_in_menus_keep_their_labels(trained):
    kept = load_saved_recipe(trained[0] / RECIPE)
    assert kept.prompt.known_actions == ("right", "left")
    assert "menus differ" in kept.budget.chosen["prompt.known_actions"]
    line, halls = ([("left", "right")] * 3, [(f"enter hall {number}", "stay") for number in range(9)])
    assert recurring([line, line]) == ()  # their places are labels enough
    assert recurring([halls[:3], halls[3:6], halls[6:]]) == ()  # later episodes would have others again
    assert recurring([halls, halls[::-1]]) == ("enter hall 0", "stay", *(f"enter hall {n}" for n in range(1, 9)))


def test_what_a_recipe_states_decides_what_goes_with_it(tmp_path):
    play_stages(recipe("corridor:Hall", "model.lora={r: 4}", "prompt.known_actions=[]"), tmp_path / "run", STAGES[0])
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert (kept.rlft.sharpen, kept.prompt.known_actions) == ((), ())
    assert kept.budget.chosen["prompt.labels"] == "menus need 2 labels"


def test_what_a_recipe_states_stays_as_it_says(trained):
    kept = load_saved_recipe(trained[0] / RECIPE)
    assert (kept.data.samples, kept.rlft.episodes, kept.eval.greedy) == (60, 8, False)
    assert kept.eval.max_tasks == kept.eval.episodes == 6
    assert not {"data.samples", "rlft.episodes"} & kept.budget.chosen.keys()
    again = load_recipe(recipe(), ["rlft.gamma=0.5", "rlft.update={kind: reinforce}"])
    assert again.budget.states("rlft.gamma")
    assert again.budget.states("rlft.update")
    assert not again.budget.states("rlft.advantage")
    short = recipe("corridor:Hall", "rlft.lessons.0.success_threshold=0.9")
    assert short.rlft.lessons[0].success_threshold == 0.9
    assert not short.budget.states("rlft.lessons.0.iterations")


def test_measuring_takes_its_time_out_of_the_budget(trained):
    path, seconds = trained
    assert RunFolder(path).seconds() > 0.9 * seconds


def test_a_training_ends_soon_after_the_minutes_that_were_given(trained, tmp_path):
    run, kept = RunFolder(trained[0]), load_saved_recipe(trained[0] / RECIPE)
    before, used = run.seconds(until="gen-data"), run.seconds(until="sft") - run.seconds(until="gen-data")
    for share in (0.3, 1.0):
        expected = 1000 - used + share * (60 * kept.budget.minutes - before)
        assert run.due(kept, "sft", 1000, share) == pytest.approx(expected)
    bound = "rlft.lessons.0.iterations"
    assert kept.budget.deadline(bound, 10) == 10 + 6 * kept.budget.minutes
    assert recipe("corridor:Hall", f"{bound}=7").budget.deadline(bound, 10) == math.inf
    policy = kept.sft.policy.model_copy(update={"steps": 300})
    longer = kept.model_copy(update={"sft": kept.sft.model_copy(update={"policy": policy})})
    _, summary = fine_tune(longer, run, "policy", tmp_path, until=time.monotonic() - 60)
    assert (summary.steps, summary.ended) == (MIN_SFT_STEPS, "minutes")


def test_a_player_s_bound_is_chosen_once_from_the_time_that_it_has(trained):
    run, kept = RunFolder(trained[0]), load_saved_recipe(trained[0] / RECIPE)
    assert bounded(kept, run, "policy", math.inf, print) == kept
    open_ones = {key: reason for key, reason in kept.budget.chosen.items() if not key.startswith("sft.policy.")}
    before = kept.model_copy(update={"budget": kept.budget.model_copy(update={"chosen": open_ones})})
    told = []
    steps = [bounded(before, run, "policy", until, told.append).sft.policy.steps for until in (0.0, 1e12)]
    assert steps == [MIN_SFT_STEPS, MAX_SFT_STEPS]
    assert told[0] == "0.0 of 0.1 minutes are for the policy; measuring the pace"
    stated = bounded(load_recipe(before, ["sft.policy.steps=2000"]), run, "policy", 0.0, told.append)
    assert (stated.sft.policy.steps, stated.sft.policy.warmup) == (2000, 0.05)
    assert bounded(stated, run, "policy", 1e12, print) == stated


def test_minutes_that_are_too_few_are_told_before_they_are_over(tmp_path):
    said = play_stages(recipe("corridor:SilentHall", "budget.minutes=0.01"), tmp_path)
    assert re.search(r"the least that is worth doing takes about \d+\.\d minutes more than are left", said)


def test_a_run_that_continues_keeps_its_bounds(trained):
    path, _ = trained
    before, weights = yaml.safe_load((path / RECIPE).read_text()), (path / POLICY / "model.safetensors").read_bytes()
    assert play_stages(recipe(), path).count("skipped") == len(STAGES)
    shutil.rmtree(path / POLICY)
    assert "deleted: making it again" in play_stages(recipe(), path)
    after = yaml.safe_load((path / RECIPE).read_text())
    for key in before["budget"]["chosen"]:
        assert value_at(after, key) == value_at(before, key)
    assert (path / POLICY / "model.safetensors").read_bytes() == weights


def test_a_finished_run_of_a_sweep_is_done(trained, tmp_path):
    file = tmp_path / "short.yaml"
    file.write_text(
        yaml.safe_dump({"name": "short", "budget": {"minutes": 0.1}, "env": {"name": "corridor:Hall"}, **STATED})
    )
    assert unfinished([PlannedRun(trained[0], str(file), ())]) == []


def test_another_budget_needs_another_folder(trained):
    with pytest.raises(InvalidInput, match=r"budget.minutes: 0.1 -> 3"):
        run_stages(recipe("corridor:Hall", "budget.minutes=3"), trained[0], STAGES)


def test_an_environment_without_an_expert_is_trained_by_play_alone(tmp_path):
    with profiling() as measured:
        play_stages(recipe("corridor:SilentHall"), tmp_path / "run")
    assert len(measured.iterations) == len((tmp_path / "run" / METRICS).read_text().splitlines())
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert (kept.data.teacher, kept.sft.enabled, kept.players.reflector.player) == ("random", False, "none")
    assert kept.rlft.replay == Replay(size=32, episodes=2)
    assert kept.budget.chosen["prompt.history"] == "the last action"  # no reflector plays that would judge it
    assert {row.policy for row in read_results(tmp_path / "run" / "eval.jsonl")} == {"random", "rlft"}


@pytest.mark.parametrize(("env", "weight"), [("corridor:SilentHall", 0.1), ("corridor:FaintHall", 0.001)])
def test_new_states_are_worth_a_fraction_of_what_the_environment_gives(tmp_path, env, weight):
    play_stages(recipe(env), tmp_path / "run", STAGES[0])
    assert load_saved_recipe(tmp_path / "run" / RECIPE).rlft.rewards == {"env": 1.0, "novelty": weight}


def test_new_states_are_worth_nothing_where_every_step_is_rewarded(tmp_path):
    play_stages(recipe("corridor:WarmHall"), tmp_path / "run", STAGES[0])
    assert load_saved_recipe(tmp_path / "run" / RECIPE).rlft.rewards == {"env": 1.0}


@pytest.mark.parametrize("env", ["corridor:Hall", "corridor:SilentHall"])
def test_advantages_of_whole_episodes_get_no_discount_and_no_replay(tmp_path, env):
    grouped = {"rlft": {"episodes": 8, "episodes_per_task": 4, "advantage": {"kind": "group"}}}
    play_stages(recipe(env, **grouped), tmp_path / "run", STAGES[0])
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert (kept.rlft.gamma, kept.rlft.replay) == (1, None)
    assert "rlft.gamma" not in kept.budget.chosen


def test_a_recipe_that_wants_no_reflector_gets_no_controls_of_its_words(tmp_path):
    play_stages(recipe("corridor:Hall", "players.reflector.player=none"), tmp_path / "run", STAGES[0])
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert kept.eval.controls == []
    assert "players.reflector.player" not in kept.budget.chosen


def test_episodes_of_chance_teach_a_policy_where_nobody_else_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    game = chance("corridor:SilentHall", {})
    for episode in choose_episodes(game.env, count=40):
        game.save(play_episode(game, episode, lambda _: None), tmp_path / "lucky.jsonl")
    data = {"data": {"demonstrations": ["lucky.jsonl"]}}
    play_stages(recipe("corridor:SilentHall", **data), tmp_path / "run", *STAGES[:2])
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert (kept.data.teacher, kept.sft.enabled, kept.players.reflector.player) == ("random", True, "none")
    assert (tmp_path / "run" / POLICY_SFT).is_dir()


def test_demonstrations_with_menus_tell_what_random_play_of_free_text_cannot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    game = chance("guessing:Guessing", {"menu": True})
    for episode in choose_episodes(game.env, count=60):
        game.save(play_episode(game, episode, lambda _: None), tmp_path / "lucky.jsonl")
    play_stages(recipe("guessing:Guessing", data={"demonstrations": ["lucky.jsonl"]}), tmp_path / "run")
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert (kept.prompt.action_mode, kept.prompt.history.show) == ("text", "transitions")
    assert (kept.rlft.update, kept.rlft.sharpen) == (PPO(kl_of_entropy=0.05), (1.0, 2.0))
    assert kept.players.policy.max_new_tokens <= 4
    assert {row.policy for row in read_results(tmp_path / "run" / "eval.jsonl")} == {"random", "sft", "rlft"}


def test_a_text_that_names_no_action_of_the_menu_is_penalised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    game = chance("corridor:SilentHall", {})
    for episode in choose_episodes(game.env, count=40):
        game.save(play_episode(game, episode, lambda _: None), tmp_path / "lucky.jsonl")
    written = recipe("corridor:SilentHall", "prompt.action_mode=text", data={"demonstrations": ["lucky.jsonl"]})
    play_stages(written, tmp_path / "run", STAGES[0])
    kept = load_saved_recipe(tmp_path / "run" / RECIPE)
    assert kept.rlft.rewards == {"env": 1.0, "illegal": -0.1}


def test_a_teacher_makes_few_mistakes_where_one_may_end_the_episode(tmp_path):
    noise = {}
    for env in ("corridor:Ledge", "corridor:Hall"):
        play_stages(recipe(env), tmp_path / env, STAGES[0])
        noise[env] = load_saved_recipe(tmp_path / env / RECIPE).data.noise
    assert noise["corridor:Ledge"] < 0.25 < noise["corridor:Hall"] == 0.5


def test_few_environments_play_side_by_side_where_making_them_takes_long(tmp_path):
    play_stages(recipe("corridor:SlowHall", "budget.minutes=1.0", "rlft.episodes=64"), tmp_path / "slow", STAGES[0])
    kept = load_saved_recipe(tmp_path / "slow" / RECIPE)
    assert 8 <= kept.rlft.batch_size == kept.eval.batch_size <= 0.02 * 60 / 0.1 < kept.rlft.episodes
    play_stages(recipe("corridor:Hall", "budget.minutes=1.0", "rlft.episodes=64"), tmp_path / "quick", STAGES[0])
    assert load_saved_recipe(tmp_path / "quick" / RECIPE).rlft.batch_size is None


def test_chance_alone_makes_no_prompt_show_the_past(tmp_path):
    need = {
        name: survey(recipe(f"corridor:{name}"), tmp_path, 5.0).needs_memory
        for name in ("SlipperyHall", "DiceyHall", "WrittenOffHall", "SilentHall", "HiddenHall")
    }
    assert need["SilentHall"] == 0
    assert max(need["SlipperyHall"], need["DiceyHall"]) < 0.2 < need["WrittenOffHall"]
    assert need["HiddenHall"] > 0.2


def test_a_reflector_carries_its_words_where_the_expert_does_and_the_state_does_not_tell(tmp_path):
    for stated, carried, shown in (((), True, "actions"), (("players.reflector.carry=false",), False, "transitions")):
        run = tmp_path / shown
        play_stages(recipe("note:Note", *stated), run, STAGES[0])
        kept = load_saved_recipe(run / RECIPE)
        assert (kept.players.reflector.carry, kept.prompt.history.show) == (carried, shown)


def test_nobody_reflects_where_the_environment_has_no_words_for_it(tmp_path):
    for stated, player in ((), "none"), (("players.reflector.player=local",), "local"):
        play_stages(recipe("corridor:Corridor", *stated), tmp_path / player, STAGES[0])
        assert load_saved_recipe(tmp_path / player / RECIPE).players.reflector.player == player


def test_the_longest_prompt_is_one_that_shows_as_many_past_states_as_it_may():
    env = Note()
    [task, *_] = env.split_tasks("train")
    played = rollout([env], [Episode(task, 0)], policy=RandomPolicy(), seats=(), layout=PromptFormat())
    seen = Survey(env.max_actions, 9, played, [], [], None, 0.0, 0.0)
    layouts = [PromptFormat(history=History(steps, show="transitions")) for steps in (len(played[0].turns), 9)]
    some, full = (seen.lengths(layout, "words", 500).prompt for layout in layouts)
    assert full > 2 * some


def test_tasks_that_gen_data_makes_cannot_be_measured_before():
    with pytest.raises(InvalidInput, match="remove budget and state"):
        load_recipe("auto_explore/nano", ["budget={minutes: 1}"])


def test_nobody_learns_from_a_random_teacher():
    with pytest.raises(InvalidInput, match="sft.enabled=false and players.reflector.player=none"):
        load_recipe({"name": "x", "env": {"name": "number_line"}, "data": {"teacher": "random"}})
