"""Rollouts of episodes with any players, in this process or in workers, and their records and metrics."""

from reflectrl.rollout.iteration import EpisodeMetrics, episode_metrics, wilson_interval
from reflectrl.rollout.loop import Episode, begin_ahead, rollout
from reflectrl.rollout.turn import Move, play_turn, policy_views

__all__ = [
    "Episode",
    "EpisodeMetrics",
    "Move",
    "begin_ahead",
    "episode_metrics",
    "play_turn",
    "policy_views",
    "rollout",
    "wilson_interval",
]
