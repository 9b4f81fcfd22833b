"""The trajectory viewer's part of the page: its empty form, the packed episodes, and the one script that is allowed.

What the form becomes is decided in viewer.js.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files

from reflectrl.report.escape import escaped, shortened
from reflectrl.report.runs import Run
from reflectrl.report.sources import Sources

_FORM = """
<div id="viewer" tabindex="-1" role="region" aria-label="Trajectory viewer" hidden>
<form id="filters" role="search" aria-label="Which episodes">
<label class="grow">episodes of <select id="source"></select></label>
<label class="grow">compare with <select id="beside"></select></label>
<label>outcome <select id="outcome"></select></label>
<label id="iteration-label">iteration <input id="iteration" type="number" min="0" placeholder="all"></label>
<label class="grow">task
<input id="task" type="search" placeholder="all tasks" autocomplete="off" spellcheck="false"></label>
<button id="help-button" type="button" aria-label="Keys" title="Keys">?</button>
</form>
<div id="columns">
<div id="found">
<p id="count" class="note" role="status"></p>
<div id="list" role="listbox" tabindex="0" aria-label="Episodes"><div id="rows" role="presentation"></div></div>
</div>
<div id="stage">
<div id="steps" role="group" aria-label="Step through the episode">
<button id="first" type="button" aria-label="First step" title="First step (Home)">&#x21E4;</button>
<button id="back" type="button" aria-label="Step back" title="Step back (&#x2190;)">&#x2190;</button>
<input id="slider" type="range" min="1" value="1" aria-label="Step">
<button id="forward" type="button" aria-label="Step forward" title="Step forward (&#x2192;)">&#x2192;</button>
<button id="last" type="button" aria-label="Last step" title="Last step (End)">&#x21E5;</button>
<output id="place" for="slider" aria-live="polite"></output>
</div>
<div id="episodes"></div>
</div>
</div>
<p class="note keys">Keys, after a click here: <kbd>&#x2190;</kbd> <kbd>&#x2192;</kbd> steps,
<kbd>&#x2191;</kbd> <kbd>&#x2193;</kbd> episodes, <kbd>/</kbd> search, <kbd>?</kbd> all keys.
The address of the page leads back to what it shows.</p>
<dialog id="help" aria-labelledby="help-title">
<h3 id="help-title">Keys</h3>
<dl>
<dt><kbd>&#x2190;</kbd> <kbd>&#x2192;</kbd> or <kbd>h</kbd> <kbd>l</kbd></dt><dd>step back, step forward</dd>
<dt><kbd>&#x2191;</kbd> <kbd>&#x2193;</kbd> or <kbd>k</kbd> <kbd>j</kbd></dt><dd>episode before, next episode</dd>
<dt><kbd>Home</kbd> <kbd>End</kbd></dt><dd>first step, last step</dd>
<dt><kbd>/</kbd></dt><dd>search for a task</dd>
<dt><kbd>Esc</kbd></dt><dd>leave the search, or this</dd>
<dt><kbd>?</kbd></dt><dd>these keys</dd>
</dl>
<form method="dialog"><button>Close</button></form>
</dialog>
</div>
"""
_SILENT = "Stepping through episodes needs JavaScript, which is off here; tables and curves do not."
_BEST = ("rlft", "sft", "remote", "base")
"""Policies in the order in which one is shown first."""


def script() -> str:
    """viewer.js as it stands."""
    return files("reflectrl.report").joinpath("viewer.js").read_text(encoding="utf-8")


def style() -> str:
    """style.css as it stands."""
    return files("reflectrl.report").joinpath("style.css").read_text(encoding="utf-8")


def script_hash() -> str:
    """Hash of the script for the page's content policy; a browser runs no other script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()


def viewer(runs: Sequence[Run], sources: Sources) -> str:
    """The viewer with its episodes, and sentences about those that are missing."""
    missing = "".join(f'<p class="note">{escaped(sentence)}</p>' for sentence in sources.missing)
    if not sources.found:
        return f'<p class="note">No episodes are recorded yet.</p>{missing}'
    blocks = "".join(
        f'<script type="text/plain" id="source-{number}">{source.block}</script>\n'
        for number, source in enumerate(sources.found)
    )
    index = f'<script type="application/json" id="index">{_index(runs, sources)}</script>'
    silent = f'<noscript><p class="note">{_SILENT}</p></noscript>'
    return f"{_FORM}{silent}{missing}{blocks}{index}<script>{script()}</script>"


def _index(runs: Sequence[Run], sources: Sources) -> str:
    """Index of runs and sources, as JSON that cannot end its element."""
    value = {
        "runs": [{"name": shortened(run.name, 200), "gamma": run.gamma} for run in runs],
        "sources": [
            {
                "key": shortened(source.key, 400),
                "run": source.run,
                "label": shortened(source.label, 200),
                "training": not source.policy,
                "episodes": source.episodes,
            }
            for source in sources.found
        ],
        "first": _first(sources),
    }
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _first(sources: Sources) -> int:
    """The source that is shown first: the first run's main evaluation."""
    for policy in _BEST:
        for number, source in enumerate(sources.found):
            if source.policy == policy and source.run == sources.found[0].run:
                return number
    return 0
