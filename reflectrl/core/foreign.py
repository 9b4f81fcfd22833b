"""Code that others wrote: messages of its errors, errors that end the program, and the environment of its processes.

Nothing is certain about the errors: their class may be any subclass of ``BaseException``, and ``str`` may raise.
"""

from __future__ import annotations

import os


def is_signal(error: BaseException) -> bool:
    """Return whether an error comes from a signal handler that ends the whole process."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


def message_of(error: BaseException) -> str:
    """Return ``str(error)``, or a remark where that raises: every message of a foreign error is read here."""
    try:
        return str.__str__(str(error))  # a subclass of str could have methods that raise
    except BaseException as broken:
        if isinstance(broken, KeyboardInterrupt) or is_signal(broken):
            raise
        return f"its message cannot be printed, since __str__ raises {type(broken).__name__}"


_NEEDED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
    *("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME", "NETRC"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
}


def child_environment(**changes: str) -> dict[str, str]:
    """Return the variables for a program of others: paths, language, proxies, certificates and pip's, with ``changes``.

    These may be the keys that the user gives that program.
    """
    needed = {name: value for name, value in os.environ.items() if name in _NEEDED or name.startswith("PIP_")}
    return {**needed, **changes}
