"""Harder questions about files: rephrased, and without the words that give a file away.

A list of synonyms replaces a model: the words are common in programs' documentation, and a replaced word usually occurs
in other files. The meaning of such a question identifies its file, but a search for its words alone does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from reflectrl.envs.auto_explore.ambiguity import STOP_WORDS, Pair, content_words, holders_of

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
    """Return the form of a regular English word with the ending s, ed or ing."""
    if ending == "s" and re.search(r"(?:[sxz]|[cs]h)$", word):
        return f"{word}es"
    if ending != "ing" and re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ie{ending[-1]}"
    return f"{word[:-1] if word.endswith('e') and ending in ('ed', 'ing') else word}{ending}"


def _table() -> Mapping[str, str]:
    """Return the replacement of each word in each of its forms."""
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
    """Return whether a word identifies its file."""
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
