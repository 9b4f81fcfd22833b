"""Games as ALFWorld wrote them before its version 0.4."""

from __future__ import annotations

import re
from dataclasses import replace


def older(game):
    """A game as alfworld 0.3 wrote it: what ALFWorld's own patch of its published games changes, changed back."""
    grammar, domain = game.grammar, game.domain
    for new, old in (
        ("move {o} to {r}", "put {o} in/on {r}"),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
        ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ):
        assert new in grammar
        grammar = grammar.replace(new, old)
    grammar, without_help = re.subn(r"\naction help \{.*?\n\}\n", "\n", grammar, flags=re.DOTALL)
    domain, without_it_too = re.subn(r"\(:action help\n.*?\n\)\n", "", domain, flags=re.DOTALL)
    assert (without_help, without_it_too) == (1, 1)
    return replace(game, grammar=grammar, domain=domain)
