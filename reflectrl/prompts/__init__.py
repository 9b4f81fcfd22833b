"""Prompts: the only place where their text is assembled, for the teacher, SFT, RLFT and evaluation."""

from reflectrl.prompts.format import History, PromptFormat
from reflectrl.prompts.menu import LABEL_KINDS, Menu, labels, make_menu
from reflectrl.prompts.prompt import Prompt
from reflectrl.prompts.teacher import TeacherPrompts

__all__ = ["LABEL_KINDS", "History", "Menu", "Prompt", "PromptFormat", "TeacherPrompts", "labels", "make_menu"]
