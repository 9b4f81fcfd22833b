"""A made-up coffee company as a repository: policies, tables and code, the same bytes for the same seed."""

from reflectrl.envs.auto_explore.company.catalog import Folder, plan_company
from reflectrl.envs.auto_explore.company.texts import write_company

__all__ = ["Folder", "plan_company", "write_company"]
