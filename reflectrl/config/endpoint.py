"""The chat endpoint that a section of a recipe asks for."""

from __future__ import annotations

from reflectrl.config.schema import EndpointSection
from reflectrl.players.account import Price
from reflectrl.players.endpoint import Endpoint


def recipe_endpoint(section: EndpointSection) -> Endpoint:
    """As ``section`` says."""
    price = None if section.price is None else Price(**section.price.model_dump())
    return Endpoint(**{**section.model_dump(exclude={"price"}), "price": price})
