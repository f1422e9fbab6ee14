"""Prefect tasks: names, tags, cache keys; each body is one call of the core."""
