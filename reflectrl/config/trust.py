"""What the recipe in a folder that came from elsewhere may ask for without the user's word.

Numbers are harmless, and so is every field of ``FIELDS`` that is ``plain``. The other fields name code, files, servers
or packages. A field that is missing there is refused, so that a new one has to be thought about.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reflectrl.config.evaluation import EvalSection
from reflectrl.config.schema import DataSection, Recipe, SFTSection, TrackingSection
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import host_of, is_loopback
from reflectrl.core.files import user_cache
from reflectrl.core.run_files import AGENT
from reflectrl.core.settings import section_of, settings_fields
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.seats import SEATS
from reflectrl.seats.others import PolicyPlayerSection
from reflectrl.seats.own import CLASS

TRUSTED = "REFLECTRL_TRUSTED_AGENT"
"""Environment variable with a folder from elsewhere that may do whatever its recipe says."""
_MODEL = r"[\w-][\w.-]*(/[\w-][\w.-]*)?|package:\S+#sha256=\w+"
"""Names of models on the hub and in packages."""

Kind = Literal["plain", "model", "code", "class", "source", "file", "env", "options", "tracker", "endpoint"]

_PLAIN = {
    "Recipe": "name description",
    "TrackingSection": "name group tags",
    "BudgetSection": "stated chosen",
    "WorkerLimits": "on_failure",
    "DatasetSection": "writer",
    "History": "show reward",
    "PromptLayout": "labels known_actions shuffle action_mode menu",
    "PromptSection": "instructions",
    "BuiltinSection": "pieces pretrained",
    "LoraSection": "target_modules layers",
    "ModelSection": "chat images dtype quantization attn_implementation compute compile prefix_reuse",
    **{kind.section.__name__: kind.section.plain for kind in SEATS},
    "DataSection": "teacher trajectory",
    "SFTPlayerSection": "lr_scheduler_type",
    "SFTSection": "enabled drop_long_rows",
    "Lesson": "name tasks",
    "ThoughtTerm": "aggregate sample",
    "Estimator": "kind normalize center",
    "GAE": "bootstrap_truncated",
    "ValueHead": "trunk",
    **dict.fromkeys(("Reinforce", "PPO", "EntropyBonus"), "kind"),
    "EntropyTarget": "kind unit",
    "Validation": "greedy",
    "RLFTSection": "learning_rate_schedule sharpen rewards format_into_return fallback_credit normalize_rewards keep",
    "ReflectorSection": "name",
    "TrialsSection": "policies begin_with control",
    "EvalSection": "split tasks groups policies greedy controls",
}
FIELDS: Mapping[str, Kind] = {
    **{f"{section}.{name}": "plain" for section, names in _PLAIN.items() for name in names.split()},
    "ModelSection.name": "model",
    "ModelSection.trust_remote_code": "code",
    "RLFTSection.trainer": "class",
    "TrackingSection.trackers": "tracker",
    "DatasetSection.repositories": "source",
    "DatasetSection.held_out": "source",
    "DataSection.demonstrations": "file",
    "ReflectorSection.run": "file",
    "EnvSection.name": "env",
    "EnvSection.options": "options",
    "Lesson.env": "options",
    "EvalSection.env": "options",
    **{
        f"Endpoint.{name}": "endpoint"
        for name in ("model", "base_url", "replicas", "azure_api_version", "api_key_env", "extra_body")
    },
}
"""Kind of each field of a recipe that can hold more than a number, by its section."""
_CODE = {"environment", "server", "text_map"}
"""Options of environments that name a package whose code would run, although it is a plain word."""
_SILENT_AT_PLAY = [kind.role.name for kind in SEATS if not kind.role.speaks_before]


@dataclass(frozen=True)
class Wish:
    """Something that a recipe asks for."""

    text: str
    """What it would do, a verb first."""
    host: str = ""
    """The server that would be sent states; empty for all other wishes."""
    option: str = ""
    """The environment's option that would be given; empty for all other wishes."""


def check_trust(
    folder: Path, recipe: Recipe, text: str, *, hosts: Collection[str] = (), given: Collection[str] | None = ()
) -> None:
    """Refuse a recipe that wants more than numbers, unless its stages were begun here or the user has agreed.

    Args:
        folder: the run folder or exported agent.
        recipe: its recipe, without the sections that are not going to be read.
        text: the text that the recipe was read from.
        hosts: servers that may be sent states.
        given: options of the environment that the user has given; ``None`` if no environment is going to be made.

    Raises:
        InvalidInput: it wants more; the message names every wish, and how to agree.
    """
    if os.environ.get(TRUSTED) == str(folder.resolve()) or _mark(folder, text).exists():
        return
    exported = (folder / AGENT).exists()
    wanted = [wish for wish in wishes(recipe, given) if wish.host not in hosts or not wish.host]
    if not wanted:
        return
    asked = [wish.host for wish in wanted if wish.host]
    servers = "".join(f" --allow-host {host}" for host in dict.fromkeys(asked))
    cures = [f"for these servers give{servers} (allow_hosts in Python)"] * (len(asked) == len(wanted))
    if exported and all(wish.option for wish in wanted):
        cures += [f"give {' '.join(f'{wish.option}=...' for wish in wanted)} yourself"]
    cures += [f"if you trust whoever made it, set {TRUSTED}={folder.resolve()} and repeat"]
    kind = "exported agent" if exported else "run folder, whose stages were not begun here,"
    raise InvalidInput(
        f"the {kind} {folder} wants to {' and to '.join(w.text for w in wanted)}; {', or '.join(cures)}."
    )


def remember(folder: Path, recipe: Recipe, text: str) -> None:
    """Remember that this user wrote the recipe ``text`` into a folder, if it wants more than numbers.

    An endpoint on this machine counts too, because a key for it may be set later, which would be asked about then.
    """
    if any(wishes(recipe)) or any(asked_endpoints(recipe)):
        mark = _mark(folder, text)
        with suppress(OSError):  # then a later command asks
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _mark(folder: Path, text: str) -> Path:
    """Return the file that stands for a recipe in a folder; neither can be exchanged without becoming another file."""
    known = hashlib.sha256(f"{folder.resolve()}\n{text}".encode()).hexdigest()
    return user_cache() / "begun" / known


def for_play(recipe: Recipe) -> Recipe:
    """Return a recipe with what its trained players need; all else of an exported agent is left unread.

    A dataset stays without its sources, to show that the tasks are not in the folder.
    """
    sources = {"repositories": [], "held_out": [], "writer": "extractive"}
    kept = {
        "players": recipe.players.model_copy(update=dict.fromkeys(_SILENT_AT_PLAY)),
        "dataset": None if recipe.dataset is None else recipe.dataset.model_copy(update=sources),
        "eval": EvalSection(env=recipe.eval.env),
    }
    return recipe.model_copy(
        update={"data": DataSection(), "sft": SFTSection(), "rlft": None, "report_to": TrackingSection(), **kept}
    )


def wishes(recipe: Recipe, given: Collection[str] | None = ()) -> Iterator[Wish]:
    """Yield what a recipe asks for beyond numbers and plain words; ``given`` as in ``check_trust``."""
    for name, settings in recipe.players.own.items():
        yield Wish(f"import {settings[CLASS]} (players.{name})")
    for where, section, name, value in _values(recipe, ""):
        kind = kind_of(type(section), name)
        if isinstance(value, Endpoint):
            yield from _of_endpoint(value) if _is_asked(section, name, recipe) else ()
        elif kind is None and not _is_number(value) and value != _default(section, name):
            yield Wish(f"set {where}, which is not known to be harmless")
        elif kind == "env" and given is not None and ":" in value:
            yield Wish(f"open {value}")
        elif kind == "options" and given is not None:
            yield from _of_options(where, recipe.env.name, value, given)
        elif value and value != "none":
            yield from _of_name(kind, section, value)


def kind_of(section: type, name: str) -> Kind | None:
    """Return the kind of a field of a recipe section, also of one that a base declares; ``None`` if it has none."""
    return next((FIELDS[key] for base in section.__mro__ if (key := f"{base.__name__}.{name}") in FIELDS), None)


def _default(section: Any, name: str) -> Any:
    return settings_fields(type(section))[name].get_default(call_default_factory=True)


def _values(section: Any, where: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the dotted key, section, name and value of every field, also in nested sections, and of every endpoint."""
    for name, field in settings_fields(type(section)).items():
        value, key = getattr(section, name), f"{where}{name}"
        if section_of(field.annotation) is None or isinstance(value, Endpoint):
            yield key, section, name, value
        if section_of(field.annotation) is None:
            continue
        for number, inner in enumerate(value if isinstance(value, list) else [value]):
            if inner is not None:
                yield from _values(inner, f"{key}.{number}." if isinstance(value, list) else f"{key}.")


def _is_number(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_number, value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _of_name(kind: Kind | None, section: Any, value: Any) -> Iterator[Wish]:
    if kind == "code":
        yield Wish(f"run Python code that came with its model {section.name}")
    elif kind == "class":
        yield Wish(f"import {value}")
    elif kind == "tracker":
        yield Wish(f"send its metrics to {', '.join(value)}")
    elif kind == "model" and (_is_path(value) or not re.fullmatch(_MODEL, value)):
        yield Wish(f"read the model {value}")
    elif kind in ("source", "file"):
        listed = [value] if isinstance(value, str) else value
        if fetched := [each for each in listed if not each.startswith("company:")]:
            yield Wish(f"read {', '.join(fetched)}")


def _of_options(where: str, env: str, options: Mapping[str, Any], given: Collection[str]) -> Iterator[Wish]:
    """Yield the options that hold more than numbers and words; a path, address or module is not a word."""
    for name, value in options.items():
        words = value if isinstance(value, list) else [value]
        if name not in given and (name in _CODE or not all(_is_harmless(word) or _is_word(word) for word in words)):
            yield Wish(f"make the environment {env} with {name}={value!r} ({where})", option=name)


def _is_harmless(value: object) -> bool:
    """Return whether a value is a number, a truth value or nothing, or holds only such values."""
    if isinstance(value, Mapping):
        return all(map(_is_harmless, value.values()))
    return isinstance(value, bool) or _is_number(value)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"\w[\w -]*", value)) and not _is_path(value)


def _is_path(word: str) -> bool:
    """Return whether a word would be read as the path of what is in the working folder."""
    with suppress(OSError):  # a name that is too long
        return Path(word).exists()
    return False


def asked_endpoints(recipe: Recipe) -> Iterator[str]:
    """Yield the dotted key of each chat endpoint that the stages of a recipe are going to ask."""
    for key, section, name, value in _values(recipe, ""):
        if isinstance(value, Endpoint) and _is_asked(section, name, recipe):
            yield key


def _is_asked(section: Any, name: str, recipe: Recipe) -> bool:
    """Return whether the endpoint ``name`` of a section is going to be asked, so far as the recipe says."""
    if isinstance(section, PolicyPlayerSection):
        return recipe.rlft is not None if name == "server" else "remote" in recipe.eval.policies
    said = [getattr(section, name) for name in ("player", "teacher", "writer") if hasattr(section, name)]
    return not said or not {"remote", "server", "openai"}.isdisjoint(said)


def _of_endpoint(endpoint: Endpoint) -> Iterator[Wish]:
    variable = endpoint.key_variable
    for url in endpoint.addresses:
        if variable and (endpoint.api_key_env or (endpoint.base_url is not None and variable in os.environ)):
            yield Wish(f"send the key in {variable} to {url}")
        elif not is_loopback(url):
            yield Wish(f"send states to {host_of(url)}", host_of(url))
