"""Measurements of the project by the project: what a rollout, an update, a sync and an iteration cost on a device.

Everything is timed through the device that runs a recipe (``workers.device``), so that what is measured is what runs.
``ceiling.py`` has the arithmetic of what is possible at all, ``flops.py`` counts operations on tensors without
data, ``peaks.py`` says what hardware can do, ``reports`` are what a measurement leaves behind, and ``tables.py`` shows
them.
"""
