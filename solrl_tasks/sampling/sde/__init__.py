"""Steps that put fresh noise into a sampling path, one module each, and the walk that uses them."""
