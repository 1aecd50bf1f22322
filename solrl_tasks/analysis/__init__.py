"""What can be learnt from rewards that are already in the store."""
