"""``ExtraBody``: further fields of a request that a recipe may give, such as a switch for a model's thinking."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import without_credentials

_OURS = {
    *("model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n"),
    *("response_format", "grammar", "logprobs", "top_logprobs"),
}
"""Fields that have settings of their own, or that decide how a reply is read."""
_SECRET_NAME = re.compile(
    r"(api|access|auth|secret|private|subscription).?(key|token)|secret|password|passwd|authori[sz]ation|credential"
    r"|bearer|cookie",
    re.IGNORECASE,
)
_SECRET_FORM = re.compile(
    r"\b(bearer|basic)\s+\S{8}|\b(sk|pk|rk|hf|gsk|xai|nvapi|ghp|gho|glpat|r8|pplx|fw|tgp|csk|key)[-_][\w-]{12}"
    r"|\bAIza[\w-]{20}|\beyJ[\w-]{10}|\bgithub_pat_|-----BEGIN",
    re.IGNORECASE,
)
"""Beginnings of the keys of common providers."""


def public_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` after a check that reflectrl sets none of them itself and that none is a secret.

    Raises:
        InvalidInput: one is, or JSON cannot hold it; the message does not repeat values.

    """
    if ours := _OURS & fields.keys():
        raise InvalidInput(
            f"extra_body holds {min(ours)!r}, which reflectrl sets itself; leave it out, and use the endpoint's keys."
        )
    if secret := _secret_in(fields):
        raise InvalidInput(
            f"extra_body holds something like a key at {secret!r}, and recipes are copied into run folders and "
            "reports; leave it out, and name the environment variable that holds the key in api_key_env."
        )
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput("extra_body holds a value that JSON cannot hold; expected texts, numbers, lists.") from None
    return fields


def _secret_in(value: Any, key: str = "") -> str | None:
    """Return the name of a part of ``value`` that looks like a credential by its name or form; ``None`` without one."""
    if isinstance(value, dict):
        return next(filter(None, (_secret_at(str(name), part) for name, part in value.items())), None)
    if isinstance(value, list):
        return next(filter(None, (_secret_in(part, key) for part in value)), None)
    is_secret = isinstance(value, str) and (_SECRET_FORM.search(value) or without_credentials(value) != value)
    return key if is_secret else None


def _secret_at(name: str, value: Any) -> str | None:
    return name if _SECRET_NAME.search(name) else _secret_in(value, name)


ExtraBody = Annotated[dict[str, Any], AfterValidator(public_fields)]
