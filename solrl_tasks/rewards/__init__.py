"""How good an image is: one module a reward."""
