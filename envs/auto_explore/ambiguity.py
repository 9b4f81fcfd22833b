"""Questions that exactly one file of a repository answers: an agent that must find a file cannot be asked others.

The criterion is about words only: a question is clear if few files hold its content words. ``paraphrase`` makes harder
questions, without the words that give a file away. A list of synonyms replaces a model: the words are common in
programs' documentation, and a replaced word usually occurs in other files, so a search for words alone does not help.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from reflectrl.core.text import one_line

Pair = tuple[str, str]

_WORD = re.compile(r"[^\W_]+")

STOP_WORDS = frozenset(
    _WORD.findall("""
    a about all also am an and any are as at be been being but by can could did do does doing done each for from get
    had has have having he her here him his how i if in into is it its just let may me might more most must my no nor
    not of on one only or other our ours out over own please same shall she should so some such than that the their
    them then there these they this those to too under up upon us was we were what when where which while who whom
    whose why will with within without would you your yours
    d ll m re s t ve
    code column contain contains cover covers described describe describes document documents explain explained
    explains file files find found give gives holds implement implemented implements know learn look looking mention
    mentioned mentions need needed program read say says see show shows table tell want wants
    """)
)
"""Words that identify no file: English function words, and words common in questions about files."""


@dataclass(frozen=True)
class Kept:
    """Questions of a repository that were kept."""

    pairs: Mapping[str, tuple[Pair, ...]]
    """Questions by file, in the order in which they were written; files without questions are left out."""
    rejected: Mapping[str, int]


def words_of(text: str) -> list[str]:
    """Return the words of ``text`` in their order, lower-cased; ``rent_lisbon`` is two words."""
    return _WORD.findall(text.lower())


def content_words(text: str) -> frozenset[str]:
    """Return the different words of ``text`` without stop words."""
    return frozenset(words_of(text)) - STOP_WORDS


def answerable(texts: Mapping[str, str], pairs: Mapping[str, Sequence[Pair]]) -> Kept:
    """Keep the questions whose content words all occur in the file asked about, and together in no other file.

    Args:
        texts: every file that an agent may look at, with as much of its text as is known. Its path counts as text.
        pairs: the questions written for each file.
    """
    clean = {file: [(one_line(question), one_line(answer)) for question, answer in pairs[file]] for file in pairs}
    asked = Counter(question for written in clean.values() for question in {q.casefold() for q, _ in written})
    holders = holders_of(texts, (question for written in clean.values() for question, _ in written))
    rejected: Counter[str] = Counter()
    kept: dict[str, tuple[Pair, ...]] = {}
    for file, written in clean.items():
        good: dict[str, Pair] = {}
        for question, answer in written:
            key = question.casefold()
            reason = "duplicate" if asked[key] > 1 or key in good else _fault(file, question, answer, holders)
            if reason is None:
                good[key] = (question, answer)
            else:
                rejected[reason] += 1
        if good:
            kept[file] = tuple(good.values())
    return Kept(kept, dict(sorted(rejected.items())))


def holders_of(texts: Mapping[str, str], questions: Iterable[str]) -> Mapping[str, set[str]]:
    """Return the files in which each word of the questions occurs; no other words, so that large repositories fit."""
    wanted = frozenset[str]().union(*map(content_words, questions))
    holders: defaultdict[str, set[str]] = defaultdict(set)
    for file, text in texts.items():
        for word in wanted.intersection(words_of(f"{file}\n{text}")):
            holders[word].add(file)
    return holders


def _fault(file: str, question: str, answer: str, holders: Mapping[str, set[str]]) -> str | None:
    words = content_words(question)
    if not answer or not words:
        return "empty"
    if re.search(rf"(?<!\w){re.escape(PurePosixPath(file).name.lower())}(?!\w)", question.lower()):
        return "names its file"
    if not all(file in holders.get(word, ()) for word in words):
        return "unanswerable"
    rarest_first = sorted((holders[word] for word in words), key=len)
    return "ambiguous" if len(set.intersection(*rarest_first)) > 1 else None


MIN_WORDS = 3
"""Minimum number of content words of a question."""
_SYNONYMS = """
    add append  allow enable  append add  apply use  argument input  array sequence  attribute property  base root
    build assemble  call invoke  change alter  check verify  choose pick  class type  clear empty  collect gather
    combine merge  command instruction  compare match  compute calculate  configure adjust  contain enclose
    convert turn  copy duplicate  create construct  customize adapt  data information  decode unpack
    default standard  define declare  delete erase  depend rely  determine establish  dictionary mapping
    different other  directory folder  disable deactivate  display present  each every  element item
    enable activate  encode pack  ensure guarantee  error failure  evaluate calculate  event occurrence
    example sample  exception failure  execute perform  expect await  extend widen  extra additional  fail crash
    fast quick  fetch obtain  field column  filter sift  first initial  fix repair  format layout  function routine
    generate produce  global shared  group bundle  handle process  help assist  identifier key  ignore bypass
    implementation realisation  import load  include comprise  indicate signal  initialize prepare  input argument
    insert place  install deploy  instance object  integer number  invalid bad  invoke call  item element
    iterate loop  join connect  key identifier  large big  last final  length size  limit bound  line row
    list sequence  load fetch  location place  log record  loop iterate  mapping dictionary  mark flag  match fit
    message notice  method routine  missing absent  mode manner  modify alter  module component  multiple several
    name label  nested inner  new fresh  notify inform  null empty  number count  object instance  open unseal
    operation action  option setting  order sequence  output printout  override replace  package bundle
    parameter argument  parse interpret  pass hand  path location  pattern template  perform execute  place position
    position place  previous former  print write  process handle  produce generate  program application  prompt ask
    property attribute  protocol convention  provide supply  raise trigger  random arbitrary  range span  read load
    receive obtain  record log  recursive nested  reference pointer  register enlist  remove erase  rename relabel
    render paint  replace substitute  report announce  represent depict  request query  require demand
    reset restore  resolve settle  resource asset  response reply  result outcome  return yield  row line
    run execute  save store  schema structure  search explore  section part  select pick  send dispatch
    sequence list  serialize dump  server host  set assign  setting option  show reveal  simple plain  single lone
    size length  skip bypass  sort arrange  source origin  special particular  specify state  split divide
    start commence  state condition  status condition  step stage  stop halt  store retain  stream flow  string text
    structure layout  style look  subclass descendant  support back  table grid  tag label  task job
    temporary transient  terminal console  test trial  text string  thread worker  time moment  token symbol
    tool utility  transform turn  tree hierarchy  try attempt  tuple sequence  type kind  unique distinct
    update refresh  upload dispatch  url address  user person  valid acceptable  validate verify  value content
    variable placeholder  verify check  version release  wait pause  warning caution  whole entire  wrap envelop
    write record  yield return
"""


def _inflected(word: str, ending: str) -> str:
    if ending == "s" and re.search(r"(?:[sxz]|[cs]h)$", word):
        return f"{word}es"
    if ending != "ing" and re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ie{ending[-1]}"
    return f"{word[:-1] if word.endswith('e') and ending in ('ed', 'ing') else word}{ending}"


def _table() -> Mapping[str, str]:
    words = _SYNONYMS.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    forms = {_inflected(old, ending): _inflected(new, ending) for ending in ("s", "ed", "ing") for old, new in pairs}
    return {**forms, **dict(pairs)}


REPLACEMENTS = _table()


def paraphrase(texts: Mapping[str, str], pairs: Mapping[str, Sequence[Pair]]) -> Mapping[str, tuple[Pair, ...]]:
    """Rephrase questions, without names of their file or its folders, and without words that occur in one file only.

    A question is left out if fewer than ``MIN_WORDS`` content words remain, if these, before their replacement, occur
    together in another file as well, or if another file has the same question.

    Args:
        texts: text of every file, by path.
        pairs: questions and answers by file, each in words that the file holds.
    """
    holders = holders_of(texts, (question for written in pairs.values() for question, _ in written))
    found: dict[str, list[Pair]] = {}
    for file, written in pairs.items():
        for question, answer in written:
            own = content_words(question) & content_words(file) | {
                w for w in content_words(question) if _tells(w, holders)
            }
            left = content_words(question) - own
            if len(left) >= MIN_WORDS and set.intersection(*(holders[word] for word in left)) == {file}:
                found.setdefault(file, []).append((_reworded(question, own), answer))
    often = Counter(question for written in found.values() for question, _ in written)
    once = {file: tuple(pair for pair in written if often[pair[0]] == 1) for file, written in found.items()}
    return {file: written for file, written in once.items() if written}


def _tells(word: str, holders: Mapping[str, set[str]]) -> bool:
    return len(holders[word]) < 2 or not word.isalpha()


def _reworded(question: str, without: Collection[str]) -> str:
    """Return the question without some words, and with synonyms of the others where there are any."""

    def other(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word in without:
            return ""
        return REPLACEMENTS.get(word, match[0]) if word not in STOP_WORDS else match[0]

    text = re.sub(r"[^\W_]+", other, question)
    text = " ".join(re.sub(r"[^\w\s,.:;?!'-]|_", " ", text).split())
    text = re.sub(r"(?:\s*[,.:;'-])+(?=\s*[,.:;?!])|\s+(?=[,.:;?!])|^[\s,.:;'-]+", "", text)
    return f"{text[:1].upper()}{text[1:]}"
