"""The stages of an iteration: ordinary functions from a session and a job to an outcome, and their Prefect tasks."""
