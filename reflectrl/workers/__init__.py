"""Environments in worker processes: deadlines, memory limits and replay after a crash."""
