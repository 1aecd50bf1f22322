"""What an image looks like, as a vector: one module a feature. Distances between images are measured with them."""
