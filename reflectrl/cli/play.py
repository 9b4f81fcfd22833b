"""The play command: one or more episodes of any environment, in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reflectrl.cli.shared import ENV_NAMES, AllowedHosts, check_belongs, complete_env, complete_run, only_one
from reflectrl.cli.terminal import warn
from reflectrl.core import InvalidInput
from reflectrl.core.errors import PlayerLeft
from reflectrl.core.text import counted

if TYPE_CHECKING:
    from reflectrl.cli.screen import Screen
    from reflectrl.core import Trajectory, Turn
    from reflectrl.pipeline.live_play import Game
    from reflectrl.rollout import Episode

MAX_PAUSE_S = 3600.0


def play(
    environment: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV] [KEY=VALUE]...",
            help=f"{ENV_NAMES} Default: that of --run, with its options.",
            autocompletion=complete_env,
        ),
    ] = None,
    expert: Annotated[bool, typer.Option("--expert", help="Player: the environment's expert.")] = False,
    chance: Annotated[bool, typer.Option("--random", help="Player: uniformly random actions.")] = False,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Players: those of this run folder.", autocompletion=complete_run),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy of the run: policy-sft or policy; default: the later one.")
    ] = None,
    greedy: Annotated[
        bool | None,
        typer.Option("--greedy/--sample", help="The run's most probable action, or a draw; default: by validation."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="Task to play; default: sampled.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Task split to play; default: train.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 0,
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="SECONDS", help="Seconds to pause before each step.")
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="Wait for Enter before each step; q leaves.")] = False,
    episodes: Annotated[int, typer.Option("--episodes", help="Number of episodes.")] = 1,
    hints: Annotated[bool, typer.Option("--hints", help="Show you the expert's reflections while you play.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Append successful episodes to FILE, for data.demonstrations; you write the reflections.",
        ),
    ] = None,
    allow_host: AllowedHosts = None,
) -> None:
    """Play an environment in the terminal, or watch a player.

    You play, unless --expert, --random or --run names another player.
    """
    others = {"--expert": expert, "--random": chance, "--run": run is not None}
    _check_together(others, {"--watch": watch is not None, "--step": step}, hints=hints)
    of_runs = {
        "--policy": policy is not None,
        "--greedy/--sample": greedy is not None,
        "--allow-host": bool(allow_host),
    }
    for option, given in of_runs.items():
        check_belongs(option, "--run", given=given, owner_given=run is not None)
    if watch is not None and not 0 <= watch <= MAX_PAUSE_S:
        raise InvalidInput(f"--watch {watch} was given; expected 0 to {MAX_PAUSE_S:.0f} seconds.")
    if episodes < 1:
        raise InvalidInput(f"--episodes {episodes} was given; expected 1 or more.")
    from reflectrl.cli.screen import Screen

    session = None
    try:
        from reflectrl.pipeline import live_play as stage

        name, options = _environment(environment or [])
        if run is not None:
            game = stage.trained(run, name, options, policy=policy, greedy=greedy, hosts=allow_host or ())
        elif name is None:
            raise InvalidInput(
                "no environment was given; expected a name (`reflectrl check-env --list` prints them all), or --run."
            )
        elif expert or chance:
            game = (stage.expert if expert else stage.chance)(name, options)
        else:
            game = stage.person(name, options, hints=hints, reflects=save is not None)
        chosen = stage.choose_episodes(game.env, task=task, split=split, count=episodes, seed=seed)
        if expert or hints:
            stage.check_expert(game.env, chosen[0])
        screen = Screen()
        session = _Session(game, chosen, screen, save)
        if step:
            screen.say("Enter plays the next step, q leaves.")
        pause = _wait_for_enter if step else lambda: time.sleep(watch or 0.0)
        session.play(pause, menus=any(others.values()))
    except (KeyboardInterrupt, PlayerLeft) as left:
        why = "this episode is not finished." if isinstance(left, KeyboardInterrupt) else str(left)
        warn(f"\nstopped: {why}{'' if session is None else session.saved()}")
        raise typer.Exit(130) from None


class _Session:
    """Plays episodes one after the other, and shows and saves them."""

    def __init__(self, game: Game, episodes: list[Episode], screen: Screen, file: Path | None) -> None:
        self._game = game
        self._episodes = episodes
        self._screen = screen
        self._file = file
        self._kept = 0
        if file is not None:
            game.check_demonstrations(episodes, file)

    def play(self, pause: Callable[[], None], *, menus: bool) -> None:
        """Play all episodes with a ``pause`` before each step; ``menus`` also shows rules, states and menus."""
        from reflectrl.pipeline.live_play import play_episode

        played = []
        for number, episode in enumerate(self._episodes, start=1):
            if number == 1:
                options = "".join(f" {key}={value}" for key, value in self._game.header.options.items())
                self._screen.say(f"Environment: {self._game.header.env}{options}")
                self._screen.say(f"Player: {self._game.who}")
                if menus and self._game.env.instructions:
                    self._screen.say(f"Rules: {self._game.env.instructions}")
            self._screen.say("")
            self._screen.say(f"Episode {number} of {len(self._episodes)}: {episode.task.id}", "bold")
            trajectory = play_episode(self._game, episode, self._show(episode.seed, pause, menus=menus))
            self._end(trajectory)
            played.append(trajectory.success)
        if len(played) > 1:
            self._screen.say("")
            self._screen.say(f"{sum(played)} of {len(played)} episodes succeeded.{self.saved()}")

    def saved(self) -> str:
        """Return a sentence that counts the episodes saved so far; empty without ``--save``."""
        if self._file is None:
            return ""
        return f" Saved in {self._file}: {counted(self._kept, 'episode')}."

    def _show(self, seed: int, pause: Callable[[], None], *, menus: bool) -> Callable[[Turn], None]:
        steps = 0

        def show(turn: Turn) -> None:
            nonlocal steps
            steps += 1
            pause()
            if menus:
                if steps == 1 and turn.observation.task:
                    self._screen.state(turn.observation.task)
                self._screen.step(steps, turn, self._game.labels(turn, seed))
            else:
                self._screen.action(turn)
            self._screen.say(f"  Reward: {turn.reward:+.4g}{', an illegal action' if turn.illegal else ''}")

        return show

    def _end(self, trajectory: Trajectory) -> None:
        screen = self._screen
        screen.say("")
        screen.say("End")
        screen.state(self._game.env.observation.text)
        steps = counted(len(trajectory.turns), "step")
        screen.say(f"Outcome: {trajectory.outcome} after {steps}, return {trajectory.episode_return:+.4g}", "bold")
        if self._file is None:
            return
        samples = self._game.save(trajectory, self._file)
        self._kept += bool(samples)
        kept = f"Saved: {counted(samples, 'sample')} in {self._file}"
        screen.say(kept if samples else "Not saved: demonstrations are successful episodes only.")


def _environment(given: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Return the environment's name, ``None`` if only options are given, and its options."""
    from reflectrl.cli.envs import read_options

    named = bool(given) and "=" not in given[0].partition(":")[0]
    return (given[0] if named else None), read_options(given[1:] if named else given)


def _wait_for_enter() -> None:
    try:
        typed = input().strip()
    except EOFError:
        raise PlayerLeft("the input ended; this episode is not finished.") from None
    if typed.casefold() in ("q", "quit"):
        raise PlayerLeft(f"{typed} was typed; this episode is not finished.")


def _check_together(players: dict[str, bool], paces: dict[str, bool], *, hints: bool) -> None:
    player, pace = only_one(players, ", or none to play yourself"), only_one(paces)
    if pace and not player:
        raise InvalidInput(f"{pace} was given, but you play yourself; add --expert, --random or --run to watch.")
    if hints and player:
        raise InvalidInput(f"--hints and {player} were given; hints are for you: leave one out.")
