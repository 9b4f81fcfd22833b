"""A local reflector, made from its settings."""

from __future__ import annotations

from reflectrl.config.model import ModelSection
from reflectrl.config.reflector import ReflectorPlayerSection
from reflectrl.engine.reuse import prefix_cache_for
from reflectrl.models.load import LanguageModel
from reflectrl.models.reflector import LMReflector


def local_reflector(lm: LanguageModel, settings: ReflectorPlayerSection, section: ModelSection) -> LMReflector:
    """Return the frozen reflector that writes with ``lm``, which was loaded by its model ``section``."""
    cache = prefix_cache_for(lm.base, section.max_length, "reflector") if section.prefix_reuse else None
    return LMReflector(
        lm.model,
        lm.tokenizer,
        max_length=section.max_length,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature_at_play,
        cache_size=settings.cache_size,
        prefix_cache=cache,
    )
