"""One module a model family; all else in the project is family-blind."""
