"""Checks of the values that an environment returns, one small function for each method.

Each returns ``None``, or the rest of a sentence that begins with "it": ``returned reward nan for 'left'; expected a
finite number``. They run at every step, so expensive work is done only after a fault was found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real

import msgspec

from reflectrl.core.text import one_line, shown
from reflectrl.core.types import Hints, Image, Observation, Outcome, Reading, Task

PNG = b"\x89PNG\r\n\x1a\n"
"""First bytes of a PNG file."""
MAX_CHARS = 1_000_000
"""Maximum length of an observation with its menu, or of a hint; prompts have thousands of characters."""


def wrong_observation(
    observation: object, max_actions: int, *, ended: bool, before: Observation | None = None
) -> str | None:
    """Describe the fault of an observation, also by comparison with the one ``before`` in the episode."""
    if not isinstance(observation, Observation):
        return f"returned {shown(observation)} from observe(); expected an Observation"
    actions, common = observation.actions, observation.common
    for given in (actions, common):
        if not isinstance(given, tuple):
            return (
                f"showed the menu {shown(given)}, a {type(given).__name__}; expected a tuple, as records do not change"
            )
    if not (actions or ended or max_actions == 0):
        return (
            "offered no legal action; an unfinished episode needs at least one, unless max_actions is 0 and any text "
            "will do"
        )
    wrong = _wrong_texts(observation.text, observation.task, observation.short, *actions, *common)
    if wrong is not None:
        return wrong
    images = observation.images
    if not isinstance(images, tuple) or not all(map(_is_picture, images)):
        return f"showed the images {shown(images)}; expected a tuple of Image records with the bytes of PNG files"
    for given in (actions, common) if common != actions else (actions,):
        if (wrong := _wrong_menu(given)) is not None:
            return wrong
    if before is not None and before.common != common:
        return f"changed the common actions of the episode from {shown(before.common)} to {shown(common)}"
    most = len({*actions, *common}) if common else len(actions)
    if most > max_actions:
        also = ", those of Observation.common included" if common else ""
        return f"showed a menu that has {most} actions{also}, but max_actions is {max_actions}; expected no more"
    return None


def _is_picture(image: object) -> bool:
    return isinstance(image, Image) and isinstance(image.data, bytes) and image.data.startswith(PNG)


def _wrong_menu(actions: tuple[str, ...]) -> str | None:
    if not all(map(str.strip, actions)) or "\n".join(actions).count("\n") >= max(len(actions), 1):
        bad = [action for action in actions if not action.strip() or "\n" in action]
        return f"showed actions {shown(bad)}, which are empty or span lines; a menu shows one action a line"
    if len(set(actions)) != len(actions):
        twice = next(action for action in actions if actions.count(action) > 1)
        return f"showed a menu that repeats an action, {shown(twice)}; expected each action once"
    return None


def wrong_outcome(outcome: object, action: str) -> str | None:
    """Describe the fault of an outcome."""
    if not isinstance(outcome, Outcome):
        return f"returned {shown(outcome)} from act(); expected an Outcome"
    if not _is_finite(outcome.reward):
        return f"returned reward {shown(outcome.reward)} for {shown(action)}; expected a finite number"
    for field in ("ended", "success", "illegal"):
        value = getattr(outcome, field)
        if value is not True and value is not False:
            return f"returned {field}={shown(value)} for {shown(action)}; expected True or False"
    return None


def wrong_hints(hints: object, actions: Sequence[str] | None) -> str | None:
    """Describe the fault of hints: a malformed text, or an action that no policy can choose.

    It has to be one of ``actions``; if there are none, one line, as policies write it; ``None`` allows any.
    """
    if not isinstance(hints, Hints):
        return f"returned {shown(hints)} from hints(); expected Hints"
    action = hints.action
    unwritable = isinstance(action, str) and (not action or action != one_line(action))
    if actions is not None and not actions and unwritable:
        return f"answered {shown(action)} from expert(); expected one line of words with single spaces between them"
    if actions and action is not None and action not in actions:
        return f"answered {shown(action)} from expert(), which is not on the menu {shown(actions)}"
    if not any(hints.mistaken is known for known in (True, False, None)):
        return f"answered {shown(hints.mistaken)} from mistaken(); expected True, False or None"
    texts = (action, hints.reflection, hints.spoiler, *hints.secrets)
    return _wrong_texts(*(text for text in texts if text is not None))


def wrong_tasks(tasks: object, split: str) -> str | None:
    """Describe the fault of ``tasks(split)``, which must be a sequence of tasks with unique ids; it may be empty."""
    where = f"tasks({split!r})"
    if not isinstance(tasks, Sequence) or isinstance(tasks, str):
        return f"returned {shown(tasks)} from {where}; expected a sequence of Task records"
    ids = set()
    for task in tasks:
        if not isinstance(task, Task) or not isinstance(task.id, str):
            return f"returned {where} that holds {shown(task)}; expected Task records with a text as id"
        if (wrong := _wrong_texts(task.id)) is not None:
            return f"returned {where} with an id that cannot be used: it {wrong}"
        if not _is_plain(task.options):
            try:
                odd = _odd_part(task.options, "options")
            except RecursionError:  # they hold themselves
                odd = None
            odd = odd or f"options={shown(task.options)}"
            return (
                f"returned {where} whose task {shown(task.id)} has {odd}, which JSON cannot hold; expected a dict of "
                "texts, finite numbers, True, False, None, and lists and dicts of these with texts as keys"
            )
        if task.id in ids:
            return f"returned {where} that repeats an id, {shown(task.id)}; each task needs an id of its own"
        ids.add(task.id)
    return None


def phrases(secrets: Sequence[str]) -> tuple[str, ...]:
    """Return what ``secrets()`` returned as a tuple; raise ``TypeError`` for one text, a sequence of letters."""
    if isinstance(secrets, str):
        raise TypeError(f"secrets() returned {secrets!r}; expected a sequence of texts")
    return tuple(secrets)


def wrong_reading(reading: object) -> str | None:
    """Describe the fault of a reading."""
    if not isinstance(reading, Reading):
        return f"returned {shown(reading)} from read_thought(); expected a Reading"
    if not any(reading.right is known for known in (True, False, None)):
        return f"returned right={shown(reading.right)} from read_thought(); expected True, False or None"
    if not isinstance(reading.action, str | None):
        return f"returned action={shown(reading.action)} from read_thought(); expected a text or None"
    return None


def wrong_benchmark(source: object) -> str | None:
    """Describe the fault of a description of results."""
    return None if isinstance(source, str) else f"returned {shown(source)} from benchmark(); expected a text"


def _is_plain(options: object) -> bool:
    """Return whether JSON returns options unchanged."""
    try:
        return isinstance(options, Mapping) and msgspec.json.decode(msgspec.json.encode(options)) == options
    except (TypeError, ValueError, RecursionError):
        return False


def _odd_part(value: object, name: str) -> str | None:
    """Describe the first part of options that JSON does not return unchanged, and where it is."""
    if isinstance(value, Mapping):
        parts = [(part, f"{name}[{key!r}]") for key, part in value.items()]
        if odd := [key for key in value if not isinstance(key, str)]:
            return f"the key {shown(odd[0])} in {name}"
    elif isinstance(value, list):
        parts = [(part, f"{name}[{place}]") for place, part in enumerate(value)]
    else:
        return None if _is_plain({"": value}) else f"{name}={shown(value)} ({type(value).__name__})"
    return next(filter(None, (_odd_part(part, where) for part, where in parts)), None)


def _is_finite(reward: object) -> bool:
    if not isinstance(reward, float | int | Real):
        return False
    try:
        return math.isfinite(float(reward))
    except OverflowError:  # an integer that is too large for a float
        return False


def _wrong_texts(*texts: object) -> str | None:
    try:
        whole = "\n".join(texts)  # type: ignore[arg-type]
    except TypeError:
        bad = next(text for text in texts if not isinstance(text, str))
        return f"showed {shown(bad)} as a text; observation texts and actions must be str"
    if not all(type(text) is str for text in texts) and (odd := [text for text in texts if f"{text}" != text]):
        return f"showed {shown(odd[0])}, which prints as {shown(f'{odd[0]}')}; expected plain texts: use str, not Enum"
    if len(whole) > MAX_CHARS:
        return f"showed texts of {len(whole):,} characters; expected {MAX_CHARS:,} at most"
    if "\0" in whole or not _can_be_written(whole):
        bad = next(text for text in texts if isinstance(text, str) and ("\0" in text or not _can_be_written(text)))
        return f"showed the text {shown(bad)}; expected one without NUL and lone surrogates, which no file can hold"
    return None


def _can_be_written(text: str) -> bool:
    if text.isascii():  # Python knows this without reading the text
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
