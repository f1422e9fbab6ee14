"""The command line. Heavy parts are imported by the commands that need them."""

from __future__ import annotations

from weirbox.cli.app import app
from weirbox.cli.edge import guarded

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and exit with its status."""
    guarded(app)
