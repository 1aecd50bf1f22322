"""Number formats in plain torch, bit-exact to a stated order of operations."""
