"""Addresses of servers, which parts of them are secret, and the nested mappings in which they stand."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from reflectrl.core.errors import InvalidInput


def dotted(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys, ``{"rlft.gamma": 0.9}``; lists are kept as values."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        key: leaf for name, part in value.items() for key, leaf in dotted(part, f"{path}.{name}".strip(".")).items()
    }


def section_at(values: Any, where: str) -> dict[str, Any]:
    """Return the mapping at the dotted key ``where``, numbers of list entries included; empty where there is none."""
    for key in where.split("."):
        if isinstance(values, list):
            values = values[int(key)] if key.isdecimal() and int(key) < len(values) else None
        else:
            values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, dict) else {}


def value_at(values: Any, where: str) -> Any:
    """Return the value at the dotted key ``where``, numbers of list entries included."""
    for key in where.split("."):
        values = values[int(key)] if isinstance(values, list) else values[key]
    return values


def set_at(values: Any, where: str, value: Any) -> None:
    """Set the value at the dotted key ``where``, in place; a mapping that is missing on the way is made."""
    *path, last = where.split(".")
    for key in path:
        if isinstance(values, list):
            values = values[int(key)]
        else:
            values[key] = {} if values.get(key) is None else values[key]
            values = values[key]
    values[int(last) if isinstance(values, list) else last] = value


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON with ``change`` applied to each text in it, keys excepted."""
    if isinstance(value, dict):
        return {key: with_texts(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


MIN_SECRET_CHARS = 8
"""Minimum length of a key that is masked in texts; a shorter one is a placeholder, and a part of many words."""
_LOGIN = re.compile(r"(\w+://)[^\s/?#'\"<>]*@")
_QUERY = re.compile(r"(\w+://[^\s?'\"<>]+)\?[^\s'\"<>]*")


def public_address(url: str) -> str:
    """Return ``url``, the address of a chat endpoint, after a check that it has no login and no query.

    The address is copied into run folders and reports, so it must not contain credentials.

    Raises:
        InvalidInput: it is not an address, or contains credentials, which the message does not repeat.
    """
    expected = "expected one like http://localhost:8000/v1"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - read to be checked
    except ValueError:  # a port that is not a number, half of an IPv6 address
        raise InvalidInput(f"base_url is not an address; {expected}.") from None
    if "@" in (parts.netloc or url) or parts.query or parts.fragment:
        raise InvalidInput(
            f"base_url holds a login or a query, and recipes are copied into run folders and reports; {expected}: "
            "leave the login or query out, and name the environment variable that holds the key in api_key_env."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.hostname.isascii():
        raise InvalidInput(f"base_url={url!r} is not an address; {expected}.")
    if _is_number(parts.hostname) and ip_address(parts.hostname) is None:
        raise InvalidInput(
            f"base_url={url!r} names its host by a number; expected a name, or an IP address in its usual form, such "
            "as 127.0.0.1."
        )
    return url


def variable_name(name: str) -> str:
    """Return ``name`` after a check that it may be an environment variable's.

    Raises:
        InvalidInput: it may not; the message does not repeat it, because it may be the key itself.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidInput(
            "api_key_env is not a name of an environment variable; expected one like OPENAI_API_KEY: put the key into "
            "that variable, since recipes are copied into run folders and reports."
        )
    return name


def public_source(source: str) -> str:
    """Return ``source``, the address of a repository, after a check that it has no HTTP login.

    The user name before the @ of an ``ssh://`` address is not a secret.

    Raises:
        InvalidInput: it contains an HTTP login, which the message does not repeat.
    """
    scheme, _, rest = source.partition("://")
    if scheme.endswith(("http", "https")) and "@" in rest.partition("/")[0]:
        raise InvalidInput(
            f"{without_credentials(source)} was given with a login, which would be copied into files; leave the login "
            "out, and let git's credential helper or ssh log in."
        )
    return source


def without_credentials(value: Any) -> Any:
    """Remove logins and queries from the addresses in ``value``, a text or nested settings."""
    return with_texts(value, lambda text: _QUERY.sub(r"\1", _LOGIN.sub(r"\1", text)))


def host_of(url: str) -> str:
    """Return the host of an address in lower case; empty where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(url: str) -> bool:
    """Return whether ``url`` is an address of this machine."""
    host = host_of(url)
    address = ip_address(host)
    return address.is_loopback if address else host == "localhost" or host.endswith(".localhost")


def is_private(url: str) -> bool:
    """Return whether ``url`` is an address of this machine or its network: a private IP address or a bare name."""
    host = host_of(url)
    address = ip_address(host)
    return address.is_private if address else is_loopback(url) or not ("." in host or _is_number(host))


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse ``host`` as an IP address, that of IPv4 inside one of IPv6; return ``None`` for a host name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections.

    Raises:
        InvalidInput: the address cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:  # a name with an empty or too long part
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"the server cannot listen on {host} port {port} ({why}); choose another --host or --port, such as "
            "--port 0 for any free one."
        ) from error
    # inherited by connections; without it, the body of a reply waits 40 ms for the acknowledgement of its headers
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _is_number(host: str) -> bool:
    """Return whether systems read ``host`` as an IPv4 address, in whichever base: its last part is a number."""
    return bool(re.fullmatch(r"0[xX][0-9a-fA-F]*|[0-9]+", host.rstrip(".").rpartition(".")[2]))
