"""How kept samples become a gradient."""
