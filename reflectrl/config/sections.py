"""Base types of the sections of a recipe, and the endpoint section, which several sections use."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from reflectrl.core.addresses import public_address, public_source

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
Address = Annotated[str, AfterValidator(public_address)]
Source = Annotated[str, AfterValidator(public_source)]


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class PriceSection(Section):
    """Price of an endpoint, in US dollars per million tokens."""

    prompt: Annotated[float, Field(ge=0.0)]
    """US dollars per million prompt tokens."""
    completion: Annotated[float, Field(ge=0.0)]
    """US dollars per million completion tokens."""
    cached: Annotated[float, Field(ge=0.0)] | None = None
    """US dollars per million prompt tokens that the endpoint has in its cache; absent: as ``prompt``."""


class EndpointSection(Section):
    """An OpenAI-compatible chat endpoint. The key comes from the environment only."""

    model: str = "gpt-4o"
    """Model (or Azure deployment) name."""
    base_url: Address | None = None
    """Any compatible server, without login or query; OpenAI when absent."""
    azure_api_version: str | None = None
    """Set for Azure OpenAI, whose endpoint is then ``base_url``."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key."""
    concurrency: Count = 8
    """Calls in flight."""
    timeout_s: Positive | None = None
    """Seconds one attempt may take; absent: 60, or 600 where ``base_url`` is on this machine or its own network."""
    max_attempts: Count = 5
    """Attempts a call, the first included."""
    max_rejected: Annotated[int, Field(ge=0)] = 20
    """Calls without a usable reply that are set aside, in ``rejected.jsonl``, before work stops."""
    max_tokens: Count = 200
    """Longest reply; one that is cut off there is asked for again, shorter."""
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    """Sampling temperature asked for."""
    price: PriceSection | None = None
    """For the estimate, the summary and ``--max-cost``; absent: tokens are counted, money is not. It belongs to the
    ``model`` and ``base_url`` that it was written for: change one of them, and it is dropped unless given again."""
