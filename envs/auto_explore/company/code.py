"""A source file: a comment that names subject and entity, then one function an aspect."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import MappingProxyType

from reflectrl.envs.auto_explore.company.catalog import GO, JAVA, JAVASCRIPT, PYTHON, SQL
from reflectrl.envs.auto_explore.company.plan import Folder, Size
from reflectrl.envs.auto_explore.company.words import COLLEAGUES


@dataclass(frozen=True)
class Language:
    """How a language writes the same things: format strings."""

    suffix: str
    top: str
    function: str
    """Says in its first sentence what it does, then who keeps it, and corrects a number in steps."""
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
    """The text of one file."""
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
    """Falling thresholds, so that no step hides a later one."""
    above = sorted(rng.sample(range(10, 10_000), count), reverse=True)
    return "".join(language.step.format(above=number, less=rng.randint(1, 99) / 10) for number in above)
