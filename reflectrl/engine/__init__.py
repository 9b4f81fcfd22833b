"""The inference engine: masked action head, KV cache, prefix tree, decoding."""
