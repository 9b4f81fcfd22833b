from __future__ import annotations

import pytest
from tiny_rlft import config

from reflectrl.config.rlft import Stage
from reflectrl.core import InvalidInput


def stage(iterations):
    return Stage("main", iterations, env={"size": 6})


def test_an_unknown_baseline_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="baseline.*'mean'.*'leave_one_out'"):
        config(tmp_path, baseline="mean")


@pytest.mark.parametrize("option", ["num_iterations", "num_minibatches"])
def test_several_updates_a_batch_need_a_clip_range(tmp_path, option):
    with pytest.raises(InvalidInput, match="ppo"):
        config(tmp_path, **{option: 2})


@pytest.mark.parametrize(("episodes", "group"), [(6, 4), (2, 4), (4, 0), (0, 1)])
def test_incomplete_groups_are_refused(tmp_path, episodes, group):
    with pytest.raises(InvalidInput, match="episodes"):
        config(tmp_path, episodes=episodes, episodes_per_task=group)


def test_steps_of_the_trainer_follow_from_the_stages(tmp_path):
    args = config(tmp_path, stages=[stage(3), stage(4)], num_iterations=2, num_minibatches=3, epsilon=0.1, save_every=5)
    assert args.updates_per_iteration == 6
    assert (args.max_steps, args.save_steps, args.logging_steps) == (42, 30, 6)
    assert not args.gradient_checkpointing
    assert not args.activation_checkpointing
    assert not args.bf16
