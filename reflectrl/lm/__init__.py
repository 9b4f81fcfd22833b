"""Local language models: loading, tokenizers, the masked action head, prefix trees and caches, decoding, players."""
