"""Entry point of ``python -m reflectrl``."""

from reflectrl.cli import main

main()
