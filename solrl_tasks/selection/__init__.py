"""Which seeds of a prompt are worth sampling precisely."""
