"""Stage 1: teacher episodes, negative examples, and the SFT rows of both players. Needs no torch."""

if __name__ != "reflectrl.data_gen":
    raise ImportError(f"this package was imported as {__name__!r}; import it as reflectrl.data_gen.")

from reflectrl.data_gen.generate import DataSummary, generate
from reflectrl.data_gen.rows import Row, read_rows

__all__ = ["DataSummary", "Row", "generate", "read_rows"]
