"""The whole job: stages over one run folder, skipped when done, resumed when killed."""

from reflectrl.pipeline.stages import STAGES, run_stages

__all__ = ["STAGES", "run_stages"]
