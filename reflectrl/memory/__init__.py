"""Memory of past episodes (RAP, Kagaya et al. 2024): what is kept of them, embedders, and a retriever."""

from reflectrl.memory.embedders import Embedder, EmbeddingCache, HashingEmbedder
from reflectrl.memory.experience import Experience, Step, experience_of
from reflectrl.memory.retriever import Key, Query, Retriever, Weights, Window, Windows

__all__ = [
    "Embedder",
    "EmbeddingCache",
    "Experience",
    "HashingEmbedder",
    "Key",
    "Query",
    "Retriever",
    "Step",
    "Weights",
    "Window",
    "Windows",
    "experience_of",
]
