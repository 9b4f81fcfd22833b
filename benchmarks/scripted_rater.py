"""The scripted chat model of the table ``raters_endpoint``, which rates episodes of the number line by its prompt.

The endpoint is the tests' HTTP server, at the address that ``vtifa/nano_endpoint`` names. It knows only what the
prompts show. With the actions it can tell whether the target was reached; without them it assumes so for every agent
that was last seen next to the target.
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

STEP = re.compile(r"^t=\d+ \| Number (\d+), target (\d+)\.(?: \| (add|subtract) one)?$", re.MULTILINE)
SUMMARY = re.compile(r"last seen at (\d+), with the target at (\d+)(?:, and chose to (add|subtract) one)?")


def words(chat: Chat) -> str:
    """Return the summary of a segment, or the rating of an episode, whichever ``chat`` asks for."""
    asked = chat[1]["content"]
    if steps := STEP.findall(asked):
        number, target, action = steps[-1]
        chosen = f", and chose to {action} one" if action else ""
        return f"The agent was last seen at {number}, with the target at {target}{chosen}."
    number, target, action = SUMMARY.findall(asked)[-1]
    distance = int(target) - int(number)
    success = distance == {"add": 1, "subtract": -1}[action] if action else abs(distance) == 1
    return "3" if success else "0"


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
