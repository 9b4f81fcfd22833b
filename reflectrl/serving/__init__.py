"""An agent behind HTTP: ``reflectrl serve``."""
