"""Sol-RL as an experiment workflow: stages, store, engines, objectives and rewards behind the Prefect flows."""

__version__ = "0.1.0"
