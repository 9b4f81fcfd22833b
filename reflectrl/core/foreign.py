"""Errors of code that others wrote, such as environments: which of them end the program, and what they say.

Nothing is certain about them: their class may be any subclass of ``BaseException``, and ``str`` may raise.
"""

from __future__ import annotations


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
