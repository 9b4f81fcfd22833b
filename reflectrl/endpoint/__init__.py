"""Chat endpoints: the client, its journal of paid replies, its budget and Batch mode."""
