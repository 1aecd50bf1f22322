"""Procedural coloured-shape scenes: a prompt grammar, a renderer and an exact checker."""
