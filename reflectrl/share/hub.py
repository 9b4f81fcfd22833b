"""``push``: an export as a repository of the hub, of a model or a dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.errors import raised
from reflectrl.core.run_files import PLAYER_FILES, REFLECTOR

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REPLACED = [*PLAYER_FILES, f"{REFLECTOR}/*", "example.py", "example.json"]
"""Files deleted from the repository if the folder lacks them: an old adapter would be loaded beside merged weights, and
the example of an earlier agent would be wrong."""

_WHAT: Mapping[str, str] = {"model": "an agent trained", "dataset": "rows made"}


def is_hub_name(name: str) -> bool:
    """Return whether ``name`` has the form OWNER/NAME."""
    return bool(_NAME.fullmatch(name)) and not re.search(r"\.\.|--|\.git$|[.-]$", name)


def check_push(name: str) -> str:
    """Check what can be checked before the export, and return the token.

    Raises:
        InvalidInput: the name is invalid, there is no token, or the process may not go online.

    """
    from huggingface_hub import get_token
    from huggingface_hub.constants import is_offline_mode

    if not is_hub_name(name):
        raise InvalidInput(f"--push-to-hub {name!r} was given; expected OWNER/NAME, such as me/taxi-agent.")
    if is_offline_mode():
        raise InvalidInput("--push-to-hub was given but HF_HUB_OFFLINE is set; unset it to go online.")
    token = get_token()
    if token is None:
        raise InvalidInput(
            "--push-to-hub needs a hub token with write permission; run `hf auth login`, or set HF_TOKEN."
        )
    return token


def push(folder: Path, name: str, *, private: bool = False, kind: Literal["model", "dataset"] = "model") -> str:
    """Create the repository ``name`` of this kind if there is none, upload ``folder``, and return its address.

    Raises:
        InvalidInput: see ``check_push``; the token lacks the permission, or a repository that should be private exists
            and is public.
        WorkFailed: the hub cannot be reached, or refused the upload.

    """
    token = check_push(name)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="reflectrl")
    try:
        url = api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
        if (
            private and not api.repo_info(name, repo_type=kind).private
        ):  # the hub leaves a repository as public as it is
            raise InvalidInput(
                f"--private was given but {name!r} is on the hub already and public; nothing was uploaded: make it "
                "private there, choose another name, or leave out --private."
            )
        api.upload_folder(
            folder_path=folder,
            repo_id=name,
            repo_type=kind,
            delete_patterns=_REPLACED if kind == "model" else None,
            commit_message=f"Upload {_WHAT[kind]} by reflectrl",
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise InvalidInput(
                f"the hub refused to write {name!r} ({status}): the token is wrong or lacks the permission; run "
                "`hf auth login` with another one, or choose another name."
            ) from error
        raise _failed(folder, name, kind, f"the hub answered with status {status}") from error
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001 - includes errors of the HTTP and storage libraries below
        raise _failed(folder, name, kind, f"it {raised(error)}".replace(token, "[token]")) from error
    return str(url)


def _failed(folder: Path, name: str, kind: str, why: str) -> WorkFailed:
    return WorkFailed(
        f"the upload to {name!r} failed: {why}; {folder} is complete, so try again with "
        f"`hf upload {name} {folder} --repo-type {kind}`."
    )
