"""Local language models: loading, tokenizers, the action head, the policy and the reflector that play with them."""
