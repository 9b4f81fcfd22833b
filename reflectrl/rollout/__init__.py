"""Plays episodes with any players, records them and measures them."""

from reflectrl.rollout.loop import Episode, begin_ahead, rollout
from reflectrl.rollout.metrics import EpisodeMetrics, episode_metrics, wilson_interval

__all__ = ["Episode", "EpisodeMetrics", "begin_ahead", "episode_metrics", "rollout", "wilson_interval"]
