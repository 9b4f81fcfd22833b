"""A turn-based game of PettingZoo (pip install pettingzoo pygame) against a scripted opponent, who may begin."""

from pettingzoo.classic import tictactoe_v3

import reflectrl as rl

SQUARES = [f"{row} {column}" for column in ("left", "centre", "right") for row in ("top", "middle", "bottom")]
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe(rl.NatLangEnv):
    """You are X: +1 for a win, -1 for a loss. The opponent completes and blocks lines, and else plays at random."""

    name = "tic_tac_toe"
    instructions = "You play noughts and crosses. You are X."
    observable = False  # the opponent's next move is hidden
    max_actions = 9

    def __init__(self) -> None:
        super().__init__(horizon=5)
        self.game = tictactoe_v3.env()

    def start(self, task):
        self.game.reset(seed=task.options["seed"])
        self.you, self.other = self.game.agents if task.options["seed"] % 2 else self.game.agents[::-1]
        self.answer()

    def answer(self):
        """Let the opponent play, if it is its turn."""
        if self.game.agent_selection == self.other and not self.game.terminations[self.other]:
            mine, yours, free = self.board(self.other)
            ends = [n for marks in (mine, yours) for n in free if any(set(line) <= {n, *marks} for line in LINES)]
            self.game.step(ends[0] if ends else int(self.np_random.choice(free)))

    def board(self, agent):
        """Return the squares with the agent's marks, those with the other's, and those that are free."""
        marks = self.game.observe(agent)["observation"].reshape(9, 2)
        mine, theirs = ([n for n in range(9) if marks[n, who]] for who in (0, 1))
        return mine, theirs, [n for n in range(9) if not marks[n].any()]

    def observe(self):
        mine, theirs, free = self.board(self.you)
        rows = [[("X" if n in mine else "O" if n in theirs else ".") for n in range(row, 9, 3)] for row in range(3)]
        return rl.Observation("\n".join(" ".join(row) for row in rows), tuple(SQUARES[n] for n in free))

    def act(self, action):
        self.game.step(SQUARES.index(action))
        self.answer()
        reward = float(self.game.rewards[self.you])
        return rl.Outcome(reward, ended=any(self.game.terminations.values()), success=reward > 0)


if __name__ == "__main__":
    rl.check_env(TicTacToe())
