"""Prefect flows: order, windows, state."""
