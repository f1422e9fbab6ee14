"""Frozen models and closed sets; no I/O, and nothing above this layer."""
