"""The headless simulators, controlled by skills; a state depends only on the task and the skills so far."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import mujoco
import numpy as np
import PIL.Image
from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE

from reflectrl.core import Image
from reflectrl.envs.robots.kitchen import KITCHEN, LEFT, PUSH_LEFT, PUSH_RIGHT, RIGHT, TO, Kitchen, KitchenScene
from reflectrl.envs.robots.scenes import ABOVE, CLOSE, FRONT, LIFT, LOWER, OPEN, PULL, PUSH, SCENES, Scene

MAX_STEPS, GRIP_STEPS = 60, 15
"""Maximum number of simulated steps of a movement, and of the gripper's opening or closing; a step takes 0.0125 s, or
0.08 s in the kitchen."""
GAIN, ARRIVED_M = 10.0, 0.012
"""Share of the remaining distance per step, before Meta-World clips it, and the distance at which a movement ends."""
LIFTED_M, BESIDE_M = 0.25, 0.12
"""Height to which the hand is lifted, and its distance when it stops beside a thing, in metres."""
OPENING, CLOSING = -1.0, 0.8
"""Effort of the fingers to open and to close."""
REMEMBERED, PICTURED = 20_000, 1000
"""Number of states in the cache, 2.5 kB each, and of pictures, 100 kB each."""
CAMERAS = ("topview", "behindGripper")
"""Cameras of Meta-World: from above with the robot at the lower edge, and from behind the hand."""
SIZE = 300
"""Width and height of a picture in pixels."""
_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION
"""Everything that the next step of the simulation depends on, to the last bit."""

Aim = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False)
class Position:
    """A state of the simulator."""

    seen: Any
    """(39,) Meta-World's observation."""
    physics: Any
    """State of MuJoCo's physics."""
    effort: float
    """Effort of the fingers, which later movements keep."""
    success: bool
    """``info["success"]``, at which a skill stops."""

    @property
    def closed(self) -> bool:
        """True if the fingers press together."""
        return self.effort > 0


@dataclass(frozen=True)
class Setting:
    """Settings of a reset besides the physics: the positions of furniture and of Meta-World's targets."""

    attributes: Mapping[str, Any]
    bodies: Any
    sites: Any
    beginning: Position


@lru_cache(REMEMBERED)
def position(task: str, place: tuple[float, ...], skills: tuple[str, ...]) -> Position:
    """Return the state after ``skills``.

    Args:
        task: one of ``SCENES`` or ``KITCHEN``.
        place: share of its range for each coordinate that varies, from 0 to 1.
        skills: actions of the scene.
    """
    simulator = _simulator(task)
    if not skills:
        return simulator.setting(place).beginning
    return simulator.after(simulator.setting(place), position(task, place, skills[:-1]), skills[-1])


@lru_cache(PICTURED)
def pictures(task: str, place: tuple[float, ...], skills: tuple[str, ...]) -> tuple[Image, ...]:
    """Return one picture from each of ``CAMERAS``; the arguments are those of ``position``."""
    simulator = _simulator(task)
    return simulator.draw(simulator.setting(place), position(task, place, skills))


@cache
def _simulator(task: str) -> Simulator:
    return Simulator(KITCHEN.get(task) or SCENES[task])


class Simulator:
    """A simulated environment, 25 MB, shared by all episodes of a process."""

    def __init__(self, scene: Scene) -> None:
        name = scene.simulated
        self._env: Any
        if isinstance(scene, KitchenScene):
            self._env = Kitchen(name)
        else:
            self._env = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-goal-observable"](seed=0)
        self._aims = {**_hand_aims(scene.stroke), **_thing_aims(scene)}
        space = self._env._random_reset_space
        wide = space.high - space.low > 0.01  # coordinates with a smaller range stay in the middle
        self._low, self._range, self._wide = space.low, space.high - space.low, wide
        self.setting = lru_cache(maxsize=1000)(self._set_up)

    @property
    def coordinates(self) -> int:
        """Number of coordinates that vary."""
        return int(self._wide.sum())

    def _set_up(self, place: Sequence[float]) -> Setting:
        share = np.full(len(self._low), 0.5)
        share[self._wide] = place[: self.coordinates]
        env = self._env
        env._last_rand_vec = self._low + share * self._range
        seen, _ = env.reset()
        attributes = dict(vars(env))
        model = env.model
        return Setting(attributes, model.body_pos.copy(), model.site_pos.copy(), self._position(seen, OPENING, False))

    def draw(self, setting: Setting, position: Position) -> tuple[Image, ...]:
        """Draw a state."""
        self._return_to(setting, position)
        drawn = []
        for camera in CAMERAS:
            self._renderer.update_scene(self._env.data, camera)
            file = io.BytesIO()
            PIL.Image.fromarray(self._renderer.render()).save(file, "PNG")
            drawn.append(Image(file.getvalue()))
        return tuple(drawn)

    @cached_property
    def _renderer(self) -> Any:
        return mujoco.Renderer(self._env.model, SIZE, SIZE)

    def _return_to(self, setting: Setting, position: Position) -> None:
        env = self._env
        vars(env).update(setting.attributes)
        env.model.body_pos[:], env.model.site_pos[:] = setting.bodies, setting.sites
        mujoco.mj_setState(env.model, env.data, position.physics, _PHYSICS)
        mujoco.mj_forward(env.model, env.data)  # else the first step reads forces and places of what was played before

    def after(self, setting: Setting, before: Position, skill: str) -> Position:
        """Execute a skill, and return the state after it."""
        self._return_to(setting, before)
        env = self._env
        seen, success = before.seen, False
        effort = {OPEN: OPENING, CLOSE: CLOSING}.get(skill, before.effort)
        begin, aim = seen[:3], self._aims.get(skill)
        for _ in range(MAX_STEPS if aim else GRIP_STEPS):
            way = (aim(seen, begin) if aim else begin) - seen[:3]
            if aim and np.linalg.norm(way) < ARRIVED_M:
                break
            seen, _, _, _, info = env.step(np.clip([*GAIN * way, effort], -1, 1))
            if success := bool(info["success"]):
                break
        return self._position(seen, effort, success)

    def _position(self, seen: Any, effort: float, success: bool) -> Position:
        model, data = self._env.model, self._env.data
        physics = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
        mujoco.mj_getState(model, data, physics, _PHYSICS)
        return Position(seen, physics, effort, success)


def _hand_aims(stroke: float) -> Mapping[str, Aim]:
    return {
        LIFT: lambda _, begin: np.array([*begin[:2], LIFTED_M]),
        PUSH: lambda _, begin: begin + [0, stroke, 0],
        PULL: lambda _, begin: begin - [0, stroke, 0],
        PUSH_LEFT: lambda _, begin: begin - [stroke, 0, 0],
        PUSH_RIGHT: lambda _, begin: begin + [stroke, 0, 0],
    }


def _thing_aims(scene: Scene) -> Mapping[str, Aim]:
    def aim(thing: Any, further: Any) -> Aim:
        return lambda seen, _: thing.hand(seen) + further

    sides = {
        TO: (0, 0, 0),
        LOWER: (0, 0, 0),
        FRONT: (0, -BESIDE_M, 0),
        RIGHT: (BESIDE_M, 0, 0),
        LEFT: (-BESIDE_M, 0, 0),
    }
    return {
        f"{way} the {thing.name}": aim(thing, side)
        for thing in scene.things
        for way, side in {**sides, ABOVE: (0, 0, thing.above)}.items()
    }
