"""Raters of whole episodes, whose ratings are rewards (V-TIFA): a model behind an endpoint, a rule, and their audit."""

from reflectrl.raters.agreement import Agreement, Ratings, agreement
from reflectrl.raters.questions import Questions
from reflectrl.raters.rater import Rater, RaterModel
from reflectrl.raters.rule import RuleRater
from reflectrl.raters.scale import Scale

__all__ = ["Agreement", "Questions", "Rater", "RaterModel", "Ratings", "RuleRater", "Scale", "agreement"]
