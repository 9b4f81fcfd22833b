"""A policy: a title and, for each aspect, a heading with sentences of seeded facts below."""

from __future__ import annotations

import random
from collections.abc import Iterator

from reflectrl.envs.auto_explore.company.plan import Folder, Size
from reflectrl.envs.auto_explore.company.words import COLLEAGUES

_PARAGRAPH = 6
"""Sentences."""
_FIRST = (
    "For {aspect}, write to {who} at least {few} days ahead.",
    "{who} decides about {aspect} and replies within {few} working days.",
    "Questions about {aspect} go to {who}, extension {many}.",
    "In {year} we set aside {many} euros for {aspect}.",
)
# No word of another aspect, entity or folder may stand here, or a question could have a second answer.
_FURTHER = (
    "The yearly ceiling is {many} euros, and {other} approves whatever goes beyond it.",
    "{many} colleagues asked in {year}, and {few} of them were refused.",
    "We changed this in {year} after a proposal by {who}.",
    "Nothing above {many} euros is paid without a receipt.",
    "The blue binder stands on floor {few}, beside the desk of {who}.",
    "Since {year} every answer is written down and kept for {few} years.",
    "{who} and {other} take turns every {few} weeks.",
    "Exceptions need {few} signatures, one of them from {who}.",
    "Call extension {many} before noon if {who} is away.",
    "The last review in {year} found {few} gaps, all closed by {other}.",
    "New colleagues hear about it from {who} in week {few}.",
    "We expect about {many} requests until the end of {year}.",
    "A reminder goes out {few} days before, signed by {other}.",
    "Small sums up to {few} euros need no signature at all.",
    "{other} keeps the register, which had {many} entries in {year}.",
    "Whoever disagrees may appeal to {other} within {few} weeks.",
)


def policy(folder: Folder, entity: str, size: Size, rng: random.Random) -> str:
    """The text of one file."""
    title = f"{folder.subject.name.title()} in {entity.title()}" + (f" for {folder.group}" if folder.group else "")
    parts = [f"# {title}\n"]
    for aspect in folder.subject.aspects:
        sentences = list(_sentences(aspect, rng.randint(*size.sentences), rng))
        parts.append(f"\n## {title}: {aspect}\n")
        for start in range(0, len(sentences), _PARAGRAPH):
            parts.append(f"\n{' '.join(sentences[start : start + _PARAGRAPH])}\n")
    return "".join(parts)


def _sentences(aspect: str, count: int, rng: random.Random) -> Iterator[str]:
    templates = [rng.choice(_FIRST)]
    while len(templates) < count:
        templates += rng.sample(_FURTHER, min(len(_FURTHER), count - len(templates)))
    for template in templates:
        who, other = rng.sample(COLLEAGUES, 2)
        yield template.format(
            aspect=aspect,
            who=who,
            other=other,
            few=rng.randint(2, 30),
            many=rng.randint(101, 999),
            year=rng.randint(2012, 2024),
        )
