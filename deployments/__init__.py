"""How flows are offered to others."""
