"""Who a candidate is, what noise it starts from, and how a velocity becomes a clean latent."""
