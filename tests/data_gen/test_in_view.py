"""SFT rows contain the words that frozen players would say during a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from records import chose, turn_of

from reflectrl.core import Observation, Task, Trajectory, Utterance
from reflectrl.data_gen.rows import Sample, words_in_view
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import View
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import Seat

LAYOUT = PromptFormat(history=1)
START, HALL = Observation("The start.", ("go",)), Observation("A hall.", ("go",))
TASK = Task("a", {"group": "walks"})
TAUGHT = Trajectory(TASK, 1, (turn_of(START, ("go",), None, chose(0, "go"), 0.0),), True, False, True)
SAMPLES = [
    Sample(TASK, 1, ("go",), HALL, ("go",), "Good.", "go", False),
    Sample(TASK, 1, (), START, ("go",), "Begin.", "go", False),
    Sample(Task("shown"), 2, ("go",), HALL, ("go",), "Fine.", "go", False),  # a demonstration's
]
REFLECTOR = Seat("reflector", ScriptedReflector(lambda _: ""))


class Telling:
    """Player that repeats its prompt."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
        return [
            Utterance(" ".join((view.observation.text, view.task_id, view.task_type, *sorted(view.said.values()))))
            for view in views
        ]


def test_a_plan_is_read_by_both_players():
    heard, read = words_in_view(SAMPLES, [Seat("planner", Telling()), REFLECTOR], LAYOUT, [TAUGHT])
    plan = {"planner": "The start. a walks"}
    assert heard == [plan, plan, {}]
    assert read == [{**plan, "reflector": "Good."}, {**plan, "reflector": "Begin."}, {"reflector": "Fine."}]


def test_a_memory_reads_the_teachers_last_words():
    class Recalling:
        def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
            return [Utterance(view.before.get("policy", "none")) for view in views]

    turn = turn_of(START, ("go",), "Begin.", chose(0, "go"), 0.0)
    taught = Trajectory(TASK, 1, (turn,), True, False, True)
    for mode, first in (("thought_choice", "Begin."), ("enumerated", "none")):  # only a policy that writes has thoughts
        layout = replace(LAYOUT, action_mode=mode)
        _, read = words_in_view(SAMPLES, [Seat("memory", Recalling())], layout, [taught])
        assert [words["memory"] for words in read] == [first, "none", "none"]


def test_a_memory_may_speak_before_or_after_the_reflector():
    memory = Seat("memory", Telling())
    heard, read = words_in_view(SAMPLES[:1], [memory, REFLECTOR], LAYOUT, [TAUGHT])
    assert heard == [{"memory": "A hall. a walks"}]
    assert read == [{"memory": "A hall. a walks", "reflector": "Good."}]
    heard, read = words_in_view(SAMPLES[:1], [REFLECTOR, memory], LAYOUT, [TAUGHT])
    assert heard == [{}]
    assert read == [{"memory": "A hall. a walks Good.", "reflector": "Good."}]
