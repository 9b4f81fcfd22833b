"""Three tasks of RAP in Franka Kitchen, in words, and its simulator with the interface of Meta-World's.

The hand moves along straight lines, by the pseudo-inverse of the arm's Jacobian, and keeps its orientation.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reflectrl.envs.robots.scenes import CLOSE, FRONT, OPEN, PULL, PUSH, Scene, Stage, Thing, is_ahead

TO, RIGHT, LEFT = "move to", "move right of", "move left of"
PUSH_LEFT, PUSH_RIGHT = "push left", "push right"
MODELLED = {
    "microwave": ("microhandle_site", "microwave"),
    "light switch": ("light_site", "light_switch"),
    "bottom burner": ("knob2_site", "knob_Joint_2"),
}
"""The point that the hand reaches for and the joint that turns, in MuJoCo's model, by the simulator's task."""
START_M = 0.3
"""Range of the hand's initial position, sideways and in height, in metres: Franka Kitchen itself has one start."""
STEP_M, SETTLE_STEPS = 0.05, 30
"""Maximum distance of the hand in a step, in metres, and number of steps in which it moves to its start."""
CLEAR_CM, BACK_CM = 5, 20
"""Distance from a switch or knob, to the side or in height, and in front of it, from which the hand gets past it."""
WIDEST_M = 0.08
"""Distance of an open gripper's fingers, in metres."""


@dataclass(frozen=True)
class KitchenScene(Scene):
    """A door that is pulled, or a switch or knob that is pushed to a side; ``range`` is in degrees."""

    ways: ClassVar[tuple[str, ...]] = (TO, FRONT, RIGHT, LEFT)
    moves: ClassVar[tuple[str, ...]] = (OPEN, CLOSE, PUSH, PULL, PUSH_LEFT, PUSH_RIGHT)
    stroke: ClassVar[float] = 0.35

    @property
    def grasped(self) -> bool:
        """True if the gripper has to hold the thing."""
        return self.last == PULL

    def moved(self, seen: Any) -> int:
        """Return the movement in degrees."""
        return round(float(seen[36]))

    def stage(self, seen: Any, closed: bool) -> Stage:
        """Return the stage that the text's facts imply."""
        name, hand = self.thing.name, self.reach(seen)
        if not self.grasped:
            side, way, aside = ("right", RIGHT, hand.x) if self.last == PUSH_LEFT else ("left", LEFT, -hand.x)
            if aside > 0 and hand._replace(x=0).words == "at":
                return Stage(1, f"The hand is {side} of the {name}", self.last)
            if aside <= CLEAR_CM and abs(hand.z) <= CLEAR_CM and -hand.y < BACK_CM:
                return Stage(3, f"The hand is not {side} of the {name}, which is in its way", PULL)
            return Stage(2, f"The hand is not {side} of the {name}", f"{way} the {name}")
        if closed and self.held(seen):
            return Stage(1, f"The {name} is held", self.last)
        if closed:
            return Stage(5, f"The gripper is closed and does not hold the {name}", OPEN)
        if hand.words == "at":
            return Stage(2, f"The hand is at the {name}, which is not held", CLOSE)
        if is_ahead(hand):
            return Stage(3, f"The hand is in front of the {name}", f"{TO} the {name}")
        return Stage(4, f"The hand is not in front of the {name}", f"{FRONT} the {name}")


_THING = slice(4, 7)
KITCHEN: Mapping[str, KitchenScene] = {
    "microwave": KitchenScene(
        "microwave",
        "open the microwave",
        Thing("handle", _THING, (-0.01, 0.0, 0.035)),
        PULL,
        progress="The microwave is open by {moved} of {all} degrees.",
        range=43,
    ),
    "light": KitchenScene(
        "light switch",
        "turn on the light",
        Thing("switch", _THING, (0.0, 0.0, 0.0)),
        PUSH_LEFT,
        progress="The switch is turned by {moved} of {all} degrees.",
        range=40,
    ),
    "burner": KitchenScene(
        "bottom burner",
        "turn on the bottom left burner",
        Thing("knob", _THING, (0.0, -0.03, 0.02)),
        PUSH_RIGHT,
        progress="The knob is turned by {moved} of {all} degrees.",
        range=50,
    ),
}
"""Scenes by name of the task, with the words of table 8 in the paper's appendix."""


class Kitchen:
    """Franka Kitchen without its noise, with the interface of Meta-World's environments that the skills need."""

    def __init__(self, task: str) -> None:
        from gymnasium.spaces import Box

        with contextlib.redirect_stderr(io.StringIO()):  # its import prints which environments are not available
            from gymnasium_robotics.envs.franka_kitchen.kitchen_env import KitchenEnv
        self._env: Any = KitchenEnv(
            tasks_to_complete=[task],
            terminate_on_tasks_completed=False,
            remove_task_when_completed=False,
            object_noise_ratio=0.0,
            robot_noise_ratio=0.0,
        )
        self.model, self.data = self._env.model, self._env.data
        self._hand = self.data.site("end_effector")
        site, joint = MODELLED[task]
        self._thing, self._turn = self.data.site(site), self.model.joint(joint).qposadr[0]
        self._stiffness = self.model.actuator_gainprm[:7, 0].copy()
        self._env.reset(seed=0)
        self._home, self._direction = self._hand.xpos.copy(), self._hand.xmat.reshape(3, 3).copy()
        around = np.array([START_M / 2, START_M / 2])
        self._random_reset_space = Box(-around, around, dtype=np.float64)
        self._last_rand_vec = np.zeros(2)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin with the hand beside or above its usual position, as given by ``_last_rand_vec``."""
        self._env.reset(seed=0)
        aside, up = self._last_rand_vec
        start = self._home + [aside, 0, up]
        for _ in range(SETTLE_STEPS):
            self.step(np.clip([*10 * (start - self._hand.xpos), -1], -1, 1))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the hand by ``action[:3]``, each within [-1, 1], and press or open the fingers."""
        import mujoco

        robot, model = self._env.robot_env, self.model
        jacobian = np.zeros((6, model.nv))
        mujoco.mj_jacSite(model, self.data, jacobian[:3], jacobian[3:], self._hand.id)
        jacobian = jacobian[:, :7]
        turn = 0.5 * np.cross(self._hand.xmat.reshape(3, 3).T, self._direction.T).sum(axis=0)
        wanted = np.append(STEP_M * np.asarray(action[:3]), turn)
        joints = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 1e-3 * np.eye(6), wanted)
        joints += self.data.qfrc_bias[:7] / self._stiffness  # to hold the arm against gravity
        speeds = joints / robot.dt / 2
        robot._get_obs()  # which reads the positions of the joints
        command = np.append(speeds / max(1.0, np.abs(speeds).max()), [-action[3]] * 2)
        *_, info = self._env.step(command)
        return self._seen(), 0.0, False, False, {"success": bool(info["step_task_completions"])}

    def _seen(self) -> Any:
        """Return an observation as ``(39,)`` in Meta-World's layout: hand, gripper and thing, and the degrees at 36."""
        seen = np.zeros(39)
        seen[:3], seen[3], seen[_THING] = self._hand.xpos, self.data.qpos[7:9].sum() / WIDEST_M, self._thing.xpos
        seen[36] = abs(np.degrees(self.data.qpos[self._turn]))
        return seen
