"""MiniGrid and BabyAI in words (pip install minigrid): reflectrl check-env minigrid_in_words:MiniGridInWords."""

import contextlib

import gymnasium
import minigrid  # noqa: F401 - registers the games
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

import reflectrl as rl

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "open or close")
STATES = {number: f"{state} " for state, number in STATE_TO_IDX.items()}


class MiniGridInWords(rl.NatLangEnv):
    """A game of MiniGrid: its mission is the task, what lies in view is the state, and a seed is a task."""

    name = "minigrid"
    observable = False  # what is behind you is hidden
    max_actions = len(ACTIONS)

    def __init__(self, game: str = "BabyAI-GoToLocal-v0", horizon: int = 64) -> None:
        super().__init__(horizon)
        self.game = gymnasium.make(game, disable_env_checker=True)

    def start(self, task):
        with contextlib.redirect_stdout(None):  # BabyAI prints which draws it rejects
            self.seen, _ = self.game.reset(seed=task.options["seed"])

    def observe(self):
        view = [(x, 6 - y, *map(int, self.seen["image"][x, y])) for y in range(6, -1, -1) for x in range(7)]
        lines = []
        for across, ahead, kind, colour, state in view:  # you are in the middle of the nearest row, and look ahead
            if (name := IDX_TO_OBJECT[kind]) not in ("unseen", "empty", "floor", "wall"):
                side = f", {abs(across - 3)} to the {'left' if across < 3 else 'right'}" if across != 3 else ""
                place = f"{ahead} ahead{side}" if ahead or side else "in your hands"
                lines.append(f"{STATES[state] if name == 'door' else ''}{IDX_TO_COLOR[colour]} {name}: {place}.")
        walls = [ahead for across, ahead, kind, *_ in view if across == 3 and IDX_TO_OBJECT[kind] == "wall"]
        lines.append(f"wall: {walls[0]} ahead." if walls else "wall: none ahead in view.")
        return rl.Observation("\n".join(lines), ACTIONS, f"Mission: {self.seen['mission']}.", common=ACTIONS)

    def act(self, action):
        self.seen, reward, terminated, _, _ = self.game.step(ACTIONS.index(action))
        return rl.Outcome(float(reward), ended=terminated, success=terminated and reward > 0)


if __name__ == "__main__":
    rl.check_env(MiniGridInWords())
