"""An agent for others: `reflectrl export`, as a folder or a repository of the hub."""
