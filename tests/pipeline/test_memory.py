"""A recipe with a memory: its words are in every prompt of RLFT and evaluation, and the run's agent has them too."""

from __future__ import annotations

import pytest
from trained_runs import TrainedRuns

from reflectrl.core import InvalidInput, make_env
from reflectrl.data_gen.rows import read_rows
from reflectrl.pipeline.agent import load_agent
from reflectrl.rollout.record import read_trajectories
from reflectrl.sharing.export import export_run

pytestmark = pytest.mark.slow
SHOWN = "Done before: "


def test_what_the_teacher_did_in_such_states_is_read_from_the_first_iteration_to_the_agent(trained_run: TrainedRuns):
    run = trained_run(name="rap/nano")
    _, taught = read_trajectories(run / "data" / "teacher.jsonl")
    starts = {each.turns[0].observation.text for each in taught if each.success}
    for name in ("rlft-00000", "rlft-00003", "eval-sft-local-sampled", "eval-rlft-local-sampled"):
        for played in read_trajectories(run / "trajectories" / f"{name}.jsonl")[1]:
            said = [turn.said["memory"].text for turn in played.turns]
            assert all(words.startswith(SHOWN) and len(words) <= 200 for words in said)
            assert any(start in said[0] for start in starts)
            assert list(played.turns[0].said) == ["memory", "reflector"]  # which reads it
    for name, role in (("policy", "policy"), ("reflector", "reflector")):
        rows = read_rows(run / "sft" / f"{name}.jsonl")
        assert {row.player for row in rows} == {role}
        assert all(row.prompt.said.startswith(f"Memory: {SHOWN}") for row in rows)  # as at play
    own = {each.task.id: each.turns[0].observation.text for each in taught}
    first = [row for row in read_rows(run / "sft" / "policy.jsonl") if row.step == 0]
    assert first
    assert not any(own[row.task] in row.prompt.said for row in first)  # a task's own episode is not its example
    [plain, *_] = read_trajectories(run / "trajectories" / "eval-random-none-sampled.jsonl")[1]
    assert plain.turns[0].said == {}
    env = make_env("number_line", size=8)
    env.reset(seed=0)
    assert load_agent(run).act(env.observation).said["memory"].text.startswith(SHOWN)
    with pytest.raises(InvalidInput, match="players.memory"):
        export_run(run)
