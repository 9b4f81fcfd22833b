"""``AutoExplore``: find the file that answers a question (section 5 and appendix C of the paper)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, WorkFailed, nearest
from reflectrl.core.extras import Extras
from reflectrl.core.text import holds
from reflectrl.envs.auto_explore.ambiguity import content_words, words_of
from reflectrl.envs.auto_explore.dataset import BY_CONTENT, UNSEEN
from reflectrl.envs.auto_explore.libraries import Library, open_library
from reflectrl.envs.auto_explore.search import ALL, VERB, Search
from reflectrl.envs.auto_explore.walk import Walk, absolute, command, longest_menu

STEP, FOUND = -1, 15
"""The paper's rewards; divided by the usual horizon of 15, they are about within [-1, 1]."""
UNNAMED = "The file"
STANDINGS = (f"{UNNAMED} is not here.", f"{UNNAMED} is in this folder.", f"{UNNAMED} is further down.")
"""Place of the file relative to the working directory; once its name was shown, the name replaces ``UNNAMED``."""
FITS, FOUND_FILE, MISSING = "{} fits: {}.", "{} is among the files found.", "Not found yet: it tells of {}."
TOGETHER = "Not found yet: all words together tell of it."
"""The same for a search: a file that was found, with words of the question or without, and what would find it."""
TOOLS = ("search", "head")
TOOL_INSTRUCTIONS = {
    "search": (
        "search for ranks the files that hold a word of the question by their lines, and shows the best line of each; "
        "open reads one of them."
    ),
    "head": "head shows the first lines of a file.",
}
MAX_REASONS = 3
"""Maximum number of the question's words in a file that a reflection names."""


class AutoExplore(NatLangEnv):
    """Walk a private copy of a repository and name the file that answers the question.

    The commands are ``cd``, ``cat``, ``ls`` and ``id FILE``, which answers. Rewards, each divided by ``horizon``: -1
    per step, +15 for the right file, -15 for another one or when the horizon is reached. Ids of tasks begin with the
    depth of the file (``d0/``, ``d1/``, ...), so a lesson selects depths by ``tasks: [d0/, d1/]``.

    **Questions** are made by gen-data from the section ``dataset`` of a recipe: a writer, a chat model or an offline
    program, reads a file and asks what it answers. Questions that another file answers too are dropped. No file is
    asked about in two of the splits train, validation and test. ``test_by_content`` asks about the files of ``test``
    without naming them or their folders, so a player has to read (``output: 900`` shows whole files of
    ``company:nano``). ``dataset.writer=paraphrased`` replaces common words by synonyms and leaves out those of the path
    and those that only one file contains. The repositories of ``dataset.held_out`` form the split ``unseen``. Questions
    written offline use words of the file, so a full-text search over the repository finds most answers.

    **Search.** With ``tools: [search]``, the question's words are on the menu, the rarest first. Each search narrows
    the one before, and lists five files with a line each; ``id /PATH`` names one from anywhere, ``open /PATH`` reads
    it.

    **The expert** takes a shortest way, and searches where walking is not shorter. Its reflections say which word
    points to the file.

    Args:
        dataset: a folder written by gen-data, or a repository about which the offline writer asks questions: a folder,
            a git URL, ``pypi:NAME==VERSION``, ``company:nano`` or ``company:full``; or an open library.
        horizon: steps of an episode.
        page: number of a folder's entries shown at a time; larger folders are shown as ranges that ``ls`` opens.
        output: number of characters shown of a command's result, up to the sandbox's own limit of 4,000.
        listing: show the folder's entries in the text as well, for a reflector that has to mention them.
        tools: additional commands: ``search`` for files by words of the question, ``head`` to read a file's first
            lines. Each is a step like any other.
        leave_out: probability with which an entry that does not lead to the answer is missing in an episode
            (distractor leave-out, for training).
    """

    name = "auto_explore"
    further_splits = (BY_CONTENT, UNSEEN)
    instructions = (
        "You explore a repository to find the one file that answers the question. Each step plays one command: cd "
        "opens a folder, cd .. leaves it, cat reads a file, ls opens a range of a large folder, and id names the file "
        "that answers the question, which ends the search. Reading a file does not name it. Use as few commands as you "
        "can; naming a wrong file, or no file within the steps allowed, fails."
    )

    def __init__(
        self,
        dataset: str | Library = "company:nano",
        horizon: int = 15,
        page: int = 20,
        output: int = 400,
        listing: bool = True,
        leave_out: float = 0.0,
        tools: Sequence[str] = (),
    ) -> None:
        super().__init__(horizon)
        if not isinstance(dataset, str | Library):
            raise InvalidInput(f"dataset={dataset!r} was given to {self.name!r}; expected a folder or source, as text.")
        for option, value, least in (("page", page, 2), ("output", output, 1)):
            if not isinstance(value, int) or value < least:
                raise InvalidInput(f"{option}={value!r} was given to {self.name!r}; expected {least} or more.")
        if not isinstance(leave_out, float | int) or not 0.0 <= leave_out < 1.0:
            raise InvalidInput(f"leave_out={leave_out!r} was given to {self.name!r}; expected 0 or more, below 1.")
        if isinstance(tools, str) or not isinstance(tools, Sequence) or len(set(map(str, tools))) < len(tools):
            raise InvalidInput(f"tools={tools!r} was given to {self.name!r}; expected a list of some of {TOOLS}.")
        for tool in tools:
            if tool not in TOOLS:
                raise InvalidInput(f"tool {tool!r} was given to {self.name!r}; {nearest(str(tool), TOOLS)}")
        self._tools = tuple(tool for tool in TOOLS if tool in tools)
        self.instructions = " ".join((type(self).instructions, *(TOOL_INSTRUCTIONS[tool] for tool in self._tools)))
        self.max_actions = longest_menu(page, search="search" in tools, head="head" in tools)
        self._page = page
        self._output = output
        self._listing = listing
        self._leave_out = leave_out
        self._library = dataset if isinstance(dataset, Library) else open_library(dataset)
        self._file: PurePosixPath | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the questions of a split; ``options`` hold repository, question and file."""
        return self._library.tasks.get(split, ())

    def start(self, task: Task) -> None:
        """Begin in the root. A task without ``file`` has an unknown answer: see ``explore``.

        Raises:
            InvalidInput: no question, a repository that is not in the dataset, a file that is not in the repository.
            WorkFailed: the repository cannot be copied.
        """
        repository, question, file = (task.options.get(key) for key in ("repository", "question", "file"))
        if not isinstance(question, str) or not question.strip():
            raise InvalidInput(f"task {task.id!r} of {self.name!r} has no question; use env.tasks(split).")
        sandbox = self._library.sandbox(str(repository), None if file is None else str(file))
        self._file = None if file is None else PurePosixPath(str(file))
        self._question = " ".join(question.split())
        keep = self._keep()
        search = None
        if "search" in self._tools:
            search = Search(self._library.index(str(repository)), self._question, _whole_way(keep))
        self._walk = Walk(sandbox, self._page, self._output, self._listing, keep, search, "head" in self._tools)
        self._good = True

    def observe(self) -> Observation:
        """Return question, folder, its entries and the last result, with the commands that are legal here."""
        return Observation(self._walk.text, self._walk.actions, f"Question: {self._question}")

    def act(self, action: str) -> Outcome:
        """Run a command in the sandbox.

        Raises:
            WorkFailed: the copy of the repository has gone.
        """
        good = action in (self.expert(), *self._file_reads())
        left = self._steps_left()
        try:
            self._walk.run(action)
            self._good = good or (left is not None and (self._steps_left() or left) < left)
        except WorkFailed as error:
            raise WorkFailed(f"{action!r} was not played: {error} Reset the environment to play again.") from error
        answer = self._walk.answer
        success = answer is not None and self._file is not None and PurePosixPath(answer) == self._file
        over = answer is not None or self.steps >= self.horizon
        bonus = 0 if not over or self._file is None else FOUND if success else -FOUND
        return Outcome((STEP + bonus) / self.horizon, ended=answer is not None, success=success)

    @classmethod
    def extras(cls) -> Extras:
        """Return the builder of datasets from any repository, and the copilot of appendix C.2."""
        from reflectrl.envs.auto_explore.copilot import RepositoryCopilot
        from reflectrl.envs.auto_explore.draft import draft_dataset

        return Extras(draft_dataset, RepositoryCopilot(cls))

    @property
    def answer(self) -> str | None:
        """The file that was named, relative to the root of its repository."""
        return self._walk.answer

    def expert(self) -> str | None:
        """Return the first command of a shortest path to the file; ``None`` when one is named, or if it is unknown."""
        if self._file is None or self._walk.answer is not None:
            return None
        return self._walk.step_towards(self._file)

    def reflection(self) -> str | None:
        """Judge the last command and say where the file is relative to this folder, without naming the next command."""
        if self._file is None:
            return None
        if self.last_action is None:
            return self._standing(self._file)
        return f"{'Mistake' if self.mistaken() else 'Good'}. {self._standing(self._file)}"

    def mistaken(self) -> bool | None:
        """Return whether the last command was neither on a shortest path to the file nor the one that reads it."""
        return None if self._file is None or self.last_action is None else not self._good

    def secrets(self) -> Sequence[str]:
        """Return the names of the file and the folders on its path, except words that occur in every reflection."""
        if self._file is None:
            return ()
        parts = (*self._file.parent.parts, self._file.stem)
        common = " ".join((*STANDINGS, *((FITS, FOUND_FILE, MISSING, TOGETHER) if "search" in self._tools else ())))
        return [part for part in parts if not holds(common, part)]

    def spoiler(self) -> str | None:
        """Return the next command, if any, and the file."""
        if self._file is None:
            return None
        best, where = super().spoiler(), f"The file is /{self._file}."
        return where if best is None else f"{best}. {where}"

    def _standing(self, file: PurePosixPath) -> str:
        if "search" in self._tools and (said := self._search_standing(file)) is not None:
            return said
        cwd = self._walk.cwd
        elsewhere, here, below = STANDINGS
        if not file.is_relative_to(cwd):
            return elsewhere
        # only a name that was shown may be mentioned, or a model would learn to invent names
        named = file.stem if holds(self.observe().full_text, file.stem) else UNNAMED
        return (here if file.parent == cwd else below).replace(UNNAMED, named)

    def _search_standing(self, file: PurePosixPath) -> str | None:
        """Return what the list of found files says about the file; ``None`` where a walk is shorter than a search."""
        walk = self._walk
        if file in walk.found:
            path = absolute(file)
            shown = words_of(f"{path} {walk.line(file)} {walk.result if walk.read(file) else ''}")
            telling = content_words(self._question).intersection(shown)
            reasons = dict.fromkeys(word for word in words_of(self._question) if word in telling)
            return FITS.format(path, ", ".join([*reasons][:MAX_REASONS])) if reasons else FOUND_FILE.format(path)
        action = "" if walk.answer is not None else walk.step_towards(file)
        if not action.startswith(VERB):
            return None
        word = action.removeprefix(VERB)
        return TOGETHER if word == ALL else MISSING.format(word)

    def _file_reads(self) -> Sequence[str]:
        """Return the commands that read the right file, or its first lines, which are not mistakes either."""
        file = self._file
        if file is None:
            return ()
        names = [*([file.name] if file.parent == self._walk.cwd else []), absolute(file)]
        return [command(verb, name) for verb in ("cat", "open", "head") for name in names]

    def _steps_left(self) -> int | None:
        """Return the length of a shortest path, if there may be several; ``None`` if the expert's is the only one."""
        if self._file is None or self._walk.answer is not None or "search" not in self._tools:
            return None
        return self._walk.steps_to(self._file)

    def _keep(self) -> Callable[[PurePosixPath], bool]:
        """Return a filter of the entries that exist in this episode."""
        if not self._leave_out or self._file is None:
            return lambda _: True
        file, share, seed = self._file, self._leave_out, int(self.np_random.integers(2**31))
        return lambda path: file.is_relative_to(path) or random.Random(f"{seed} {path}").random() >= share


def _whole_way(keep: Callable[[PurePosixPath], bool]) -> Callable[[PurePosixPath], bool]:
    """Return whether a file and all folders on the path to it exist."""
    return lambda path: all(map(keep, (path, *path.parents[:-1])))
