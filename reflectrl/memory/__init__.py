"""Memory of past episodes (RAP, Kagaya et al. 2024): a store, embedders, a retriever, and the player of the seat."""

from reflectrl.memory.embedders import Embedder, EmbeddingCache, HashingEmbedder
from reflectrl.memory.experience import Experience, Step, experience_of
from reflectrl.memory.growing import GrowingMemory
from reflectrl.memory.planner import Planner
from reflectrl.memory.player import Memory
from reflectrl.memory.retriever import Key, Query, Retriever, Weights, Window, Windows
from reflectrl.memory.store import EpisodeStore

__all__ = [
    "Embedder",
    "EmbeddingCache",
    "EpisodeStore",
    "Experience",
    "GrowingMemory",
    "HashingEmbedder",
    "Key",
    "Memory",
    "Planner",
    "Query",
    "Retriever",
    "Step",
    "Weights",
    "Window",
    "Windows",
    "experience_of",
]
