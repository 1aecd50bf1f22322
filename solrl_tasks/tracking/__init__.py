"""What people see of a run, made from its committed summaries: MLflow, Prefect, images, the terminal."""
