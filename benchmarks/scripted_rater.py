"""The scripted chat model of the table ``raters_endpoint``, which rates episodes of the number line by its prompt.

The endpoint is the tests' HTTP server, at the address that ``vtifa/nano_endpoint`` names. It knows only what the
prompts show: the target was reached if the agent ends on it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the folder of scripted_endpoint
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput

STATE = re.compile(r"^(?:t=\d+|end) \| Number (\d+), target (\d+)\.", re.MULTILINE)
SUMMARY = re.compile(r"last seen at (\d+), with the target at (\d+)")


def words(chat: Chat) -> str:
    """Return the summary of a segment, or the rating of an episode, whichever ``chat`` asks for."""
    asked = chat[1]["content"]
    if states := STATE.findall(asked):
        number, target = states[-1]
        return f"The agent was last seen at {number}, with the target at {target}."
    number, target = SUMMARY.findall(asked)[-1]
    return "3" if number == target else "0"


class ScriptedRater(ScriptedEndpoint):
    """A context, ``with ScriptedRater():``, in which ``words`` answers at the endpoint of ``vtifa/nano_endpoint``.

    Raises:
        InvalidInput: another server uses that port.

    """

    def __init__(self) -> None:
        rater = load_recipe("vtifa/nano_endpoint").players.rater
        assert rater is not None
        port = urlsplit(rater.endpoint.base_url or "").port or 80
        try:
            super().__init__(port)
        except OSError as error:
            raise InvalidInput(f"port {port} is taken ({error.strerror}); stop the server that has it.") from error
        self.reply = words
