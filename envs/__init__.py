"""Environments, one folder each. Import them as ``reflectrl.envs``; ``import envs`` would load each module twice."""

if __name__ != "reflectrl.envs":
    raise ImportError(f"this package was imported as {__name__!r}; import it as reflectrl.envs.")
