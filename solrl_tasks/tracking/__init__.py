"""What people see of a run: MLflow, Prefect artifacts, image grids and the terminal, all from committed summaries."""
