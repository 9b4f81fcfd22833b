"""The company's files: policies, tables, source code, and the three files of the root, with random facts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from reflectrl.core import InvalidInput
from reflectrl.core.seeds import derive_seed
from reflectrl.envs.auto_explore.company.catalog import (
    COLLEAGUES,
    DEPARTMENTS,
    GO,
    JAVA,
    JAVASCRIPT,
    MARKDOWN,
    PYTHON,
    SQL,
    TABLE,
    Folder,
    Size,
    plan_company,
    size_named,
)

_PARAGRAPH = 6
_FIRST = (
    "For {aspect}, write to {who} at least {few} days ahead.",
    "{who} decides about {aspect} and replies within {few} working days.",
    "Questions about {aspect} go to {who}, extension {many}.",
    "In {year} we set aside {many} euros for {aspect}.",
)
# No word of another aspect, entity or folder may occur here, or a question could have a second answer.
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
    """Write a policy: a title and, for each aspect, a heading with sentences of drawn facts below."""
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


_MONTHS = 12
"""Maximum number of rows of a table with one row a month; longer ones have one a day."""


def table(folder: Folder, entity: str, size: Size, rng: random.Random) -> str:
    """Write a table: one row a month or a day, one column of drawn numbers an aspect."""
    rows = rng.randint(*size.rows)
    year = rng.randint(2012, 2022)
    if rows <= _MONTHS:
        unit, keys = "month", [f"{year}-{number + 1:02}" for number in range(rows)]
    else:
        unit, keys = "day", [str(date(year, 1, 1) + timedelta(days=number)) for number in range(rows)]
    title = f"{folder.subject.name} of {entity.title()}" + (f" {folder.group}" if folder.group else "")
    lines = [",".join([unit, *(f"{title}: {aspect}" for aspect in folder.subject.aspects)])]
    usual = [rng.randint(10, 900) for _ in folder.subject.aspects]
    lines += [",".join([key, *(f"{number * rng.uniform(0.8, 1.2):.1f}" for number in usual)]) for key in keys]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Language:
    """Format strings of one programming language."""

    suffix: str
    top: str
    function: str
    """Text of a function, which says what it does and who maintains it, and corrects a number in steps."""
    step: str
    end: str = ""


LANGUAGES = MappingProxyType(
    {
        PYTHON: Language(
            "py",
            '"""{title}."""\n',
            '\n\ndef {snake}(value: float) -> float:\n    """{does}.\n\n    {keeper}.\n    """\n'
            "{steps}    return value\n",
            "    if value > {above}:\n        value -= {less}\n",
        ),
        JAVASCRIPT: Language(
            "js",
            "// {title}.\n",
            "\n// {does}.\n// {keeper}.\nexport function {camel}(value) {{\n{steps}  return value;\n}}\n",
            "  if (value > {above}) {{\n    value -= {less};\n  }}\n",
        ),
        GO: Language(
            "go",
            "// {title}.\n\npackage {package}\n",
            "\n// {does}.\n// {keeper}.\nfunc {camel}(value float64) float64 {{\n{steps}\treturn value\n}}\n",
            "\tif value > {above} {{\n\t\tvalue -= {less}\n\t}}\n",
        ),
        JAVA: Language(
            "java",
            "// {title}.\nfinal class {owner} {{\n",
            "\n    // {does}.\n    // {keeper}.\n"
            "    static double {camel}(double value) {{\n{steps}        return value;\n    }}\n",
            "        if (value > {above}) {{\n            value -= {less};\n        }}\n",
            "}\n",
        ),
        SQL: Language(
            "sql",
            "-- {title}.\n",
            "\n-- {does}.\n-- {keeper}.\n"
            "CREATE FUNCTION {snake}(amount NUMERIC) RETURNS NUMERIC AS $$\n"
            "    SELECT CASE\n{steps}        ELSE amount\n    END\n$$ LANGUAGE SQL;\n",
            "        WHEN amount > {above} THEN amount - {less}\n",
        ),
    }
)


def source(folder: Folder, entity: str, size: Size, rng: random.Random) -> str:
    """Write a source file: a comment that names subject and entity, then one function an aspect."""
    language = LANGUAGES[folder.subject.kind]
    title = f"{folder.subject.name.title()} of {entity.title()}" + (f" on {folder.group}" if folder.group else "")
    parts = [language.top.format(title=title, package=folder.subject.name, owner=entity.title())]
    for aspect in folder.subject.aspects:
        verb, noun = aspect.split(" the ")
        parts.append(
            language.function.format(
                does=f"{title}: {aspect}",
                keeper=f"{rng.choice(COLLEAGUES)} has kept it since {rng.randint(2012, 2024)}",
                snake=f"{verb}_{noun}",
                camel=f"{verb}{noun.title()}",
                steps=_steps(language, rng.randint(*size.steps), rng),
            )
        )
    return "".join([*parts, language.end])


def _steps(language: Language, count: int, rng: random.Random) -> str:
    """Return the steps of a function, with falling thresholds, so that no step hides a later one."""
    above = sorted(rng.sample(range(10, 10_000), count), reverse=True)
    return "".join(language.step.format(above=number, less=rng.randint(1, 99) / 10) for number in above)


_HANDBOOK = """\
# Handbook

Whoever writes here keeps to one page for each place, drink or program, and names the file after it.
Names of files and folders are one word in lower case.
Whatever is not written down is not agreed.
"""


def root_files(size: Size, rng: random.Random) -> dict[str, str]:
    """Write the files of the root, by name: what the company is, how it writes, and whom to ask."""
    lines = []
    for department in DEPARTMENTS:
        topics = ", ".join(topic.name for topic in department.topics[: size.topics])
        lines.append(f"- {department.own.name}: its own files, and {topics}\n")
    readme = (
        "# Kestrel Coffee\n\nKestrel roasts coffee, sells it and writes everything down in this repository. "
        "A folder holds files of one kind: policies, tables or code.\n\n"
    )
    rows = (
        f"{department.own.name},{rng.choice(COLLEAGUES)},{rng.randint(1, 9)},{rng.randint(101, 999)}\n"
        for department in DEPARTMENTS
    )
    return {
        "README.md": readme + "".join(lines),
        "directory.csv": "department,head,floor,extension\n" + "".join(rows),
        "handbook.md": _HANDBOOK,
    }


def write_company(folder: Path, size: str = "nano", seed: int = 0) -> None:
    """Write a company's repository into ``folder``, which is created.

    Args:
        folder: a folder that is absent or empty.
        size: ``nano``, 243 files in two levels of folders, or ``full``, about 12 million tokens in three.
        seed: draws the facts and, for ``full``, which files a folder has; never its subjects.

    Raises:
        InvalidInput: an unknown size, or a folder that is not empty.
    """
    scale = size_named(size)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidInput(f"the company cannot be written to {str(folder)!r}, which is not an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in root_files(scale, _rng(seed, "root")).items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for planned in plan_company(size, seed):
        folder.joinpath(*planned.path).mkdir()
        for path, text in folder_files(planned, scale, seed):
            (folder / path).write_text(text, encoding="utf-8", newline="\n")


def folder_files(folder: Folder, size: Size, seed: int) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the files of one planned folder: path from the root, and text."""
    kind = folder.subject.kind
    write, suffix = {MARKDOWN: (policy, "md"), TABLE: (table, "csv")}.get(kind) or (source, LANGUAGES[kind].suffix)
    for entity in folder.entities:
        path = PurePosixPath(*folder.path, f"{entity}.{suffix}")
        yield path, write(folder, entity, size, _rng(seed, str(path)))


def _rng(seed: int, purpose: str) -> random.Random:
    return random.Random(derive_seed("company", seed, purpose))
