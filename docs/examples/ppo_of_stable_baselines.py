"""PPO of Stable-Baselines3 (pip install stable-baselines3) on an environment whose actions are words."""

from zlib import crc32

import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import PPO

import reflectrl as rl

FEATURES = 64


def words(text):
    """Return which words a text has, hashed; a network for texts would take their order, too."""
    found = np.zeros(FEATURES, dtype=np.float32)
    found[[crc32(word.encode()) % FEATURES for word in text.split()]] = 1.0
    return found


def numbered(name, **options):
    """Return an environment whose actions are places in the menu, and whose observations are vectors."""
    env = rl.IndexedActions(rl.make_env(name, **options), illegal_reward=-0.1)
    return TransformObservation(env, words, Box(0.0, 1.0, (FEATURES,), np.float32))


def train(steps, **settings):
    """Return a trained agent; MaskablePPO of sb3-contrib takes the same environment, and no action that is masked."""
    model = PPO("MlpPolicy", numbered("number_line", size=6), n_steps=128, seed=0, device="cpu", **settings)
    return model.learn(steps)


if __name__ == "__main__":
    model = train(40 * 128, learning_rate=1e-3, gamma=0.95)
    print("mean return of the last episodes:", np.mean([episode["r"] for episode in model.ep_info_buffer]))
