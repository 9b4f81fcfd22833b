"""``child_environment``: the environment variables that a program of others needs, without the user's keys."""

from __future__ import annotations

import os

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
