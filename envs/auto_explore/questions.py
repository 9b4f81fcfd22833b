"""Questions about a file, made of the file's own words, offline and without a model.

``write_questions`` asks about the headings of documents, the docstrings and comments of code, and the columns of
tables. ``write_content_questions`` asks about what follows them: sentences and values. The files are never executed.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from reflectrl.envs.auto_explore.ambiguity import STOP_WORDS, Pair, content_words

# The subject comes first: there a small model finds it, in any wording.
ABOUT_TEXT = (
    "{}. Where can I read about it?",
    "{}. Which file covers it?",
    "{}. Which document describes it?",
)
ABOUT_CODE = (
    "{}. Which code does this?",
    "{}. Where is this implemented?",
)
ABOUT_TABLE = (
    "{}. Which table shows it?",
    "{}. Where can I look it up?",
)
CONTENT_OF_TEXT = ("{} Which document says so?", "{} Where is this written?")
CONTENT_OF_CODE = ("{} Which code is it?", "{} Where can I find it?")
CONTENT_OF_TABLE = ("{} Which table says so?", "{} Where can I look it up?")
MAX_PHRASE_CHARS, MAX_ANSWER_CHARS, MAX_TEXT_CHARS = 120, 300, 2000
_GENERIC = re.compile(
    "api reference|basic usage|breaking changes|bug fixes|change log|further reading|getting started|installation "
    "instructions|known issues|new features|next steps|quick start|release notes|table of contents",
    re.IGNORECASE,
)
"""Matches headings of two content words without meaning; headings of one word are never asked about."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LEGAL_FILE = re.compile(r"(un)?licen[cs]e|copying|copyright", re.IGNORECASE)
_LEGAL = re.compile(
    r"copyright (\(c\)|©|\d)|all rights reserved|spdx-license|licensed (to|under)|permission is hereby granted|"
    r"general public license|apache license",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*```")
_HEADING = re.compile(r"#{1,6}\s+(\S.*?)[\s#]*$")
_UNDERLINE = re.compile(r"([=~^\"'*+#:.-])\1{2,}\s*$")
_MARKUP = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)|<!--.*?-->|</?[A-Za-z][^>]*>|:[a-z:]+:(?=`)|\{@\w+"), " "),
    (re.compile(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?"), r"\1"),
    (re.compile(r"`([^`<]*?)\s*<[^`]*>`_*"), r"\1"),
    (re.compile(r"[*`|}]+|(?<!\w)_+|_+(?!\w)"), " "),
)
_NUMBERING = re.compile(r"^((\d+\.)+\d*|\d+\)|[-+>])\s+")
_BRIEF = re.compile(r"[@\\](brief|file|fileoverview|summary)\b\s*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z\s])")


def write_questions(file: str, text: str) -> list[Pair]:
    """Return questions and answers, in the order of the text; none for an unknown kind of file."""
    path = PurePosixPath(file)
    if _is_document(path):
        return _ask(file, _headings(text.splitlines()), ABOUT_TEXT)
    if delimiter := _DELIMITERS.get(path.suffix.lower()):
        columns = _columns(text, delimiter)
        return _ask(file, ((name.replace("_", " "), f"{name}: {value}") for name, value, _ in columns), ABOUT_TABLE)
    return _ask(file, _sentences(_documented(path, text)), ABOUT_CODE)


def write_content_questions(file: str, text: str) -> list[Pair]:
    """Return questions that name neither the file nor a folder above it, so that only the content identifies the file.

    They ask what follows a heading, which value a column begins with, or how a comment continues. Words of the path are
    left out of the subject's name; a question that holds one elsewhere is dropped.
    """
    path = PurePosixPath(file)
    if _is_document(path):
        return _ask_content(path, _headings(text.splitlines()), CONTENT_OF_TEXT)
    if delimiter := _DELIMITERS.get(path.suffix.lower()):
        values = ((name, f"{value} in {key}.") for name, value, key in _columns(text, delimiter) if value != key)
        return _ask_content(path, values, CONTENT_OF_TABLE)
    return _ask_content(path, _second_sentences(_documented(path, text)), CONTENT_OF_CODE)


def write_both(file: str, text: str) -> list[Pair]:
    """Return the questions of both kinds, from which paraphrases are made."""
    return [*write_questions(file, text), *write_content_questions(file, text)]


def _is_document(path: PurePosixPath) -> bool:
    return path.suffix.lower() in (".md", ".markdown", ".rst", ".txt") and not _LEGAL_FILE.fullmatch(path.stem)


def _documented(path: PurePosixPath, text: str) -> Iterator[Pair]:
    suffix = path.suffix.lower()
    if suffix in (".py", ".pyi"):
        return _docstrings(path.stem, text)
    return commented(path, text) if suffix in COMMENTS else iter(())


def _ask(file: str, found: Iterator[Pair], wordings: Sequence[str]) -> list[Pair]:
    pairs: dict[str, Pair] = {}
    for said, answer in found:
        phrase = _phrase(said)
        if phrase is not None and answer:
            question = _worded(file, phrase, wordings)
            pairs.setdefault(question, (question, textwrap.shorten(answer, MAX_ANSWER_CHARS, placeholder="...")))
    return list(pairs.values())


def _ask_content(path: PurePosixPath, found: Iterator[Pair], wordings: Sequence[str]) -> list[Pair]:
    known = content_words(str(path.with_suffix("")))
    pairs: dict[str, Pair] = {}
    for said, fact in found:
        subject = _without(_plain(said), known)
        words = content_words(fact)
        if not subject or not words or words & known or len(fact) > MAX_ANSWER_CHARS:
            continue
        whole = fact if content_words(subject) <= words else f"{subject[0].upper()}{subject[1:]}: {fact}"
        question = _worded(str(path), whole, wordings)
        pairs.setdefault(question, (question, fact))
    return list(pairs.values())


def _without(phrase: str, known: frozenset[str]) -> str:
    words = [word for word in re.findall(r"[^\W_]+", phrase) if word.lower() not in known]
    while words and words[0].lower() in STOP_WORDS:
        del words[0]
    while words and words[-1].lower() in STOP_WORDS:
        del words[-1]
    return " ".join(words)


def _worded(file: str, phrase: str, wordings: Sequence[str]) -> str:
    """Return a question in a wording that depends only on file and phrase."""
    digest = hashlib.sha256(f"{file}\n{phrase}".encode()).digest()
    return wordings[int.from_bytes(digest[:4]) % len(wordings)].format(phrase)


def _phrase(said: str) -> str | None:
    """Turn a heading or sentence into the beginning of a question; ``None`` if its subject is unclear."""
    phrase = _NUMBERING.sub("", _plain(said)).strip(" .:;,!?#-=\"'")
    if len(phrase) > MAX_PHRASE_CHARS:
        phrase = phrase[: max(0, *(phrase.rfind(mark, 0, MAX_PHRASE_CHARS) for mark in (", ", "; ", ": ", " (")))]
    telling = [word for word in content_words(phrase) if not re.match(r"v?\d", word)]
    if len(telling) < 2 or _GENERIC.fullmatch(phrase) or re.search(r"[{};=]", phrase):
        return None
    return phrase[0].upper() + phrase[1:]


def _plain(text: str) -> str:
    text = text[:MAX_TEXT_CHARS]
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return re.sub(r" (?=[.,;:!?)])", "", " ".join(text.split()))


def _first_sentence(text: str) -> str:
    return _SENTENCE_END.split(_plain(text), maxsplit=1)[0]


def _headings(lines: Sequence[str]) -> Iterator[Pair]:
    """Yield each heading of a document, with the first sentence below it."""
    heading: str | None = None
    paragraph: list[str] = []
    for line, title in _titled(lines):
        if title is not None or (paragraph and not line.strip()):
            if heading and paragraph:
                yield heading, _first_sentence(" ".join(paragraph))
                heading = None
            heading, paragraph = title or heading, []
        elif paragraph or (heading and content_words(line) and not line.lstrip().startswith("..")):
            paragraph.append(line)
    if heading and paragraph:
        yield heading, _first_sentence(" ".join(paragraph))


def _titled(lines: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each line outside front matter and fenced code, with its title if it is a heading."""
    fenced = bool(lines) and lines[0].rstrip() == "---" and "---" in map(str.rstrip, lines[1:])
    front = fenced
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if front:
            front = number == 0 or line.rstrip() != "---"
            fenced = front
        elif _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not _UNDERLINE.match(line):
            marked = _HEADING.match(line[:MAX_TEXT_CHARS])
            underlined = line.strip() and not line.startswith((" ", "\t")) and _UNDERLINE.match(following)
            yield line, marked[1] if marked else line.strip() if underlined else None


def _columns(text: str, delimiter: str) -> Iterator[tuple[str, str, str]]:
    """Yield each column of a table: its name, its first value, and the first value of that row."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header, first = next(rows, []), next(rows, [])
    except csv.Error:
        return
    for name, value in zip(header, first, strict=False):
        if value.strip():
            yield name, value, first[0]


def _sentences(documented: Iterator[Pair]) -> Iterator[Pair]:
    """Yield the first sentence of each docstring or comment, with the name of what it documents."""
    for name, text in documented:
        sentence = _first_sentence(re.split(r"\n\s*\n|\n\s*[@\\]\w", _BRIEF.sub("", text.strip()), maxsplit=1)[0])
        if _is_description(text, sentence):
            yield sentence, f"{name}: {sentence}"


def _second_sentences(documented: Iterator[Pair]) -> Iterator[Pair]:
    """Yield the first two sentences of each docstring or comment that has them."""
    for _, text in documented:
        first, *others = _SENTENCE_END.split(_plain(_BRIEF.sub("", text.strip())), maxsplit=2)
        if others and _is_description(text, first):
            yield first, others[0]


def _is_description(text: str, sentence: str) -> bool:
    return not _LEGAL.search(text) and not sentence.startswith((">>>", "@", "\\"))


def _docstrings(module: str, text: str) -> Iterator[Pair]:
    """Yield qualified name and docstring of the module, its classes and functions."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes such as "\d" in other people's strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        scope, node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            scope = f"{scope}.{node.name}".lstrip(".") if not isinstance(node, ast.Module) else ""
            yield scope or module, ast.get_docstring(node) or ""
        if not isinstance(node, ast.expr):
            waiting.extend((scope, child) for child in reversed(list(ast.iter_child_nodes(node))))


# ---- comments at the top of a file, and directly above a definition, of code that is not Python ----------------------


@dataclass(frozen=True)
class Marks:
    """Comment marks of a language."""

    line: str
    """Mark that begins a comment up to the end of the line."""
    block: tuple[str, str] | None = None
    """Marks that begin and end a comment of several lines."""


_SLASHES = Marks("//", ("/*", "*/"))
_HASH = Marks("#")
COMMENTS = {
    **dict.fromkeys(
        (".c", ".cc", ".cpp", ".cs", ".dart", ".go", ".h", ".hpp", ".java", ".js", ".jsx", ".kt", ".mjs"), _SLASHES
    ),
    **dict.fromkeys((".php", ".proto", ".rs", ".scala", ".swift", ".ts", ".tsx"), _SLASHES),
    **dict.fromkeys((".bash", ".ex", ".jl", ".pl", ".r", ".rb", ".sh", ".tf", ".toml", ".yaml", ".yml"), _HASH),
    **dict.fromkeys((".hs", ".lua"), Marks("--")),
    ".sql": Marks("--", ("/*", "*/")),
}

_DEFINITION = re.compile(
    r"\b(?:class|const|def|defmodule|enum|fn|func|fun|function|impl|interface|let|local|message|module|namespace|"
    r"object|package|record|resource|rpc|service|struct|sub|trait|type|union|var|"
    r"create(?:\s+or\s+replace)?\s+(?:table|view|index|function|procedure|trigger)(?:\s+if\s+not\s+exists)?)"
    r"\s+(?:\([^)]*\)\s*)?[\"`]?([\w.:$]+)",
    re.IGNORECASE,
)
_CALLABLE = re.compile(
    r"(?!(?:catch|else|for|foreach|if|return|switch|while|with)\b)(?:[\w:<>\[\],*&.]+\s+)*\*?([\w:~$-]+)\s*\([^;]*$"
)
_ANNOTATION = re.compile(r"\s*(@\w|#\[)")
_DIRECTIVE = re.compile(
    r"!/|-\*-|\+build|go:|@ts-|region|endregion|vim:|noqa|(eslint|jshint|tslint|prettier|istanbul|pylint|nolint|"
    r"shellcheck|todo|fixme|xxx|global|type:)\b",
    re.IGNORECASE,
)


def commented(path: PurePath, text: str) -> Iterator[Pair]:
    """Yield name and comment of the file, from its first comment, and of its definitions."""
    lines = text.splitlines()
    marks = COMMENTS[path.suffix.lower()]
    number = 0
    top = True
    while number < len(lines):
        comment, end = _comment(lines, number, marks)
        if end == number:
            top = top and (not lines[number].strip() or lines[number].startswith("<?"))
            number += 1
            continue
        while end < len(lines) and _ANNOTATION.match(lines[end]):
            end += 1
        name = _defined(lines[end]) if end < len(lines) else None
        if comment and (name or top):
            yield name or path.stem, comment
            top = False
        number = end


def _comment(lines: list[str], start: int, marks: Marks) -> tuple[str, int]:
    """Return the comment that begins at line ``start``, and the line after it; ``start`` itself if there is none."""
    first = lines[start].strip()
    end = start
    if marks.block and first.startswith(marks.block[0]):
        while end < len(lines) and marks.block[1] not in lines[end]:
            end += 1
        end += 1
        whole = "\n".join(lines[start:end]).strip().removeprefix(marks.block[0])
        said = [line.strip().lstrip("*") for line in whole.partition(marks.block[1])[0].split("\n")]
    else:
        while end < len(lines) and lines[end].strip().startswith(marks.line):
            end += 1
        said = [line.strip().removeprefix(marks.line).lstrip("/") for line in lines[start:end]]
    return "\n".join(line.lstrip("!").strip() for line in said if not _DIRECTIVE.match(line.strip())).strip(), end


def _defined(line: str) -> str | None:
    line = line.strip()[:500]
    found = _DEFINITION.search(line) or _CALLABLE.match(line)
    return found[1] if found else None
