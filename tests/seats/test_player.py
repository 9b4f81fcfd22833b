"""The memory player: its queries to the retriever, its words, and whole episodes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from records import chose
from remembered import OneHot, past, seen

from reflectrl.core import Decision, InvalidInput, Trajectory, make_env
from reflectrl.envs.number_line.env import DOWN, UP
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, policy_views, rollout
from reflectrl.rollout.record import EpisodeStore, Header
from reflectrl.rollout.results import trial_row
from reflectrl.seats.embedders import HashingEmbedder
from reflectrl.seats.memory import Memory, described, parsed_key
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.retriever import Key, Query, Retriever, Weights, Windows
from reflectrl.seats.table import Seat

STEPS = [(f"act{number}", f"see{number}") for number in range(6)]
LOG = past("count", *STEPS, ("stop", ""), plan="one by one", start="zero")


def said(memory: Memory, *views) -> list[str]:
    return [words.text for words in memory.say(views, [0.0] * len(views))]


def memory_of(*logs, **options) -> Memory:
    return Memory(Retriever(logs, OneHot(), action=Windows(4, 2), observation=Windows(8, 2)), **options)


def test_the_words_are_the_task_the_plan_and_the_window_with_each_action_before_what_followed():
    memory = memory_of(LOG)
    first, later = said(memory, seen("zero", task="count\nA room."), seen("see3", "act2", "act3", task="count"))
    assert first == "Done before: count Plan: one by one zero > act0: see0 > act1: see1"
    assert later == "Done before: count Plan: one by one [...] > act1: see1 > act2: see2 > act3: see3 > act4: see4"


def test_only_what_followed_the_last_action_is_looked_for_where_an_observation_shows_the_whole_path():
    memory = memory_of(LOG)
    [words] = said(memory, seen("> act1\nsee1\n> act4\nsee4", "act1", "act4"))
    assert words.endswith("[...] > act2: see2 > act3: see3 > act4: see4 > act5: see5")


def test_too_long_words_lose_the_last_windows_then_steps_and_never_a_part_of_one():
    other = past("count to six", *STEPS)
    windows = Retriever([LOG, other], OneHot()).retrieve(Query("count", key=Key("action", "act2")))
    whole = described(windows, 10_000)
    best, second = whole.splitlines()
    assert second.startswith("Done before: count to six")
    assert described(windows, len(whole) - 1) == best
    shorter = described(windows, len(best) - 1)
    assert shorter.endswith("> act5: see5")
    assert described(windows, 75).endswith("> act1: see1 > act2: see2")
    assert described(windows, 20) == ""


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("search: mug", Key("observation", "mug")),
        ("I have it now. Action: put\nGo on.", Key("action", "put")),
        ("search: mug. action: take", Key("action", "take")),
        ("reaction: none", None),
        ("To solve the task, find a mug.", None),
        ("search:", None),
        ("", None),
    ],
)
def test_a_key_is_read_from_a_planners_words(words, key):
    assert parsed_key(words) == key


@pytest.mark.parametrize(
    "words",
    [
        *("search: mug", 'search: "mug"', "search: 'mug'", "search: `mug`", "**search:** mug", "**search**: mug"),
        *(
            "search: <mug>",
            "search: [mug]",
            "'search: ' mug",
            "'search: mug'",
            "search:\nmug",
            "action: put, search: mug",
        ),
        *("search: mug, action:", "Search: mug."),
    ],
)
def test_a_key_may_be_quoted_or_marked_and_the_last_one_counts(words: str) -> None:
    assert parsed_key(words) == Key("observation", "mug")


@pytest.mark.parametrize(
    ("key", "texts"), [("none", []), ("action", [*(f"act{number}" for number in range(6)), "stop"])]
)
def test_the_steps_that_its_keys_are_compared_with_are_embedded_before_the_first_query(key, texts):
    embedder = OneHot()
    Memory(Retriever([LOG], embedder, weights=Weights(task=0, task_type=0, plan=0)), key=key)
    assert embedder.asked == texts


def test_a_wrong_kind_of_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="key='observations'.*did you mean 'observation'"):
        memory_of(key="observations")


def test_r7_nonsense_keys_leave_the_examples_of_the_task_and_are_counted():
    memory = memory_of(LOG, key="planner")
    plain, keyed, nonsense, more = said(
        memory,
        seen("zero", task="count"),
        seen("see0", "act0", task="count", planner="search: see4"),
        seen("see1", "act1", task="count", planner="blah blah"),
        seen("see2", "act2", task="count", planner="???"),
    )
    assert plain == nonsense == more
    assert "see4" in keyed
    assert (memory.counts.asked, memory.counts.hits, memory.counts.key_misses) == (4, 4, 3)


def test_r7_unusable_keys_leave_the_examples_of_the_step_before():
    memory = memory_of(LOG, key="planner")
    nonsense = replace(seen("see1", "act1", task="count", planner="blah"), before={"memory": "What was shown."})
    assert said(memory, nonsense) == ["What was shown."]
    assert (memory.counts.hits, memory.counts.key_misses) == (1, 1)


@pytest.mark.parametrize(
    ("words", "before", "actions", "best"),
    [
        ({"reflector": "act5 now"}, {"policy": "act4"}, ("act3",), "act5"),
        ({}, {"policy": "act4 perhaps"}, ("act3",), "act4"),
        ({}, {}, ("act0", "act3"), "act3"),
        ({}, {}, (), None),
    ],
)
def test_the_key_for_actions_is_the_reflection_else_the_thought_before_else_the_last_action(
    words, before, actions, best
):
    view = replace(seen("see5", *actions, task="count"), said=words, before=before)
    [shown] = said(memory_of(LOG, key="action"), view)
    assert ("[...]" in shown) == (best is not None)
    if best is not None:  # a window of two steps on each side
        assert shown.split("> ")[3].startswith(best)


def test_the_past_episode_of_the_task_that_is_played_is_left_out_and_its_kind_compared():
    one, other = past("one", *STEPS, task_type="odd"), past("two", *STEPS, task_type="even")
    memory = memory_of(one, other)
    assert said(memory, replace(seen("zero"), task_id="one"))[0].startswith("Done before: two")
    assert said(memory, replace(seen("zero"), task_type="even"))[0].startswith("Done before: two")
    assert "two" not in said(memory_of(one, other, key="none"), replace(seen("zero"), task_id="two"))[0]


def test_an_empty_memory_says_nothing_and_counts_no_hit():
    memory = memory_of()
    assert said(memory, seen("zero", "act", task="count")) == [""]
    assert memory.counts.hits == 0


# ---- whole episodes --------------------------------------------------------------------------------------------------

ENV = make_env("number_line", size=8)
LAYOUT = PromptFormat(history=0)
FIRST, SECOND, *OTHERS = (
    task for task in ENV.tasks("train") if abs(task.options["target"] - task.options["start"]) > 1
)


class NeedsExample:
    """Policy that walks to the target if the prompt shows an episode of the first task, otherwise to and fro."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002
        return [self._act(view) for view in views]

    def _act(self, view: MenuView) -> Decision:
        here, target = (int(word.strip(".,")) for word in view.observation.text.split()[1::2])
        example = f"target {FIRST.options['target']}." in view.prompt.text
        up = target > here if example else len(view.past) % 2 == 0
        action = UP if (up and UP in view.menu.actions) or DOWN not in view.menu.actions else DOWN
        return chose(view.menu.actions.index(action), action)


def trial(memory: Memory | None, *tasks, **options) -> list[Trajectory]:
    seats = [] if memory is None else [Seat("memory", memory)]
    episodes = [Episode(task, seed=0) for task in tasks]
    return rollout([ENV], episodes, policy=NeedsExample(), seats=seats, layout=LAYOUT, **options)


def solved(*trials) -> float:
    """Fraction of the tasks that any of the trials solved."""
    return trial_row("rlft", "none", "train", trials, memory=True, remembered=0).solved


def new_store(path) -> EpisodeStore:
    return EpisodeStore(path / "memory.jsonl", Header("number_line", {"size": 8}, LAYOUT))


def test_r8_a_task_that_needs_the_example_of_another_is_solved_in_the_second_trial_with_memory_only(tmp_path):
    store, embedder, taken = new_store(tmp_path), HashingEmbedder(), []
    memory = Memory(Retriever(store.snapshot(), embedder))
    first = trial(memory, FIRST, SECOND, on_episode=lambda each: taken.append(store.add(each)))
    assert taken == [True, False]  # in turn: the second was not shown the episode that the first added
    assert [each.success for each in first] == [True, False]
    second = trial(Memory(Retriever(store.snapshot(), embedder)), FIRST, SECOND)
    assert second[1].success
    assert {turn.said["memory"].text for turn in second[0].turns} == {""}  # a task's own episode is left out
    assert (solved(first), solved(first, second)) == (0.5, 1.0)
    plain = trial(None, FIRST, SECOND)
    assert [each.success for each in plain] == [True, False]
    assert solved(plain, trial(None, FIRST, SECOND)) == 0.5


def test_r6_the_prompts_after_a_success_show_it_and_are_written_from_the_record_alone(tmp_path):
    store = new_store(tmp_path)
    [solved] = trial(None, FIRST)
    store.add(solved)
    [played] = trial(Memory(Retriever(store.snapshot(), HashingEmbedder())), SECOND)
    prompts = [view.prompt.text for view in policy_views(played, LAYOUT)]
    assert all(f"Memory: Done before: Number {FIRST.options['start']}, " in prompt for prompt in prompts)
    assert all(f"> {solved.actions[0]}" in prompt for prompt in prompts)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_r4_episodes_are_played_to_the_end_with_few_past_ones_alike_in_any_batch(tmp_path, count):
    store = new_store(tmp_path)
    for task in OTHERS[:count]:
        up = task.options["target"] > task.options["start"]
        store.add(trial_of(task, UP if up else DOWN))
    assert len(store) == count
    memory = Memory(Retriever(store.snapshot(), HashingEmbedder(), action=Windows(4, 10), observation=Windows(4, 5)))
    together = trial(memory, FIRST, SECOND)
    assert together == [*trial(memory, FIRST), *trial(memory, SECOND)]
    assert memory.counts.hits == (memory.counts.asked if count else 0)


class AnswersOnce:
    """Planner that gives a key for the first thought only."""

    def __init__(self, key: str) -> None:
        self.answers = [key]

    def keys(self, thoughts: Sequence[str], draws: Sequence[float]) -> list[str]:  # noqa: ARG002
        return [self.answers.pop() if self.answers else "???" for _ in thoughts]


def test_the_prompts_of_an_episode_keep_their_examples_where_the_planner_gives_no_key(tmp_path):
    store = new_store(tmp_path)
    far = max(OTHERS, key=lambda task: task.options["target"] - task.options["start"])
    store.add(trial_of(far, UP))
    retriever = Retriever(store.snapshot(), HashingEmbedder(), action=Windows(1, 1), observation=Windows(1, 1))
    memory = Memory(retriever, key="planner", planner=AnswersOnce(f"search: Number {far.options['target'] - 1},"))
    seats = [Seat("reflector", ScriptedReflector(lambda _: "I go on.")), Seat("memory", memory)]
    [played] = rollout([ENV], [Episode(SECOND, 0)], policy=NeedsExample(), seats=seats, layout=LAYOUT)
    [words] = {turn.said["memory"].text for turn in played.turns}
    assert "[...]" in words  # the excerpt begins at the match of the key, not at the start
    assert all(f"Memory: {words}\n" in view.prompt.text for view in policy_views(played, LAYOUT))
    assert memory.counts.key_misses == len(played.turns) - 1 > 0


def trial_of(task, action: str) -> Trajectory:
    """Return an episode in which only ``action`` is played."""

    class Straight:
        def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002
            return [chose(view.menu.actions.index(action), action) for view in views]

    [played] = rollout([ENV], [Episode(task, seed=0)], policy=Straight(), seats=[], layout=LAYOUT)
    return played
