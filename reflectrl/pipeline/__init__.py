"""The stages of an experiment over one run folder: skipped when done, resumed when killed."""

from reflectrl.core.run_files import STAGES
from reflectrl.pipeline.stages import run_stages

__all__ = ["STAGES", "run_stages"]
