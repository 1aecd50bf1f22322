"""Deterministic solvers of the sampling equation, one module each."""
