"""The commands that compare ratings and reflections with the truth, and the one that trains a rater."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.shared import RunFolder, TextOrJson
from reflectrl.cli.terminal import say


def audit_rater(
    run: RunFolder,
    output: TextOrJson = "text",
) -> None:
    """Compare a rater's ratings with the environment's truth: precision, recall, rank correlation, and by level."""
    from reflectrl.report.audit import as_json, audit, print_audit

    found = audit(run)
    if output == "json":
        say(as_json(found))
    else:
        print_audit(found)


def audit_reflector(
    run: RunFolder,
    output: TextOrJson = "text",
) -> None:
    """Compare a reflector's words with the expert's: how often they are right, and what follows where they are not."""
    from reflectrl.report.reflector import as_json, audit_reflector, print_reflector

    found = audit_reflector(run)
    if output == "json":
        say(as_json(found))
    else:
        print_reflector(found)


def train_rater(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder of the rater, for players.rater.model.name.")],
    model: Annotated[str, typer.Option(help="Base model: builtin/nano, or a name as in model.name.")] = "builtin/nano",
    max_length: Annotated[int, typer.Option(min=32, help="Longest prompt, in tokens.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of 16 episodes each.")] = 300,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Peak learning rate.")] = 1e-3,
) -> None:
    """Fine-tune a small model on the ratings of a run's recorded episodes, to replace a rater."""
    from reflectrl.pipeline.console import Reporter
    from reflectrl.pipeline.train_rater import train_rater

    with Reporter().stage("train-rater") as advance:
        done = train_rater(
            run,
            out,
            model=model,
            max_length=max_length,
            steps=steps,
            learning_rate=learning_rate,
            advance=lambda step, total, loss: advance(step, total, f"loss {loss:.3f}"),
        )
    say(
        f"{out}: trained on {done.rows} rated episodes; agrees with the ratings of {done.agreeing} of {done.held_out} "
        "held-out ones"
    )
