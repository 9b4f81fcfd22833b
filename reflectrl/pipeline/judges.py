"""``rater_of``, ``corrector_of``: players that judge what was played, made from a run's recipe (V-TIFA, GTR)."""

from __future__ import annotations

import json
from pathlib import Path

from reflectrl.config.judges import CorrectorPlayerSection, RaterPlayerSection
from reflectrl.core import InvalidInput
from reflectrl.core.files import write_text
from reflectrl.core.jsonl import read_json
from reflectrl.pipeline.endpoints import Endpoints
from reflectrl.pipeline.models import RunModels
from reflectrl.players import ExpertCorrector, Informed, Player, RuleCorrector
from reflectrl.raters import Questions, Rater, RaterModel, RuleRater, Scale
from reflectrl.raters.corrector import LocalCorrector
from reflectrl.raters.learned import LearnedRater
from reflectrl.raters.local import LocalModel

TRAINED_AS = "rater.json"
"""File in the folder of a learned rater, with the settings of the ratings that it was trained on."""


def write_trained_as(section: RaterPlayerSection, folder: Path) -> None:
    """Record which ratings a learned rater in ``folder`` was trained on: those of ``section``."""
    write_text(folder / TRAINED_AS, json.dumps(_trained_as(section), indent=1) + "\n")


def _trained_as(section: RaterPlayerSection) -> dict[str, object]:
    return {"labels": section.labels, "include_actions": section.include_actions}


def check_trained_as(section: RaterPlayerSection) -> None:
    """Check that a learned rater reads and rates as it was trained; one without the file is taken as it is.

    Raises:
        InvalidInput: it was trained with other labels, or with actions where it would see none, or the other way round;
            or the file is damaged.

    """
    path = Path(section.model.name) / TRAINED_AS
    if not path.is_file():
        return
    then = read_json(path, "what reflectrl train-rater wrote: train the rater again")
    if not isinstance(then, dict):
        raise InvalidInput(f"{path} is damaged; train the rater again with reflectrl train-rater.")
    for key, now in _trained_as(section).items():
        if then.get(key) != now:
            raise InvalidInput(
                f"players.rater.{key} is {json.dumps(now)}, but the rater in {section.model.name} was trained with "
                f"{json.dumps(then.get(key))}; give it the same, or train another with reflectrl train-rater."
            )


def rater_of(section: RaterPlayerSection, models: RunModels, endpoints: Endpoints) -> Player:
    """Return the rater of whole episodes that ``section`` describes."""
    scale = Scale(tuple(section.labels), section.scale)
    if section.player == "rule":
        stages = [stage.env for stage in models.recipe.rlft.stages] if models.recipe.rlft else []
        envs = [models.env(options) for number, options in enumerate(stages) if options not in stages[:number]]
        return RuleRater(envs, scale, section.accuracy)
    questions = Questions(models.instructions, section.segment, section.include_actions, scale, images=section.images)
    if section.player == "learned":
        check_trained_as(section)
        lm = models.frozen(section.model, "rater")
        return LearnedRater(lm, questions, max_length=section.model.max_length)
    return Rater(_rating_model(section, scale, models, endpoints), questions, section.votes)


def _rating_model(section: RaterPlayerSection, scale: Scale, models: RunModels, endpoints: Endpoints) -> RaterModel:
    if section.player == "local":
        return LocalModel(models.frozen(section.model, "rater"), scale, max_length=section.model.max_length)
    from reflectrl.raters.remote import RemoteModel

    return endpoints.player(RemoteModel, "rater", section.endpoint, scale=scale)


def corrector_of(section: CorrectorPlayerSection, models: RunModels, endpoints: Endpoints) -> Player:
    """Return the corrector of thoughts that ``section`` describes."""
    player = _corrector(section, models, endpoints)
    return Informed(player) if section.tool else player


def _corrector(section: CorrectorPlayerSection, models: RunModels, endpoints: Endpoints) -> Player:
    if section.player == "expert":
        return ExpertCorrector()
    if section.player == "rule":
        return RuleCorrector()
    if section.player == "local":
        return LocalCorrector(models.frozen(section.model, "corrector"), max_length=section.model.max_length)
    from reflectrl.players.remote import RemoteCorrector

    instead = {"skip": "", "default": section.default, "raise": None}[section.on_failure]
    return endpoints.player(
        RemoteCorrector,
        "corrector",
        section.endpoint,
        instead=instead,
        images=section.images,
        questions=section.questions,
    )
