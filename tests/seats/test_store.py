"""The store: what it keeps of an episode, which of two episodes, and that kills and batches change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from remembered import HEADER, OneHot, played, store

from reflectrl.core import InvalidInput, Observation
from reflectrl.rollout.record import EpisodeStore
from reflectrl.seats.experience import PastStep, experience_of
from reflectrl.seats.retriever import Key, Query, Retriever

MUG = played(
    "mug", ("go to shelf", "You see a mug."), ("take mug", "You take it."), ("put mug", ""), plan="Find a mug."
)


def test_an_episode_is_kept_as_actions_with_the_words_that_followed_each():
    kept = experience_of(MUG)
    assert [(step.action, step.observation) for step in kept.steps] == [
        ("go to shelf", "You see a mug."),
        ("take mug", "You take it."),
        ("put mug", ""),
    ]
    assert (kept.task, kept.task_type, kept.plan, kept.start) == (
        "Put a mug.",
        "put",
        "Find a mug.",
        "You see a table.",
    )


def test_the_words_that_followed_the_last_action_are_kept_where_the_record_has_them():
    """RAP's equation 7 compares a key with every observation, that of the reached goal too."""
    end = Observation("You see a table.\n> put mug\nYou put it on the shelf.", ())
    assert experience_of(replace(MUG, last=end)).steps[-1] == PastStep("put mug", "You put it on the shelf.")
    nothing = Observation("You see a table.\n> put mug\nNothing happens.", ())
    assert [step.action for step in experience_of(replace(MUG, last=nothing)).steps] == ["go to shelf", "take mug"]


def test_r5_steps_that_did_nothing_are_gone_and_the_order_of_the_rest_is_kept():
    steps = ("open table", "Nothing happens."), ("look", "A mug."), ("buy", "Invalid action! Look."), ("run", "Ouch.")
    kept = experience_of(played("mug", *steps, ("put mug", ""), illegal=3))
    assert [step.action for step in kept.steps] == ["look", "put mug"]


def test_a_list_of_places_is_cut_from_a_thought():
    thought = "think: I need a mug. It is likely to appear in cabinet 1, shelf 2."
    kept = experience_of(played("mug", (thought, "OK."), ("think: Take it. Go.", "OK."), ("put mug", "")))
    assert [step.action for step in kept.steps[:2]] == ["think: I need a mug.", "think: Take it. Go."]


def test_another_word_for_what_is_kept_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="keep='reward'.*did you mean 'rewarded'"):
        EpisodeStore(tmp_path / "store.jsonl", HEADER, keep="reward")


def test_r6_failed_episodes_are_not_stored(tmp_path):
    memory = store(tmp_path)
    failed = replace(MUG, success=False)
    assert not memory.add(failed)
    assert (memory.snapshot(), memory.path.exists()) == ((), False)
    assert store(tmp_path, keep="rewarded").add(failed)  # its return is above 0
    assert not store(tmp_path, keep="rewarded").add(played("cup", ("wait", ""), reward=0.0, success=False))


def test_the_best_episode_of_a_task_stays_success_before_return_before_fewer_steps(tmp_path):
    step, last = ("look", "A mug."), ("put mug", "")
    offers = [
        (played("mug", step, step, last, success=False), True),
        (played("mug", step, last, reward=0.5), True),
        (played("mug", last, reward=9.0, success=False), False),
        (played("mug", step, last), True),
        (played("mug", last), True),
        (played("mug", step, last), False),
    ]
    memory = store(tmp_path, keep="rewarded")
    for offer, taken in offers:
        before = memory.path.read_bytes() if memory.path.exists() else b""
        assert memory.add(offer) == taken
        after = memory.path.read_bytes()
        assert after.startswith(before)  # a better episode is added and none is overwritten
        assert (after != before) == taken
    for opened in (memory, store(tmp_path)):
        [kept] = opened.snapshot()
        assert (len(kept.steps), kept.episode_return) == (1, 1.0)


def test_r10_a_store_survives_a_restart_and_drops_an_unfinished_last_line(tmp_path):
    memory = store(tmp_path)
    memory.add(MUG)
    memory.add(played("cup", ("look", "A cup."), ("put cup", "")))
    query = Query(task="Put a cup.", key=Key("observation", "a mug"))
    before = Retriever(memory.snapshot(), OneHot()).retrieve(query)
    whole = memory.path.read_bytes()
    memory.path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:40])
    again = store(tmp_path)
    assert Retriever(again.snapshot(), OneHot()).retrieve(query) == before
    assert memory.path.read_bytes() == whole
    assert again.add(played("pan", ("put pan", "")))
    assert len(store(tmp_path)) == 3


def test_a_file_that_is_damaged_or_of_another_environment_is_refused(tmp_path):
    memory = store(tmp_path)
    memory.add(MUG)
    with pytest.raises(InvalidInput, match="'kitchen'"):
        EpisodeStore(memory.path, replace(HEADER, env="garden"))
    whole = memory.path.read_bytes()
    for damaged in (whole.replace(b'"plan"', b'"plain"'), b"a diary\n", whole[:-9] + b"\n" + whole[-9:]):
        memory.path.write_bytes(damaged)
        with pytest.raises(InvalidInput, match="line [12]"):
            store(tmp_path)
        assert memory.path.read_bytes() == damaged


def test_r11_what_a_batch_retrieves_does_not_change_while_episodes_are_added(tmp_path):
    memory = store(tmp_path)
    memory.add(MUG)
    retriever, query = Retriever(memory.snapshot(), OneHot()), Query(task="Put a mug.")
    before = retriever.retrieve(query)
    assert memory.add(played("mug", ("put mug", "")))
    assert memory.add(played("cup", ("put cup", "")))
    assert retriever.retrieve(query) == before
    assert len(Retriever(memory.snapshot(), OneHot()).retrieve(query)) == 2


def test_a_store_goes_back_to_what_it_had_before(tmp_path):
    memory = store(tmp_path)
    memory.add(MUG)
    then = memory.text
    memory.add(played("cup", ("wait", "")))
    assert len(memory) == 2
    memory.restore(then)
    assert memory.snapshot() == store(tmp_path).snapshot() == (experience_of(MUG),)
