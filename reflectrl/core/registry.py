"""Environments by name: built in, registered at run time, or provided by an installed package's entry point.

An entry point of the group ``reflectrl.envs`` maps a name to ``module:Class``; its module is imported on first use.

``NAME:REST`` means the environment ``NAME`` with the text ``REST`` as the first parameter of its constructor, such as
``textworld:games/house.z8``; where no environment has that name, ``package.module:Class`` is a class to import. Both
forms are accepted wherever an environment is named.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import InvalidInput, nearest, passes, raised
from reflectrl.core.foreign import message_of

_TARGETS: dict[str, str | type[NatLangEnv]] = {
    "alfworld": "reflectrl.envs.alfworld:AlfWorld",
    "auto_explore": "reflectrl.envs.auto_explore:AutoExplore",
    "dangerous_taxi": "reflectrl.envs.dangerous_taxi:DangerousTaxi",
    "gym_cards": "reflectrl.envs.gym_cards:GymCards",
    "gymnasium": "reflectrl.envs.gymnasium_game:GymnasiumGame",
    "number_line": "reflectrl.envs.number_line:NumberLine",
    "openenv": "reflectrl.envs.openenv_game:OpenEnvGame",
    "safe": "reflectrl.envs.safe:Safe",
    "shop": "reflectrl.envs.shop:Shop",
    "robots": "reflectrl.envs.robots:Robots",
    "textworld": "reflectrl.envs.textworld_game:TextWorldGame",
    "verifiers": "reflectrl.envs.verifiers_game:VerifiersGame",
}

DEFAULT_COPILOT = "auto_explore"
"""Environment whose copilot ``reflectrl explore`` uses, unless a run determines another one."""


def register_env(name: str, target: str | type[NatLangEnv]) -> None:
    """Register ``target`` (a class, or ``"module:Class"``) as the environment ``name``.

    Raises:
        InvalidInput: a name with other characters than letters, digits, ``_``, ``.`` and ``-``, a target that is
            neither, or a name that is registered for another class.
    """
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise InvalidInput(
            f"environment {name!r} was registered; expected a name of letters, digits, '_', '.' and '-'."
        )
    if not (isinstance(target, str) or (inspect.isclass(target) and issubclass(target, NatLangEnv))):
        raise InvalidInput(
            f"environment {name!r} was registered for {target!r}; expected a subclass of reflectrl.NatLangEnv, or "
            "'module:Class'."
        )
    if _path(_TARGETS.get(name, target)) != _path(target):
        raise InvalidInput(f"environment {name!r} is registered as {_TARGETS[name]!r} already; choose another name.")
    _TARGETS[name] = target
    register_gym_ids()


def _plugins() -> Mapping[str, str]:
    folders = (path for path in sys.path if Path(path).is_dir())
    return _plugins_in(tuple((path, Path(path).stat().st_mtime_ns) for path in folders))


@lru_cache(maxsize=1)
def _plugins_in(folders: tuple[tuple[str, int], ...]) -> Mapping[str, str]:  # noqa: ARG001 - changed by installing
    """Return the targets of installed packages by name; reading them takes longer than making most environments."""
    return {point.name: point.value for point in entry_points(group="reflectrl.envs")}


def env_package(name: str) -> str:
    """Return name and version of the installed package that provides an environment; empty for all other ones."""
    provided = (point.dist for point in entry_points(group="reflectrl.envs", name=name.partition(":")[0]))
    return next((f"{package.name} {package.version}" for package in provided if package), "")


def env_names() -> list[str]:
    """Return the names of all known environments, sorted."""
    return sorted({*_TARGETS, *_plugins()})


def names_class(name: str) -> bool:
    """Return whether ``name`` is ``package.module:Class``, and no registered environment with its first option.

    It is the class, too, where that is what is registered under the name of its module.
    """
    if re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", name) is None:
        return False
    registered = name.partition(":")[0]
    target = _TARGETS.get(registered)
    return registered not in env_names() or (target is not None and _path(target) == name)


def env_class(name: str) -> type[NatLangEnv]:
    """Import and return the class of ``name``, which is registered, ``NAME:REST`` or ``package.module:Class``.

    Raises:
        InvalidInput: an unknown name, a target that cannot be imported, or a target that is no ``NatLangEnv``.
    """
    target: str | type[NatLangEnv] | None
    if names_class(name):
        target = name
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # last, so that nothing in the working folder hides an installed package
    else:
        name = name.partition(":")[0]
        target = _TARGETS.get(name) or _plugins().get(name)
    if target is None:
        raise InvalidInput(
            f"environment {name!r} is unknown; {nearest(name, env_names())} One of your own is named "
            "package.module:Class; or it is known after register_env in the same program, or once its package is "
            "installed (entry point reflectrl.envs)."
        )
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        advice = f"; {nearest(module, env_names())}" if names_class(name) else "."
        with foreign_code(f"environment {name!r} points at {target!r}, which cannot be imported", advice):
            target = getattr(importlib.import_module(module), attribute)
    if not (inspect.isclass(target) and issubclass(target, NatLangEnv)):
        raise InvalidInput(f"environment {name!r} is {target!r}; expected a subclass of reflectrl.NatLangEnv.")
    return target


@contextlib.contextmanager
def foreign_code(what: str, advice: str = ".") -> Iterator[None]:
    """Turn any error of foreign code into ``InvalidInput``; Ctrl-C and SIGTERM still end the whole process."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{what}: {message_of(error)}{advice}") from error
    except BaseException as error:
        if passes(error):
            raise
        raise InvalidInput(f"{what}: it {raised(error)}{advice}") from error


def env_path(name: str) -> str | None:
    """Return ``module:Class`` of a registered class, for other processes to import it; ``None`` for other names.

    Raises:
        InvalidInput: a class that no other process can import.
    """
    target = name if names_class(name) else _TARGETS.get(name.partition(":")[0])
    if target is None or isinstance(target, str):
        return target
    if target.__module__ == "__main__" or "<locals>" in target.__qualname__:
        raise InvalidInput(
            f"environment {name!r} is {target!r}, which a worker process cannot import; move the class to the top "
            "level of a module, or play without worker processes."
        )
    return _path(target)


def _path(target: str | type[NatLangEnv]) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def make_env(name: str, **options: Any) -> NatLangEnv:
    """Make the environment ``name``; ``options`` are its constructor's parameters, whose names are checked.

    Raises:
        InvalidInput: an unknown name, an option that is unknown, missing, given twice or refused by the class, or a
            class whose constructor does not call that of ``NatLangEnv``.
    """
    cls = env_class(name)
    signature = inspect.signature(cls)
    known = list(signature.parameters)
    for option in options:
        if option not in known:
            raise InvalidInput(f"environment {name!r} has no option {option!r}; {nearest(option, known)}")
    plain, colon, rest = (name, "", "") if names_class(name) else name.partition(":")
    if colon:
        if not rest or not known:
            raise InvalidInput(
                f"environment {name!r} was given; expected {plain!r}, or its first option after the colon."
            )
        if known[0] in options:
            raise InvalidInput(
                f"environment {name!r} was given {known[0]}={options[known[0]]!r} as well; leave one out."
            )
        options = {known[0]: rest, **options}
    try:
        signature.bind(**options)
    except TypeError as error:
        raise InvalidInput(f"environment {name!r} cannot be made: {error}; give it as an option.") from error
    from reflectrl.core.settings import wrong_type  # its library takes a while to import

    for option, value in options.items():
        if (expected := wrong_type(cls, option, value)) is not None:
            raise InvalidInput(f"environment {name!r} was given {option}={value!r}; expected {expected}.")
    with foreign_code(f"environment {name!r} cannot be made", "; correct it, or its options."):
        env = cls(**options)
    check_constructed(env)
    if not env.name:
        named = plain.rpartition(":")[2]
        raise InvalidInput(f"class {cls.__name__} has no name; set the class attribute name = {named!r}.")
    return env


def check_constructed(env: NatLangEnv) -> None:
    """Check that the constructor of ``env`` called that of ``NatLangEnv``.

    Raises:
        InvalidInput: it did not.
    """
    if "action_space" not in vars(env):
        raise InvalidInput(
            f"the constructor of {type(env).__name__} does not call that of NatLangEnv; begin it with "
            "super().__init__(horizon=...), with 1 or more steps."
        )
    if vars(env)["_task"] is None and vars(env)["_actions"] != []:
        raise InvalidInput(
            f"the constructor of {type(env).__name__} set self._actions, which belongs to NatLangEnv; choose another "
            "name."
        )


@runtime_checkable
class EnvMaker(Protocol):
    """An object that makes several environments at once, e.g. in worker processes."""

    def make(self, options: Mapping[str, Any], count: int) -> Sequence[NatLangEnv]:
        """Return ``count`` new environments with the same ``options``."""


Env = str | Callable[..., NatLangEnv] | EnvMaker
"""Registered name of an environment, its class or another callable that takes its options, or an ``EnvMaker``."""


def make_envs(env: Env, options: Mapping[str, Any], count: int) -> Sequence[NatLangEnv]:
    """Return ``count`` new environments with ``options``.

    Raises:
        InvalidInput: an unknown name, options that the environment does not accept, an environment in place of its
            class, or no environments were asked for.
    """
    if count < 1:
        raise InvalidInput(f"{count} environments were asked for; expected 1 or more to play in parallel.")
    if isinstance(env, str):
        return [make_env(env, **options) for _ in range(count)]
    if isinstance(env, EnvMaker):
        return env.make(options, count)
    if isinstance(env, NatLangEnv):
        raise InvalidInput(
            f"an environment of class {type(env).__name__} was given; expected the class itself, because several are "
            "made of it."
        )
    known = inspect.signature(env).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    for option in () if takes_any else options.keys() - known:
        raise InvalidInput(f"unknown option {option!r} was given to the environment; {nearest(option, known)}")
    made = [env(**options) for _ in range(count)]
    check_constructed(made[0])
    return made


def _gym_id(name: str) -> str:
    return f"reflectrl/{''.join(part.title() for part in name.split('_'))}-v0"


def make_gym_env(name: str, render_mode: str | None = None, **options: Any) -> NatLangEnv:
    """Make the environment ``name`` for ``gymnasium.make``; all environments render as text.

    Raises:
        InvalidInput: another render mode than ``ansi``, or see ``make_env``.
    """
    if render_mode not in (None, "ansi"):
        raise InvalidInput(f"render_mode={render_mode!r} was given to {name!r}; expected 'ansi': a state is a text.")
    return make_env(name, **options)


def register_gym_ids() -> None:
    """Register every environment of this module with gymnasium as ``reflectrl/<CamelName>-v0``.

    ``import reflectrl`` calls this, because gymnasium has no plugin loader since 1.0, and so does ``register_env``.
    Environments of entry points are not registered; their own packages may do so.
    """
    for name in _TARGETS:
        if _gym_id(name) not in gymnasium.registry:
            gymnasium.register(
                _gym_id(name),
                entry_point="reflectrl.core.registry:make_gym_env",
                kwargs={"name": name},
                # NatLangEnv checks the order of calls and the horizon itself, with its own error messages
                order_enforce=False,
                disable_env_checker=True,
            )
