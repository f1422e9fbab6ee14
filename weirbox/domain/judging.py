"""What a suite says about judges, prompts and providers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from weirbox.domain.base import Count, Dollars, Frozen, Seconds


class Price(Frozen):
    """US dollars per million tokens, overriding the known prices of a model."""

    input: Dollars = Field(ge=0)
    output: Dollars = Field(ge=0)
    cached_input: Dollars | None = Field(default=None, ge=0)


class HttpProvider(Frozen):
    """An account at a provider of models.

    Attributes:
        base_url: Default: the provider's public address.
        secret: The name of the secret that holds the key; absent for servers without one.
        concurrency: The most requests in flight for this account.
    """

    base_url: str | None = None
    secret: str | None = None
    concurrency: Count = Field(default=8, ge=1)
    timeout_s: Seconds = Field(default=60.0, gt=0)
    prices: dict[str, Price] = Field(default_factory=dict)


class AnthropicProvider(HttpProvider):
    """The Messages API."""

    kind: Literal["anthropic"]
    version: str = "2023-06-01"
    secret: str | None = "ANTHROPIC_API_KEY"


class OpenAIProvider(HttpProvider):
    """Chat completions, as OpenAI, vLLM, Ollama, llama.cpp and others serve them."""

    kind: Literal["openai"]
    secret: str | None = "OPENAI_API_KEY"


class PythonProvider(Frozen):
    """A function ``f(request) -> text or dict``, plain or async.

    Attributes:
        function: ``module:name`` or ``file.py:name``.
        cost_usd: What each call costs; the budget counts it.
    """

    kind: Literal["python"]
    function: str
    cost_usd: Dollars = Field(default=0.0, ge=0)
    concurrency: Count = Field(default=8, ge=1)
    timeout_s: Seconds = Field(default=60.0, gt=0)


class ReplayProvider(Frozen):
    """Recorded replies; a call costs nothing and is marked as cached.

    Attributes:
        path: A JSONL file of ``{"check", "case", "tier", "reply"}``, with optional
            ``trial``, ``stop``, ``usage`` and ``error``; a line without ``case``
            stands for every case that has none of its own.
        delay_s: How long a reply takes, for rehearsals.
    """

    kind: Literal["replay"]
    path: str
    delay_s: Seconds = Field(default=0.0, ge=0)
    concurrency: Count = Field(default=1000, ge=1)


ProviderSpec = Annotated[
    AnthropicProvider | OpenAIProvider | PythonProvider | ReplayProvider,
    Field(discriminator="kind"),
]


class TierSpec(Frozen):
    """Which model judges, and with what parameters."""

    provider: str
    model: str = "default"
    max_tokens: Count = Field(default=1024, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)


class Rubric(Frozen):
    """What a reply may say.

    Attributes:
        kind: ``verdict`` (pass, fail, uncertain), ``score`` (a number on
            `scale`), or ``choice`` (one word of `choices`).
        scale: The lowest and highest score; inclusive.
        pass_at: A score passes from here on.
        choices: The menu, and what each word means: pass, fail, or uncertain.
    """

    kind: Literal["verdict", "score", "choice"] = "verdict"
    scale: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    pass_at: FiniteFloat | None = None
    choices: dict[str, Literal["pass", "fail", "uncertain"] | None] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "choice" and len(self.choices) < 2:
            raise ValueError("a choice rubric needs at least two 'choices'")
        if self.kind == "score" and self.scale[0] >= self.scale[1]:
            raise ValueError("a scale is [lowest, highest], with lowest below highest")
        return self


class Prompt(Frozen):
    """One version of a judge's prompt.

    Attributes:
        system, user: Templates over the case, the output and the trace.
    """

    id: str = Field(min_length=1, max_length=100)
    version: Count = Field(ge=1)
    system: str = ""
    user: str
    rubric: Rubric = Rubric()


class JudgeSpec(Frozen):
    """A judge: a prompt, a primary tier and, optionally, an escalation tier.

    Attributes:
        prompt: ``id`` or ``id@version`` in the prompt registry, or the prompt itself.
        required: Whether a trial on which it yields no score goes to review.
    """

    name: str = Field(min_length=1, max_length=100)
    prompt: str | Prompt
    primary: TierSpec
    escalation: TierSpec | None = None
    required: bool = True
