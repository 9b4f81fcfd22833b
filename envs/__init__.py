"""One folder an environment. Import it as ``reflectrl.envs``: ``import envs`` would make second copies of each class."""

if __name__ != "reflectrl.envs":
    raise ImportError(f"this package was imported as {__name__!r}; import it as reflectrl.envs.")
