"""Questions that are asked of pools and runs: what is missing is planned, computed and compared."""
