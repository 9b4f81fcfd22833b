"""Export of an agent for others (``reflectrl export``), as a folder or as a repository of the hub."""
