"""How flows are offered to others: the local runner."""

from __future__ import annotations

LOCAL = "local"
"""The name of the deployment of `evaluate-run` that the local runner serves."""
