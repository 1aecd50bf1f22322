"""The typed recipe: what a run is, validated once, frozen, stored with the run."""
