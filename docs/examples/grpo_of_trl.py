"""GRPO of TRL on an environment of this library: the model plays by tool calls, and is rewarded for the whole episode.

TRL asks for a model that knows tools, and says itself that `environment_factory` may still change.
"""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import reflectrl as rl

ENV = rl.make_env("number_line", size=6)


class Game:
    """An episode at a time; every public method but `reset` and `get_reward` is a tool."""

    def __init__(self):
        self._env = rl.make_env("number_line", size=6)
        self._tasks = {task.id: task for task in self._env.tasks("train")}

    def reset(self, task, **_):
        """Begin the task of a row of the dataset; what is returned is added to the row's prompt."""
        self._return, self._over = 0.0, False
        _, info = self._env.reset(seed=0, options={"task": self._tasks[task]})
        return self._state(info)

    def act(self, action: str) -> str:
        """Play one of the possible actions.

        Args:
            action: The action, in the words of the list.

        Returns:
            What the game shows then, with its possible actions.
        """
        if self._over:
            return "The game is over."
        if action not in self._env.observation.actions:
            return f"That is not possible. {self._state({'actions': self._env.observation.actions})}"
        _, reward, terminated, truncated, info = self._env.step(action)
        self._return += reward
        self._over = terminated or truncated
        return "The game is over." if self._over else self._state(info)

    def get_reward(self):
        """Return the sum of the rewards of the episode."""
        return self._return

    def _state(self, info):
        return f"{self._env.render()}\nPossible actions: {', '.join(info['actions'])}"


def train(model, tokenizer=None, **settings):
    """Train a model, and return the trainer."""
    prompt = [{"role": "user", "content": f"{ENV.instructions} Play by calling act.\n"}]
    rows = Dataset.from_list([{"prompt": prompt, "task": task.id} for task in ENV.tasks("train")])
    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(num_generations=4, max_completion_length=512, **settings),
        train_dataset=rows,
        processing_class=tokenizer,
        environment_factory=Game,
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    train("Qwen/Qwen3-0.6B", output_dir="runs/grpo", per_device_train_batch_size=4, max_steps=100)
