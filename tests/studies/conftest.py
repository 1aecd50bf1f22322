"""Micro runs for the tests of studies."""

from tests.support.sessions import opened, recipe_of

__all__ = ["opened", "recipe_of"]
