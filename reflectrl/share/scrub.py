"""Removes private data of this machine from exports: paths, logins in addresses, keys."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import MIN_SECRET_CHARS, with_texts, without_credentials
from reflectrl.core.files import write_text

_PATH = re.compile(r"(?<![\w.~/)\]<-])~?(?:/[^\s/:,;'\"()<>|]+)+/?")
"""An absolute path within a text, but not an address or a relative path."""


_WHOLE_PATH = re.compile(r"(?:/[^/\n]+){2,}/?")


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


_MACHINE_KEYS = ("_name_or_path", "name_or_path", "is_local", "local_files_only")
"""Keys of model and tokenizer configurations that describe only this machine's files."""


class Scrubber:
    """Replaces private data of this machine and of one run folder."""

    def __init__(self, run: Path) -> None:
        places = {str(run.resolve()): run.resolve().name, str(run.absolute()): run.name}
        if (home := Path.home()) != Path("/"):
            places |= {str(home.resolve()): "~", str(home): "~"}
        # of nested folders, the longer path first
        self._places = sorted(places.items(), key=lambda pair: -len(pair[0]))
        variables = [value for name, value in os.environ.items() if _SECRET.search(name)]
        self._secrets = [value for value in variables if len(value) >= MIN_SECRET_CHARS]

    def text(self, text: str) -> str:
        """Return ``text`` without run folder, home folder, credentials in addresses and secrets of this process."""
        text = without_credentials(text)
        for place, name in self._places:
            text = name.join(re.split(re.escape(place) + r"(?![\w-])", text))
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def value(self, value: Any) -> Any:
        """Return a setting, nested or not, with each absolute path in it reduced to its last part."""
        return with_texts(value, self._without_paths)

    def _without_paths(self, text: str) -> str:
        plain = self.text(text.replace("file://", ""))
        if plain.startswith(("/", "~/")) and "\n" not in plain:  # with spaces or without
            return PurePosixPath(plain).name or plain
        return _PATH.sub(lambda found: PurePosixPath(found[0]).name, plain)

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return a recipe without private data of this machine."""
        values = self.value(recipe.model_dump())
        name, colon, rest = recipe.env.name.partition(":")
        values["env"]["name"] = name + colon + self.value(rest)
        return Recipe.model_validate(values)

    def configurations(self, folder: Path) -> None:
        """Remove private data from the configurations beside a model's weights; its vocabulary is not changed.

        Raises:
            InvalidInput: a configuration is damaged.

        """
        for path in sorted(folder.glob("*config.json")):
            try:
                values = json.loads(path.read_text(encoding="utf-8"))
                if not isinstance(values, dict):
                    raise ValueError("expected an object")
            except (ValueError, RecursionError) as error:
                raise InvalidInput(f"{path.name} of a player is damaged ({error}); train that player again.") from error
            clean = {key: part for key, part in values.items() if key not in _MACHINE_KEYS}
            clean = with_texts(clean, self._configured)
            if isinstance(modules := clean.get("target_modules"), list):
                clean["target_modules"] = sorted(modules)  # peft writes a set, in any order
            write_text(path, json.dumps(clean, indent=2, ensure_ascii=False) + "\n")

    def _configured(self, text: str) -> str:
        return PurePosixPath(text).name if _WHOLE_PATH.fullmatch(text) else self.text(text)
