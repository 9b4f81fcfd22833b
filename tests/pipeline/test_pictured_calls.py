"""Recipes with chat models that see pictures of the states: the rater of episodes and the corrector of thoughts."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import SHORT, play_stages

from reflectrl.config import check_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS, training_episodes_file
from reflectrl.pipeline.folder import read_recipe
from reflectrl.report.runs import read_runs
from reflectrl.rollout.record import read_trajectories

SMALL = (*SHORT, "model.builtin.width=32", "rlft.lessons.0.iterations=2")
SMALL += (
    "model.builtin.image_size=36",
    "model.builtin.patch_size=12",
    "rlft.update.num_iterations=2",
    "rlft.update.num_minibatches=2",
)
RATED, CORRECTED = "vtifa/nano_images", "gym_cards/nano_number_line_gtr_remote_image"


@pytest.mark.slow
def test_a_policy_of_pictures_is_trained_on_ratings_of_strips(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda chat: "Rating: 2" if isinstance(chat[1]["content"], str) else "The number went up."
    play_stages(load_recipe(RATED, [*SMALL, f"players.rater.endpoint.base_url={endpoint.url}"]), tmp_path / "run")
    asked = [request.chat[1]["content"] for request in endpoint.requests]
    summaries = [content for content in asked if not isinstance(content, str)]
    assert summaries
    assert all([part["type"] for part in content] == ["image_url", "text"] for content in summaries)
    header, played = read_trajectories(tmp_path / "run" / training_episodes_file(0))
    assert header.prompt.images == ("policy", "reflector", "rater")
    assert {each.turns[-1].rewards["rater"] for each in played} == {2.0}
    assert max(line["logprob_gap"] for _, line in read_jsonl(tmp_path / "run" / METRICS)) < 1e-4


@pytest.mark.slow
def test_a_corrector_sees_the_picture_that_the_policy_sees(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    def reply(chat: Chat) -> str:
        shown, _ = chat[1]["content"]
        assert shown["type"] == "image_url"
        return '{"evaluation": "NO", "correction": "It is higher."}'

    endpoint.reply = reply
    more = (f"players.corrector.endpoint.base_url={endpoint.url}", "players.policy.max_new_tokens=8")
    legal = "prompt.action_mode=thought_choice"  # trained so briefly, the policy writes no JSON to correct
    play_stages(load_recipe(CORRECTED, [*SMALL, *more, legal, "eval.policies=[rlft]"]), tmp_path / "run")
    [run] = read_runs([tmp_path / "run"])
    [calls] = run.calls
    assert (calls.role, calls.replies) == ("corrector", len(endpoint.requests))
    assert calls.model == read_recipe(tmp_path / "run").players.corrector.endpoint.model
    _, played = read_trajectories(tmp_path / "run" / training_episodes_file(0))
    assert all(turn.said["corrector"].text in ("", "It is higher.") for each in played for turn in each.turns)


def test_pictures_go_to_chat_models_alone_and_have_to_be_there() -> None:
    for name, role, other in ((RATED, "rater", "local"), (CORRECTED, "corrector", "expert")):
        check_recipe(load_recipe(name))
        with pytest.raises(InvalidInput, match=f"player={other} reads text; set player to remote"):
            load_recipe(name, [f"players.{role}.player={other}"])
        with pytest.raises(InvalidInput, match=rf"players\.{role}\.images"):
            check_recipe(load_recipe(name, ["env.options.observation=text", "model.images=false"]))
