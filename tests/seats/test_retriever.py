"""Scores, keys and windows, compared with values computed by hand; ``OneHot`` gives each word its own direction."""

from __future__ import annotations

import itertools
import math
import random
import weakref

import numpy as np
import pytest
from remembered import OneHot, Rotated, past

from reflectrl.core import InvalidInput
from reflectrl.seats.embedders import EmbeddingCache, HashingEmbedder
from reflectrl.seats.retriever import Column, Key, Query, Retriever, Weights, Windows

MUG = past("put mug", ("look", "mug here"), ("take mug", "got it"), task_type="pick", plan="find mug")
CUP = past("put cup", ("look", "cup here"), ("take cup", "got it"), task_type="pick", plan="find cup")
HEAT = past("heat egg", ("look", "egg here"), ("heat egg", "hot"), task_type="heat", plan="find egg")
LOGS = (MUG, CUP, HEAT)


def ranked(query: Query, logs=LOGS, **options) -> list[tuple[str, float]]:
    return [(found.experience.task, found.score) for found in Retriever(logs, OneHot(), **options).retrieve(query)]


@pytest.mark.parametrize(
    ("query", "scores"),
    [
        (Query(task="put cup"), {"put cup": 1, "put mug": 1 / 2, "heat egg": 0}),
        (Query(task_type="heat"), {"heat egg": 1, "put mug": 0, "put cup": 0}),
        (Query(plan="find egg fast"), {"heat egg": 2 / 6**0.5, "put mug": 1 / 6**0.5, "put cup": 1 / 6**0.5}),
        (Query(key=Key("observation", "cup")), {"put cup": 1 / 2**0.5, "put mug": 0, "heat egg": 0}),
        (Query(key=Key("action", "take")), {"put mug": 1 / 2**0.5, "put cup": 1 / 2**0.5, "heat egg": 0}),
        (
            Query("put cup", "pick", "find mug", Key("action", "take mug")),
            {"put mug": (1 / 2 + 1 + 1 + 1) / 4, "put cup": (1 + 1 + 1 / 2 + 1 / 2) / 4, "heat egg": 1 / 2 / 4},
        ),
    ],
)
def test_r1_scores_are_those_computed_by_hand_for_each_component_and_their_mean(query, scores):
    assert ranked(query) == [(task, pytest.approx(score, abs=1e-6)) for task, score in scores.items()]


def test_weights_count_and_a_component_of_weight_0_is_not_compared():
    query = Query(task="put mug", plan="find egg", key=Key("action", "heat"))
    assert ranked(query, weights=Weights(task=3, key=0))[0] == ("put mug", pytest.approx((3 * 1 + 1 / 2) / 4, abs=1e-6))
    assert ranked(query, weights=Weights(task=0, key=0))[0] == ("heat egg", pytest.approx(1, abs=1e-6))


def test_r2_the_same_words_as_search_and_as_action_pick_different_steps():
    quiet = [("wait", "nothing")] * 2
    log = past("heat", *quiet, ("look", "a place to heat"), *quiet, ("heat egg", "hot"), ("wait", ""))
    for kind, step in (("observation", 2), ("action", 5)):
        [found] = Retriever([log], OneHot()).retrieve(Query(key=Key(kind, "heat")))
        assert found.best == step


@pytest.mark.parametrize(
    ("best", "m", "first", "last"),
    [(0, 2, 0, 1), (4, 2, 2, 5), (9, 2, 7, 9), (4, 20, 0, 9), (9, 1, 8, 9), (0, 1, 0, 0)],
)
def test_r3_a_window_is_clipped_and_begins_with_an_action_for_an_observation_too(best, m, first, last):
    log = past("count", *((f"act{number}", f"see{number}") for number in range(10)))
    for kind, word in (("action", f"act{best}"), ("observation", f"see{best}")):
        windows = {"action": Windows(4, m), "observation": Windows(8, m)}
        [found] = Retriever([log], OneHot(), **windows).retrieve(Query(key=Key(kind, word)))
        shown = [(step.action, step.observation) for step in found.steps]
        assert shown == [(f"act{number}", f"see{number}") for number in range(first, last + 1)]
        assert (found.best, found.first) == (best, first)


def test_without_a_key_a_window_is_the_first_steps_and_one_step_gives_one():
    log = past("count", *((f"act{number}", "") for number in range(12)))
    one = past("count", ("act0", ""))
    assert [len(found.steps) for found in Retriever([log, one], OneHot()).retrieve(Query(task="count"))] == [10, 1]


def test_r4_a_memory_with_fewer_than_k_episodes_gives_all_and_an_empty_one_none():
    for count in range(4):
        assert len(ranked(Query("put cup", key=Key("action", "take")), LOGS[:count])) == count


def test_equal_scores_are_ranked_by_age_and_equal_steps_by_their_place():
    logs = [past(f"t{number}", ("wait", "x"), ("take", "x"), ("take", "x")) for number in range(9)]
    found = Retriever(logs, OneHot()).retrieve(Query(key=Key("action", "take")))
    assert [(each.experience.task, each.best) for each in found] == [(f"t{number}", 1) for number in range(4)]


def test_what_an_episode_lacks_is_left_out_of_its_mean():
    silent, no_plan = past("put cup", ("take cup", "")), past("put cup", ("take", "a cup"))
    query = Query("put cup", plan="find cup", key=Key("observation", "cup"))
    [kept, lacking] = Retriever([silent, no_plan], OneHot()).retrieve(query)
    assert (kept.score, kept.best) == (pytest.approx(1, abs=1e-6), None)
    assert (lacking.score, lacking.best) == (pytest.approx((1 + 1 / 2**0.5) / 2, abs=1e-6), 0)
    [idle] = Retriever([past("put cup")], OneHot()).retrieve(Query("put cup", key=Key("action", "cup")))
    assert (idle.score, idle.best) == (pytest.approx(1, abs=1e-6), None)


def test_a_key_that_nothing_resembles_leaves_the_order_of_task_and_plan_and_min_score_drops_it():
    query = Query("put cup", key=Key("observation", "violin"))
    assert [task for task, _ in ranked(query)] == ["put cup", "put mug", "heat egg"]
    assert [task for task, _ in ranked(query, min_score=0.4)] == ["put cup"]
    assert ranked(Query(), min_score=0.4) == []


@pytest.mark.parametrize("task", ["household 19 tomato", "buy red shoes size nine", "put cup"])
def test_an_equal_task_reaches_the_highest_score_however_its_sums_are_rounded(task):
    [found] = Retriever([past(task, ("go", ""))], HashingEmbedder(), min_score=1.0).retrieve(Query(task))
    assert found.score == 1


def test_the_episode_of_the_task_itself_can_be_left_out():
    assert [task for task, _ in ranked(Query("put cup", task_id="put cup"))] == ["put mug", "heat egg"]


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        (None, []),
        (Key("action", "put"), ["look", "take mug", "take cup", "heat egg", "put"]),
        (Key("observation", "mug"), ["mug here", "got it", "cup here", "egg here", "hot", "mug"]),
    ],
)
def test_only_the_steps_that_a_key_is_compared_with_are_embedded(key, texts):
    embedder = OneHot()
    Retriever(LOGS, embedder, weights=Weights(task=0, task_type=0, plan=0)).retrieve(Query(key=key))
    assert embedder.asked == texts


def test_a_wrong_way_to_match_and_a_picture_as_key_without_pictures_are_refused():
    with pytest.raises(InvalidInput, match="key_match='lexicl'.*did you mean 'lexical'"):
        Retriever(LOGS, HashingEmbedder(), key_match="lexicl")
    with pytest.raises(InvalidInput, match="set pictures"):
        Retriever(LOGS, HashingEmbedder()).retrieve(Query(key=Key("picture", "one")))


def test_empty_texts_are_absent():
    embedder = OneHot()
    found = Retriever([past("", ("wait", ""))], embedder).retrieve(Query(task="", plan="", key=Key("action", "")))
    assert [(each.score, each.best) for each in found] == [(0, None)]
    assert "" not in embedder.asked


@pytest.mark.parametrize(
    ("match", "action", "observation"),
    [("embed", 1 / 3**0.5, 1 / 3**0.5), ("lexical", 1, 1), ("hybrid", 1, 1)],
)
def test_keys_match_by_embedding_by_words_or_by_the_better_of_both(match, action, observation):
    log = past("x", ("put mug down", "a mug here"), ("reput mug", "mugs"))
    for key, score in ((Key("action", "put"), action), (Key("observation", "mug"), observation)):
        [found] = Retriever([log], OneHot(), key_match=match).retrieve(Query(key=key))
        assert (found.best, found.score) == (0, pytest.approx(score, abs=1e-6))
    [found] = Retriever([log], OneHot(), key_match="lexical").retrieve(Query(key=Key("observation", "mug there")))
    assert found.score == pytest.approx(1 / 2, abs=1e-6)


@pytest.mark.parametrize("embedder", [HashingEmbedder(), Rotated()], ids=["sparse", "dense"])
def test_a_query_finds_what_comparing_one_by_one_does(embedder):
    rng = random.Random(0)
    things = [f"thing{number}" for number in range(25)]
    logs = [
        past(
            f"put {rng.choice(things[:2])}",
            *((f"take {rng.choice(things)} {step} {log}", f"a {rng.choice(things)}") for step in range(10)),
        )
        for log in range(400)
    ]
    embedder = EmbeddingCache(embedder)
    retriever = Retriever(logs, embedder)
    # the task is compared once, for all keys; "take" is nearly as similar to all texts
    for thing, wanted in itertools.product(things[:3], (*(f"take {thing}" for thing in things[:2]), "take")):
        query = Query(f"put {thing}", key=Key("action", wanted))
        task, key = embedder.embed([query.task, query.key.text])
        scores = []
        for log in logs:
            actions = embedder.embed([step.action for step in log.steps])
            scores.append(round((float(embedder.embed([log.task])[0] @ task) + float(max(actions @ key))) / 2, 6))
        order = sorted(range(len(logs)), key=lambda number: (-scores[number], number))[:4]
        found = retriever.retrieve(query)
        assert [logs.index(each.experience) for each in found] == [logs.index(logs[number]) for number in order]
        assert all(math.isclose(each.score, scores[n], abs_tol=2e-6) for each, n in zip(found, order, strict=True))


@pytest.mark.parametrize("match", ["embed", "lexical", "hybrid"])
def test_a_renewed_retriever_finds_what_a_new_one_would(match):
    class Counting(HashingEmbedder):
        asked = 0

        def embed(self, texts):
            self.asked += len(texts)
            return super().embed(texts)

    rng, things = random.Random(1), [f"thing{number}" for number in range(30)]

    def some(count):
        steps = [
            [(f"take {rng.choice(things)}", rng.choice(["", "a cup", *things])) for _ in range(4)] for _ in range(count)
        ]
        return [past(f"put {rng.choice(things)}", *each) for each in steps]

    logs, embedder = some(40), Counting()
    queries = [
        Query("put thing1", key=Key(kind, f"take {thing}")) for kind in ("action", "observation") for thing in things
    ]
    queries += [Query("put thing2"), Query("put thing3", plan="none", task_id=logs[-1].task_id)]
    grown = Retriever([], embedder, key_match=match)
    for _ in range(6):
        grown.renew(logs)
        new = Retriever(logs, HashingEmbedder(), key_match=match)
        assert [grown.retrieve(query) for query in queries] == [new.retrieve(query) for query in queries]
        logs = [each for each in logs if rng.random() < 0.8] + some(10)
    grown = Retriever(logs, embedder, key_match=match)
    before = embedder.asked
    grown.renew([*logs[::2], *some(10)])
    assert embedder.asked - before < 100  # the texts of the ten new episodes alone


def test_texts_of_episodes_that_are_gone_are_dropped_in_time():
    column = Column([["one"]], HashingEmbedder())
    retriever = Retriever([], HashingEmbedder())
    for number in range(30):
        retriever.renew([past(f"task {number} {place}", ("go", "there")) for place in range(10)])
    assert len(retriever._tasks["task"][1]._numbers) <= 20
    column.renew(np.zeros(0, np.int64), [["two"]])
    assert list(column._numbers) == ["two"]


def test_a_retriever_that_is_replaced_frees_its_vectors_at_once():
    retriever = Retriever([past("put a mug", ("take mug", "a mug"))], HashingEmbedder())
    retriever.retrieve(Query("put a mug"))
    freed = weakref.ref(retriever)
    del retriever
    assert freed() is None
