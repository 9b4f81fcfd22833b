"""Shows the results of runs: a table and a verdict on the terminal, and one self-contained HTML page."""

from reflectrl.report.page import write_report
from reflectrl.report.table import print_table
from reflectrl.report.verdict import print_verdict

__all__ = ["print_table", "print_verdict", "write_report"]
