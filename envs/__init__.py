"""One folder an environment. Import it as ``reflectrl.envs``; ``import envs`` would make a second copy of each."""

if __name__ != "reflectrl.envs":
    raise ImportError(f"this package was imported as {__name__!r}; import it as reflectrl.envs.")
