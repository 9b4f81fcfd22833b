"""The frozen lakes of ``frozen_lake_words``, shown as a map.

Kind: grid, maps differ. Horizon: 20. Hard: a way has to be found on a two-dimensional map; the expert reaches 100 %.
"""

from __future__ import annotations

from reflectrl import Observation
from suite_envs.frozen_lake_words import MOVES, SIZE, FrozenLakeWords


class FrozenLakeMap(FrozenLakeWords):
    """P: player, F: ice, H: hole, G: goal."""

    name = "frozen_lake_map"

    def observe(self) -> Observation:
        fields = list(self.lake.replace("S", "F"))
        fields[self.at[0] * SIZE + self.at[1]] = "P"
        rows = (" ".join(fields[row * SIZE : (row + 1) * SIZE]) for row in range(SIZE))
        return Observation("\n".join(rows), tuple(MOVES))
