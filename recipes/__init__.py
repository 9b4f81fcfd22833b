"""Recipes: YAML only, found through importlib.resources."""
