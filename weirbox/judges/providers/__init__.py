"""Providers: accounts that answer a judge's requests."""

from __future__ import annotations

from typing import assert_never

from weirbox.domain.judging import (
    AnthropicProvider,
    OpenAIProvider,
    ProviderSpec,
    PythonProvider,
    ReplayProvider,
)
from weirbox.domain.seams import Provider, Workshop


def build(name: str, spec: ProviderSpec, workshop: Workshop) -> Provider:
    """The provider that a suite declares; nothing is read or opened yet.

    Args:
        name: The name in the suite's ``providers``.
    """
    match spec:
        case AnthropicProvider():
            from weirbox.judges.providers.anthropic import AnthropicAccount

            return AnthropicAccount(name, spec, workshop)
        case OpenAIProvider():
            from weirbox.judges.providers.openai import OpenAIAccount

            return OpenAIAccount(name, spec, workshop)
        case PythonProvider():
            from weirbox.judges.providers.python import PythonFunction

            return PythonFunction(name, spec, workshop)
        case ReplayProvider():
            from weirbox.judges.providers.replay import Replay

            return Replay(name, spec, workshop)
        case _:
            assert_never(spec)


__all__ = ["build"]
