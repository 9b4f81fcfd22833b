"""The explore command: a question about any repository, and players who look for its file or do the whole task."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reflectrl.cli.shared import AllowedHosts, check_belongs, complete_run, only_one
from reflectrl.cli.terminal import warn
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.errors import PlayerLeft
from reflectrl.core.files import user_path
from reflectrl.core.run_files import POLICY
from reflectrl.core.text import counted

if TYPE_CHECKING:
    from reflectrl.cli.screen import Screen
    from reflectrl.core import Turn
    from reflectrl.pipeline.live_explore import ExplorePlayers

EXPLORER = "REFLECTRL_EXPLORER"
"""Environment variable with the run folder of the players who answer where no others are chosen; empty for none."""
DEFAULT_RUN = Path("runs/smollm2-explorer")
"""The same where the variable is not set: the folder that ``smollm2/explorer`` is trained in."""
MAX_COMMANDS = 5
"""Commands of a menu that are shown: the first, or those that the policy finds most probable."""
MAX_LINE_CHARS = 300
"""Characters shown of a line."""


def explore(
    source: Annotated[
        str,
        typer.Argument(metavar="REPO", help="A folder, a git URL, pypi:NAME==VERSION, company:nano or company:full."),
    ],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Question that the file answers.")],
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help=f"Players: those of this run folder; ${EXPLORER} or {DEFAULT_RUN} if it is there.",
            autocompletion=complete_run,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Players: a model behind a chat endpoint.")] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="Address of the model's endpoint; OpenAI's if absent.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", help="Environment variable with its key; for OpenAI, OPENAI_API_KEY if absent."),
    ] = None,
    expert: Annotated[
        str | None,
        typer.Option(
            "--expert",
            metavar="FILE",
            help="Player: the expert, which knows that FILE is the answer and shows the way.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Maximum number of commands; 15, or as the run was trained.")
    ] = None,
    page: Annotated[
        int | None,
        typer.Option("--page", help="Entries of a folder shown at a time; 20, or as the run was trained."),
    ] = None,
    greedy: Annotated[
        bool | None,
        typer.Option("--greedy/--sample", help="A run's most probable command, or a draw; default: by validation."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="With --sample: random seed of the draws; 0 if absent.")
    ] = None,
    programs: Annotated[
        bool,
        typer.Option("--programs", help="A whole task: you or --model type commands that read, edit and run python."),
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="With --programs: maximum seconds of one program; 10.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="With --programs: write what was changed to REPO; else it is only shown.")
    ] = False,
    allow_host: AllowedHosts = None,
) -> None:
    """Look for the file that answers a question; without a trained explorer, --model or --expert, you play yourself."""
    if run is None and model is None and expert is None and not programs:
        run = _trained_explorer()
    belonging = {
        "--base-url": (base_url, "--model", model),
        "--api-key-env": (api_key_env, "--model", model),
        "--greedy/--sample": (greedy, "--run", run),
        "--seed": (seed, "--sample", greedy is False or None),
        "--seconds": (seconds, "--programs", programs or None),
        "--apply": (apply or None, "--programs", programs or None),
        "--allow-host": (allow_host or None, "--run", run),
    }
    for option, (value, owner, given) in belonging.items():
        check_belongs(option, owner, given=value is not None, owner_given=given is not None)
    if programs:
        for option, of_players in {"--run": run, "--expert": expert, "--page": page}.items():
            only_one({option: of_players is not None, "--programs": programs})
        _work(source, question, model, base_url, api_key_env, steps=steps, seconds=seconds, apply=apply)
        return
    from reflectrl.cli.screen import Screen

    # a folder's entries are in the menu too
    screen = Screen(action="Command", max_actions=MAX_COMMANDS, skip="Here: ", max_chars=MAX_LINE_CHARS)

    try:
        from reflectrl.pipeline.live_explore import explore as play

        hosts = allow_host or ()
        players = _players(run, model, base_url, api_key_env, expert, greedy=greedy, hosts=hosts)
        watcher = _Watcher(question, players, screen, menus=any(value is not None for value in (run, model, expert)))
        given_options = {"horizon": steps, "page": page}
        options = {name: value for name, value in given_options.items() if value is not None}
        answer = play(source, question, players, options=options, seed=seed or 0, show=watcher.step)
    except (KeyboardInterrupt, PlayerLeft):
        warn("\nstopped; no file was named.")
        raise typer.Exit(130) from None
    if answer is None:
        raise WorkFailed(f"no file was named within {counted(watcher.steps, 'step')}; allow more with --steps.")
    screen.say(f"answer: {answer}")


def _trained_explorer() -> Path | None:
    """Return the run folder of the explorer, if one was trained; refuse a variable that names another folder."""
    named = os.environ.get(EXPLORER)
    if named == "":
        return None
    run = DEFAULT_RUN if named is None else user_path(named)
    if (run / POLICY).is_dir():
        return run
    if named is not None:
        raise InvalidInput(
            f"{EXPLORER}={named} holds no trained policy; set it to a run folder that has one, such as {DEFAULT_RUN} "
            "after `reflectrl run --recipe smollm2/explorer`, or unset it."
        )
    return None


def _work(
    source: str,
    task: str,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    *,
    steps: int | None,
    seconds: float | None,
    apply: bool,
) -> None:
    """Let a person or a model work in a copy of the repository, and show what was changed."""
    from reflectrl.cli.screen import Screen

    screen = Screen(max_chars=MAX_LINE_CHARS)

    def show(command: str, output: str) -> None:
        if model is not None:  # a person has seen the command while typing it
            screen.say("")
            screen.state(f"> {command.rstrip()}")
        if output:
            screen.state(output.rstrip("\n"))

    try:
        from reflectrl.pipeline.live_explore import chat_ask, copilot

        ask = None if model is None else chat_ask(model, base_url, api_key_env)
        limits = {"steps": steps, "seconds": seconds}
        given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
        work = copilot().work_on(source, task, ask, apply=apply, show=show, **given)
    except (KeyboardInterrupt, EOFError):
        warn("\nstopped; nothing was kept.")
        raise typer.Exit(130) from None
    for line in work.diff:
        screen.say(line)
    for line in work.left_out:
        screen.say(f"not kept: {line}")
    if work.answer is not None:
        screen.say(f"answer: {work.answer}")
    files = counted(len(work.changed), "file")
    screen.say(f"changed: {files}{'' if apply or not work.changed else '; nothing is written, add --apply for that'}")


def _players(
    run: Path | None,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    file: str | None,
    *,
    greedy: bool | None,
    hosts: Collection[str],
) -> ExplorePlayers:
    from reflectrl.pipeline.live_explore import chat_model, expert, person, trained

    players = {"--run": run, "--model": model, "--expert": file}
    only_one({name: value is not None for name, value in players.items()}, ", or none to play yourself")
    if run is not None:
        return trained(run, greedy=greedy, hosts=hosts)
    if model is not None:
        return chat_model(model, base_url, api_key_env)
    return person() if file is None else expert(file)


class _Watcher:
    """Shows an episode step by step; without ``menus``, only what was played, for a person who has seen the rest."""

    def __init__(self, question: str, players: ExplorePlayers, screen: Screen, *, menus: bool) -> None:
        self.steps = 0
        self._head = (f"Question: {' '.join(question.split())}", f"Players: {players.who}") if menus else ()
        self._screen = screen
        self._menus = menus

    def step(self, turn: Turn) -> None:
        """Show one step that was played."""
        for line in self._head if self.steps == 0 else ():
            self._screen.say(line)
        self.steps += 1
        if self._menus:
            self._screen.step(self.steps, turn)
        else:
            self._screen.action(turn)
