"""Sol-RL as an experiment workflow: stages, store, engines, objectives and rewards behind the Prefect flows."""

import os

__version__ = "0.1.0"

# Updates on CUDA are reproducible only with this, and torch looks at it once, at the first matrix product of a process
# there. The size is that of the workspace which torch gives large devices anyway.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
