"""Shows the results of runs: a table on the terminal, and one self-contained HTML page."""

from reflectrl.report.page import write_report
from reflectrl.report.table import print_table

__all__ = ["print_table", "write_report"]
